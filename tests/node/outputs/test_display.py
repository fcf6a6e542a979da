"""A presentation state shows its film as the film itself says: tables, windows, polarity, shape of a pixel."""

from __future__ import annotations

import math
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset

from models.contract import Box
from node.dicom.header_reading import read_header
from node.domain import Film
from node.outputs import gsps
from node.outputs.document import save_bytes
from node.outputs.source import Source
from tests.support import films, validators
from tests.support.decoded import stored_picture
from tests.support.samples import BERLIN, cr, datasets, finding, received, report, several

BOX = Box(left=0, top=0, right=64, bottom=64)


def written(of: Film, header: Dataset | None = None) -> Dataset:
    """Write the state of one film, and read it back from its bytes."""
    [dataset] = datasets(gsps.write, report(of), received(header or cr(1)), BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


@pytest.mark.parametrize("beside", [{}, {"PixelAspectRatio": ["1", "1"]}, {"PixelAspectRatio": ["3", "1"]}])
def test_pixels_that_are_not_square_stay_so_and_a_spacing_counts(beside: dict[str, object]) -> None:
    header = films.changed(cr(), beside)
    header.PixelSpacing = [0.2, 0.1]

    [area] = written(several(), header).DisplayedAreaSelectionSequence

    assert list(area.PresentationPixelAspectRatio) == [200, 100]


def test_a_real_negative_film_is_inverted_and_keeps_its_window() -> None:
    path = get_testdata_file("RG1_UNCR.dcm")
    assert path is not None
    header = dcmread(path, stop_before_pixels=True)  # MONOCHROME1, PixelSpacing 0\0
    box = Box(left=10, top=10, right=500, bottom=400)
    of = Film(
        source=header.SOPInstanceUID,
        columns=header.Columns,
        rows=header.Rows,
        analyzed=Box(left=0, top=0, right=header.Columns, bottom=header.Columns),
        findings=(finding(boxes=(box,)),),
    )

    dataset = written(of, header)

    assert dataset.PresentationLUTShape == "INVERSE"
    [voi] = dataset.SoftcopyVOILUTSequence
    assert (voi.WindowCenter, voi.WindowWidth) == (header.WindowCenter, header.WindowWidth)
    assert list(dataset.DisplayedAreaSelectionSequence[0].PresentationPixelAspectRatio) == [1, 1]
    assert validators.dciodvfy(dataset) == []
    assert validators.dcmpschk(dataset) == []


def test_the_first_of_several_windows_keeps_its_explanation() -> None:
    header = cr()
    header.WindowCenter, header.WindowWidth = [600, 40], [1200.5, 80]
    header.WindowCenterWidthExplanation = ["LUNG", "BONE"]
    header.VOILUTFunction = "SIGMOID"

    [voi] = written(several(), header).SoftcopyVOILUTSequence

    assert (voi.WindowCenter, voi.WindowWidth, voi.WindowCenterWidthExplanation) == (600, 1200.5, "LUNG")
    assert voi.VOILUTFunction == "SIGMOID"


def test_a_scalar_window_with_a_text_explanation_stays_whole() -> None:
    [voi] = written(several()).SoftcopyVOILUTSequence

    assert (voi.WindowCenter, voi.WindowWidth, voi.WindowCenterWidthExplanation) == (2048, 4096, "WINDOW1")


@pytest.mark.parametrize(("center", "width"), [(math.nan, 100), (100, math.nan), (100, 0), (None, 50), (100, -3)])
def test_a_window_that_cannot_be_used_is_left_out(center: float | None, width: float) -> None:
    header = cr()
    header.WindowCenter, header.WindowWidth = center, width

    dataset = written(several(), header)

    assert "SoftcopyVOILUTSequence" not in dataset
    assert validators.dciodvfy(dataset) == []


NARROW: dict[str, dict[str, object]] = {
    "fractions": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "VOILUTFunction": "LINEAR_EXACT"},
    "a falling slope": {"RescaleSlope": "-0.0001", "RescaleIntercept": "0.3", "VOILUTFunction": "LINEAR_EXACT"},
    "sigmoid": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "VOILUTFunction": "SIGMOID"},
    "no window": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "WindowCenter": None, "WindowWidth": None},
}


@pytest.mark.parametrize("case", NARROW)
def test_a_window_below_1_is_written_as_a_table_that_shows_the_same(case: str, tmp_path: Path) -> None:
    header = films.changed(films.ramp(), {"WindowCenter": 0.1, "WindowWidth": 0.2, **NARROW[case]})
    path = tmp_path / "film.dcm"
    path.write_bytes(films.file_bytes(header))
    of = Film(source=str(header.SOPInstanceUID), columns=64, rows=64, analyzed=BOX)
    stored = stored_picture(path)
    source = Source(header=read_header(path), thumbnail=stored.thumbnail)

    [dataset] = datasets(gsps.write, report(of), {of.source: source}, BERLIN)

    [voi] = dataset.SoftcopyVOILUTSequence
    [table] = voi.VOILUTSequence
    entries = np.frombuffer(table.LUTData, "<u2")
    shown = entries[np.clip(header.pixel_array.astype(int) - table.LUTDescriptor[1], 0, entries.size - 1)] / 65535
    assert "WindowWidth" not in voi and "RescaleSlope" not in dataset
    assert shown == pytest.approx(stored.displayed(), abs=1e-4)
    assert validators.dciodvfy(dataset) == []
    assert validators.dcmpschk(dataset) == []


def _table(descriptor: list[int], data: bytes, *, vr: str) -> Dataset:
    item = Dataset()
    item.add_new("LUTDescriptor", vr, descriptor)
    item.LUTExplanation = "curve"
    item.add_new("LUTData", "OW", data)
    return item


@pytest.mark.parametrize(("vr", "first"), [("US", 0), ("SS", -512)])
def test_lookup_tables_are_carried_and_come_before_a_window(vr: str, first: int) -> None:
    header = cr()
    entries = struct.pack("<1024H", *range(63, 65536, 64))
    header.VOILUTSequence = [_table([1024, first, 16], entries, vr=vr)]
    header.ModalityLUTSequence = [_table([1024, first, 16], entries, vr=vr)]
    header.ModalityLUTSequence[0].ModalityLUTType = "OD"

    dataset = written(several(), header)

    [voi] = dataset.SoftcopyVOILUTSequence
    [table] = voi.VOILUTSequence
    assert (list(table.LUTDescriptor), table.LUTData) == ([1024, first, 16], entries)
    assert "WindowCenter" not in voi
    assert dataset.ModalityLUTSequence[0].ModalityLUTType == "OD"
    assert "RescaleSlope" not in dataset
    assert validators.dciodvfy(dataset) == []
    assert validators.dcmpschk(dataset) == []


def test_a_display_table_of_12_bits_is_spread_over_16() -> None:
    header = cr()
    header.VOILUTSequence = [_table([4, 0, 12], struct.pack("<4H", 0, 1, 2048, 4095), vr="US")]

    dataset = written(several(), header)

    [voi] = dataset.SoftcopyVOILUTSequence
    assert list(voi.VOILUTSequence[0].LUTDescriptor) == [4, 0, 16]
    assert struct.unpack("<4H", voi.VOILUTSequence[0].LUTData) == (0, 16, 32776, 65535)
    assert validators.dciodvfy(dataset) == []


def test_a_modality_table_of_packed_bytes_keeps_its_values() -> None:
    header = cr()
    header.ModalityLUTSequence = [_table([4, 0, 8], bytes((0, 3, 100, 255)), vr="US")]

    [table] = written(several(), header).ModalityLUTSequence

    assert (list(table.LUTDescriptor), table.LUTData) == ([4, 0, 8], bytes((0, 3, 100, 255)))


def test_a_lookup_table_read_from_an_implicit_file_is_carried() -> None:
    header = cr()
    header.VOILUTSequence = [_table([4, 0, 16], struct.pack("<4H", 0, 9, 90, 60000), vr="US")]
    buffer = BytesIO()
    header.save_as(buffer, implicit_vr=True, little_endian=True)
    read = dcmread(BytesIO(buffer.getvalue()), force=True)

    [voi] = written(several(), read).SoftcopyVOILUTSequence

    assert voi.VOILUTSequence[0].LUTData == struct.pack("<4H", 0, 9, 90, 60000)


def test_a_lookup_table_of_a_big_endian_file_is_turned_round() -> None:
    header = cr()
    header.VOILUTSequence = [_table([4, 0, 16], struct.pack(">4H", 0, 9, 90, 60000), vr="US")]
    buffer = BytesIO()
    header.save_as(buffer, implicit_vr=False, little_endian=False)
    big = dcmread(BytesIO(buffer.getvalue()), force=True)
    big.set_original_encoding(False, False)

    [voi] = written(several(), big).SoftcopyVOILUTSequence

    assert voi.VOILUTSequence[0].LUTData == struct.pack("<4H", 0, 9, 90, 60000)


@pytest.mark.parametrize("descriptor", [[1024, 0, 12], [4, 0]])
def test_a_contradictory_lookup_table_gives_way_to_the_window(descriptor: list[int]) -> None:
    header = cr()
    header.VOILUTSequence = [_table(descriptor, struct.pack("<4H", 0, 9, 90, 900), vr="US")]

    [voi] = written(several(), header).SoftcopyVOILUTSequence

    assert "VOILUTSequence" not in voi
    assert voi.WindowWidth == 4096
