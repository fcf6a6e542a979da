"""The presentation state: the boxes of the report on a film that looks as it did, with its tables and windows."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState
from node.dicom import identity
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Film, Finding, Note
from node.outputs import gsps, wording
from node.outputs.document import save_bytes
from node.outputs.source import Picture, Source
from node.outputs.sr import report as sr
from tests.support import films, samples, validators
from tests.support.decoded import stored_picture
from tests.support.documents import contents, everything
from tests.support.samples import BERLIN, absent, bare, cr, film, finding, received, report, several, sources, unread


def written(of: Film, header: Dataset | None = None, *, picture: Picture | None = None) -> Dataset:
    """Write the state of one film, and read it back from its bytes."""
    [dataset] = samples.datasets(gsps.write, report(of), received(header or cr(1), picture=picture), BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


def layer(dataset: Dataset, name: str) -> Dataset:
    """Return what is drawn in a layer."""
    [item] = [item for item in dataset.GraphicAnnotationSequence if item.GraphicLayer == name]
    return item


def label(dataset: Dataset) -> list[str]:
    """Return the lines of the research label."""
    return [str(item.UnformattedTextValue) for item in layer(dataset, gsps.LABEL).TextObjectSequence]


def corners(text: Dataset) -> tuple[float, ...]:
    """Return left, top, right and bottom of a text's place."""
    return (*text.BoundingBoxTopLeftHandCorner, *text.BoundingBoxBottomRightHandCorner)


def tracked(dataset: Dataset) -> dict[str, list[Dataset]]:
    """Return the graphic objects of a presentation state by tracking UID."""
    found: dict[str, list[Dataset]] = {}
    for part in dataset.GraphicAnnotationSequence:
        for item in part.get("GraphicObjectSequence", ()):
            if "TrackingUID" in item:
                found.setdefault(item.TrackingUID, []).append(item)
    return found


def surrounding(outlines: Iterable[Iterable[float]]) -> tuple[float, ...]:
    """Return left, top, right and bottom of all points of some outlines."""
    points = np.concatenate([np.array(list(outline)).reshape(-1, 2) for outline in outlines])
    return (*points.min(axis=0), *points.max(axis=0))


def regions(dataset: Dataset) -> dict[str, tuple[float, ...]]:
    """Return the boxes of a presentation state by tracking UID, as a program reads them."""
    return {uid: surrounding(item.GraphicData for item in items) for uid, items in tracked(dataset).items()}


def reported_regions(document: Dataset) -> dict[str, tuple[float, ...]]:
    """Return the boxes of a report's groups by tracking UID."""
    found = [item for item in everything(document) if item.ConceptNameCodeSequence[0].CodeValue == "125007"]
    return {
        contents(group, "112040")[0].UID: surrounding([contents(group, "111030")[0].GraphicData]) for group in found
    }


def test_report_and_state_share_tracking_uids_and_rectangles() -> None:
    of = report(film(findings=several().findings))
    [document] = samples.datasets(sr.write, of, sources(cr(1)), BERLIN)
    [state] = samples.datasets(gsps.write, of, received(cr(1)), BERLIN)
    document, state = (dcmread(BytesIO(save_bytes(dataset))) for dataset in (document, state))

    drawn, reported = regions(state), reported_regions(document)

    assert drawn.keys() == reported.keys()
    assert drawn
    for uid, box in drawn.items():
        assert box == pytest.approx(reported[uid], abs=1e-3)


def test_each_film_that_was_read_has_a_state_with_the_findings_of_its_report() -> None:
    of = report(several(), unread(2), film(3, findings=(absent(),)))
    headers = sources(cr(1), bare(2), cr(3))

    states = samples.datasets(gsps.write, of, received(*headers.values()), BERLIN)

    assert [regions(state).keys() for state in states] == [
        reported_regions(document).keys() for document in samples.datasets(sr.write, of, headers, BERLIN)[:2]
    ]
    assert not regions(states[1])
    assert [len(label(state)) for state in states] == [2, 4]  # the film without findings says so
    assert label(states[1])[2:] == ["No prompted finding near its threshold.", "Not a report of a normal film."]
    assert {item.GraphicLayer for item in states[1].GraphicLayerSequence} == {gsps.LABEL, gsps.SQUARE}
    assert ["box" in state.ContentDescription.lower() for state in states] == [True, False]
    images = [state.ReferencedSeriesSequence[0].ReferencedImageSequence[0] for state in states]
    assert [image.ReferencedSOPInstanceUID for image in images] == [samples.film_uid(1), samples.film_uid(3)]
    assert states[0].SeriesInstanceUID == states[1].SeriesInstanceUID
    assert states[0].SOPInstanceUID != states[1].SOPInstanceUID
    assert parse_header(states[0]).is_own


@pytest.mark.parametrize("findings", [(), (absent(),)], ids=["nothing asked", "none"])
def test_a_state_without_boxes_is_accepted_by_dciodvfy_and_dcmtk(findings: tuple[Finding, ...]) -> None:
    dataset = written(film(findings=findings))

    assert validators.dciodvfy(dataset) == []
    assert validators.dcmpschk(dataset) == []
    assert validators.unknown_warnings(written(several())) == []


def test_a_present_box_is_a_closed_unfilled_line_with_a_label() -> None:
    dataset = written(several())

    boxes = layer(dataset, gsps.BOXES)
    present = [items for items in tracked(dataset).values() if items[0].TrackingID == "Pleural effusion"]
    [[first]] = present
    assert (first.GraphicType, first.GraphicFilled, first.GraphicAnnotationUnits) == ("POLYLINE", "N", "PIXEL")
    assert list(first.GraphicData) == [150.25, 900.5, 700.125, 900.5, 700.125, 1700, 150.25, 1700, 150.25, 900.5]
    assert [item.UnformattedTextValue for item in boxes.TextObjectSequence] == [
        "Right pleural effusion 83 %",
        "Pulmonary edema 41 % (possible)",
        "Pulmonary edema 41 % (possible)",
        "Support devices 50 %",
    ]


@pytest.mark.parametrize("state", [FindingState.INDETERMINATE, FindingState.UNCALIBRATED])
@pytest.mark.parametrize("edges", [(150.5, 900, 700, 1700), (3, 4, 5, 6)])
def test_a_box_to_be_reviewed_is_drawn_as_dashes(state: FindingState, edges: tuple[float, float, float, float]) -> None:
    left, top, right, bottom = edges
    box = Box(left=left, top=top, right=right, bottom=bottom)

    dataset = written(film(findings=(finding(state=state, boxes=(box,)),)))

    [dashes] = tracked(dataset).values()
    ends = np.array([list(dash.GraphicData) for dash in dashes]).reshape(-1, 2, 2)
    drawn = np.abs(ends[:, 1] - ends[:, 0]).sum()
    around = 2 * (right - left + bottom - top)
    assert {(dash.NumberOfGraphicPoints, dash.GraphicType) for dash in dashes} == {(2, "POLYLINE")}
    assert 0.5 * around < drawn < 0.7 * around
    assert surrounding(ends.reshape(-1, 4)) == pytest.approx(box.edges)
    on_edge = (ends[..., 0:1] == (left, right)) | (ends[..., 1:2] == (top, bottom))
    assert on_edge.any(axis=-1).all()


def test_several_boxes_to_be_reviewed_stay_apart() -> None:
    dataset = written(several())

    dashed = {uid for uid, items in tracked(dataset).items() if len(items) > 1}
    assert len(dashed) == 2
    boxes = {box.tracking_uid: box.box.edges for found in several().findings for box in found.boxes}
    for uid in dashed:
        assert regions(dataset)[uid] == pytest.approx(boxes[uid])


def test_a_label_without_room_is_a_line_of_the_heading_and_covers_no_other_text() -> None:
    box = Box(left=100, top=600, right=110, bottom=610)

    dataset = written(film(findings=tuple(finding(boxes=(box,)) for _ in range(60))))

    texts = [corners(text) for name in (gsps.BOXES, gsps.LABEL) for text in layer(dataset, name).TextObjectSequence]
    boxes = len(layer(dataset, gsps.BOXES).TextObjectSequence)
    named = [line for line in label(dataset) if line.startswith(gsps.ROOMLESS)]
    assert 2 < boxes < 60 - len(named) == 52
    assert label(dataset)[-1].startswith(f"{60 - boxes - len(named)} more boxes")
    for number, (left, top, right, bottom) in enumerate(texts):
        for other in texts[:number]:
            assert right <= other[0] + 1 or other[2] <= left + 1 or bottom <= other[1] + 1 or other[3] <= top + 1


@pytest.mark.parametrize("corner", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_the_research_label_stands_in_the_darkest_corner(corner: tuple[int, int]) -> None:
    picture = np.full((samples.ROWS, samples.COLUMNS), 230, np.uint8)
    top_half, left_half = slice(samples.ROWS // 2), slice(samples.COLUMNS // 2)
    picture[:: 1 if corner[0] == 0 else -1, :: 1 if corner[1] == 0 else -1][top_half, left_half] = 20
    dataset = written(several(), picture=picture)

    left, top, right, _ = np.array([corners(item) for item in layer(dataset, gsps.LABEL).TextObjectSequence]).T
    assert (top.min() > samples.ROWS / 2) == (corner[0] == -1)
    assert (left.min() > samples.COLUMNS / 2) == (corner[1] == -1)
    assert right.max() <= samples.COLUMNS


def test_texts_are_black_where_all_ground_is_bright() -> None:
    bright = written(several(), picture=np.full((samples.ROWS, samples.COLUMNS), 230, np.uint8))
    unknown = written(several())

    grays = {
        item.GraphicLayer: item.GraphicLayerRecommendedDisplayGrayscaleValue for item in bright.GraphicLayerSequence
    }
    assert grays == {gsps.SQUARE: 0xB000, gsps.BOXES: 0xFFFF, gsps.DARK: 0}
    assert "TextObjectSequence" not in layer(bright, gsps.BOXES)
    assert sorted(text.UnformattedTextValue for text in layer(bright, gsps.DARK).TextObjectSequence) == sorted(
        text.UnformattedTextValue
        for name in (gsps.LABEL, gsps.BOXES)
        for text in layer(unknown, name).TextObjectSequence
    )
    assert validators.dciodvfy(bright) == []
    assert validators.dcmpschk(bright) == []


def test_research_label_and_analyzed_square_have_own_layers() -> None:
    dataset = written(several())

    assert label(dataset) == ["AI RESEARCH - NOT FOR DIAGNOSIS", "Square: analyzed part"]
    [square] = layer(dataset, gsps.SQUARE).GraphicObjectSequence
    assert list(square.GraphicData[:6]) == [120, 0, 1880, 0, 1880, 1760]
    grays = {
        item.GraphicLayer: item.GraphicLayerRecommendedDisplayGrayscaleValue for item in dataset.GraphicLayerSequence
    }
    assert grays.keys() == {gsps.BOXES, gsps.LABEL, gsps.SQUARE}
    assert grays[gsps.LABEL] == grays[gsps.BOXES] == 0xFFFF > grays[gsps.SQUARE]


@pytest.mark.parametrize("of", [several(), film(findings=(absent(),))], ids=["findings", "none"])
def test_the_label_lies_inside_the_film_clear_of_box_labels(of: Film) -> None:
    dataset = written(of)

    lines = [corners(item) for item in layer(dataset, gsps.LABEL).TextObjectSequence]
    line = samples.ROWS / 40
    left, top, right, bottom = np.array(lines).T
    assert (left.min(), bottom.max()) == (line, samples.ROWS - line)
    assert right.max() <= samples.COLUMNS - line
    assert (top[1:] >= bottom[:-1]).all()
    if wording.reported(of):
        for item in layer(dataset, gsps.BOXES).TextObjectSequence:
            first, upper, last, lower = corners(item)
            assert lower <= top.min() or upper >= bottom.max() or first >= right.max() or last <= left.min()


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (64, 64), (64, 9000), (9000, 64)])
@pytest.mark.parametrize("has_findings", [True, False])
def test_films_of_any_shape_have_their_label_inside(columns: int, rows: int, has_findings: bool) -> None:
    whole = Box(left=0, top=0, right=columns, bottom=rows)
    of = replace(film(sentences=False), columns=columns, rows=rows, analyzed=whole)

    dataset = written(replace(of, findings=(finding(boxes=(whole,)),)) if has_findings else of)

    for part in dataset.GraphicAnnotationSequence:
        for left, top, right, bottom in map(corners, part.get("TextObjectSequence", ())):
            assert 0 <= left < right <= columns
            assert 0 <= top < bottom <= rows


def test_a_caution_about_the_view_stands_on_the_film() -> None:
    dataset = written(replace(several(), notes=(Note.VIEW_UNKNOWN, Note.MIRRORED)))

    assert label(dataset)[2:] == ["The picture looks mirrored: check the sides."]


@pytest.mark.parametrize(("number", "expected"), [("7", 7), (None, 1), ("0", 1), ("-3", 1), ("99999999999", 1)])
def test_a_state_has_the_number_of_its_film(number: str | None, expected: int) -> None:
    header = cr()
    header.add_new("InstanceNumber", "LO", number)  # whatever was sent; as IS pydicom would refuse the last

    assert written(several(), header).InstanceNumber == expected


def test_modules_that_validators_complain_about_are_right() -> None:
    dataset = written(several())

    [area] = dataset.DisplayedAreaSelectionSequence
    assert list(area.DisplayedAreaTopLeftHandCorner) == [1, 1]
    assert list(area.DisplayedAreaBottomRightHandCorner) == [samples.COLUMNS, samples.ROWS]
    assert list(area.PresentationPixelAspectRatio) == [1, 1]
    assert dataset.ContentLabel == dataset.ContentLabel.upper()[:16]
    assert dataset.BodyPartExamined == "CHEST"
    assert "Laterality" not in dataset
    assert "PixelOriginInterpretation" not in dataset
    assert dataset.SeriesDescription == "AI boxes - RESEARCH, NOT FOR DIAGNOSIS"
    assert dataset.ContributingEquipmentSequence[0].DeviceUID == identity.device_uid(samples.MODEL)


@pytest.mark.parametrize("beside", [{}, {"PixelAspectRatio": ["1", "1"]}, {"PixelAspectRatio": ["3", "1"]}])
def test_pixels_that_are_not_square_stay_so_and_a_spacing_counts(beside: dict[str, object]) -> None:
    header = films.changed(cr(), beside)
    header.PixelSpacing = [0.2, 0.1]

    [area] = written(several(), header).DisplayedAreaSelectionSequence

    assert list(area.PresentationPixelAspectRatio) == [200, 100]


def test_a_real_negative_film_is_inverted_and_keeps_its_window() -> None:
    header = films.rg1()  # MONOCHROME1, PixelSpacing 0\0
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


def test_a_window_and_the_first_of_several_keep_their_explanation() -> None:
    header = cr()
    header.WindowCenter, header.WindowWidth = [600, 40], [1200.5, 80]
    header.WindowCenterWidthExplanation = ["LUNG", "BONE"]
    header.VOILUTFunction = "SIGMOID"

    [single] = written(several()).SoftcopyVOILUTSequence
    [voi] = written(several(), header).SoftcopyVOILUTSequence

    assert (single.WindowCenter, single.WindowWidth, single.WindowCenterWidthExplanation) == (2048, 4096, "WINDOW1")
    assert (voi.WindowCenter, voi.WindowWidth, voi.WindowCenterWidthExplanation) == (600, 1200.5, "LUNG")
    assert voi.VOILUTFunction == "SIGMOID"


@pytest.mark.parametrize(("center", "width"), [(math.nan, 100), (100, math.nan), (100, 0), (None, 50), (100, -3)])
def test_a_window_that_cannot_be_used_is_left_out(center: float | None, width: float) -> None:
    header = cr()
    header.WindowCenter, header.WindowWidth = center, width

    assert "SoftcopyVOILUTSequence" not in written(several(), header)


NARROW: dict[str, dict[str, object]] = {
    "fractions": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "VOILUTFunction": "LINEAR_EXACT"},
    "a falling slope": {"RescaleSlope": "-0.0001", "RescaleIntercept": "0.3", "VOILUTFunction": "LINEAR_EXACT"},
    "sigmoid": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "VOILUTFunction": "SIGMOID"},
    "signed": {"RescaleSlope": "0.0001", "PixelRepresentation": 1, "VOILUTFunction": "LINEAR_EXACT"},
    "no window": {"RescaleSlope": "0.0001", "RescaleIntercept": "-0.1", "WindowCenter": None, "WindowWidth": None},
}


@pytest.mark.parametrize("case", NARROW)
def test_a_window_below_1_is_written_as_a_table_that_shows_the_same(case: str, tmp_path: Path) -> None:
    header = films.changed(films.ramp(), {"WindowCenter": 0.1, "WindowWidth": 0.2, **NARROW[case]})
    path = films.saved(tmp_path, header)
    whole = Box(left=0, top=0, right=64, bottom=64)
    of = Film(source=str(header.SOPInstanceUID), columns=64, rows=64, analyzed=whole)
    stored = stored_picture(path)
    source = Source(header=read_header(path), thumbnail=stored.thumbnail)

    [dataset] = samples.datasets(gsps.write, report(of), {of.source: source}, BERLIN)

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


def test_a_modality_table_of_packed_bytes_keeps_its_values() -> None:
    header = cr()
    header.ModalityLUTSequence = [_table([4, 0, 8], bytes((0, 3, 100, 255)), vr="US")]

    [table] = written(several(), header).ModalityLUTSequence

    assert (list(table.LUTDescriptor), table.LUTData) == ([4, 0, 8], bytes((0, 3, 100, 255)))


@pytest.mark.parametrize(("is_implicit", "order"), [(True, "<"), (False, ">")], ids=["implicit", "big endian"])
def test_a_lookup_table_is_carried_from_any_byte_order(is_implicit: bool, order: str) -> None:
    header = cr()
    header.VOILUTSequence = [_table([4, 0, 16], struct.pack(f"{order}4H", 0, 9, 90, 60000), vr="US")]
    buffer = BytesIO()
    header.save_as(buffer, implicit_vr=is_implicit, little_endian=order == "<")
    read = dcmread(BytesIO(buffer.getvalue()), force=True)
    read.set_original_encoding(is_implicit, order == "<")

    [voi] = written(several(), read).SoftcopyVOILUTSequence

    assert voi.VOILUTSequence[0].LUTData == struct.pack("<4H", 0, 9, 90, 60000)


@pytest.mark.parametrize("descriptor", [[1024, 0, 12], [4, 0]])
def test_a_contradictory_lookup_table_gives_way_to_the_window(descriptor: list[int]) -> None:
    header = cr()
    header.VOILUTSequence = [_table(descriptor, struct.pack("<4H", 0, 9, 90, 900), vr="US")]

    [voi] = written(several(), header).SoftcopyVOILUTSequence

    assert "VOILUTSequence" not in voi
    assert voi.WindowWidth == 4096
