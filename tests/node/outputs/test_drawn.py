"""What is drawn on a film: by a presentation state that leaves it as it looked, and by a picture for archives."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, Side
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.dicom.identity import VERSION
from node.domain import Film, Reason
from node.outputs import gsps, impression, overlay, secondary_capture, wording
from node.outputs.document import save_bytes
from node.outputs.label_placement import place
from node.outputs.source import Picture, Source
from node.outputs.sr import report as sr
from tests.support import films, samples, validators
from tests.support.decoded import stored_picture
from tests.support.documents import contents, everything
from tests.support.output_texts import DrawnTexts
from tests.support.samples import (
    BERLIN,
    EDEMA,
    absent,
    bare,
    cr,
    film,
    finding,
    received,
    report,
    several,
    sources,
    unread,
)


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


def test_each_film_that_was_read_has_a_state_with_the_boxes_of_its_report() -> None:
    of = report(several(), unread(2), film(3, findings=(absent(),)))
    headers = sources(cr(1), bare(2), cr(3))
    documents = samples.datasets(sr.write, of, headers, BERLIN)[:2]
    states = samples.datasets(gsps.write, of, received(*headers.values()), BERLIN)

    drawn, reported = (
        [regions_of(dcmread(BytesIO(save_bytes(each)))) for each in made]
        for regions_of, made in ((regions, states), (reported_regions, documents))
    )
    for found, expected, count in zip(drawn, reported, (4, 0), strict=True):
        assert found.keys() == expected.keys() and len(found) == count
        assert all(box == pytest.approx(expected[uid], abs=1e-3) for uid, box in found.items())
    assert validators.dciodvfy(states[1]) == validators.dcmpschk(states[1]) == []
    assert validators.unknown_warnings(states[0]) == []
    assert parse_header(states[0]).is_own


@pytest.mark.parametrize(
    ("state", "box"),
    [
        (FindingState.INDETERMINATE, Box(left=150.5, top=900, right=700, bottom=1700)),
        (FindingState.UNCALIBRATED, Box(left=3, top=4, right=5, bottom=6)),
    ],
)
def test_a_box_to_be_reviewed_is_drawn_as_dashes(state: FindingState, box: Box) -> None:
    left, top, right, bottom = box.edges

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
    assert right.max() == (1956 if corner[1] == -1 else 726)


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


def test_a_state_has_the_number_and_the_pixel_spacing_of_its_film() -> None:
    for number, expected in (("7", 7), (None, 1), ("0", 1), ("-3", 1), ("99999999999", 1)):
        header = cr()
        header.add_new("InstanceNumber", "LO", number)  # whatever was sent; as IS pydicom would refuse the last
        assert written(several(), header).InstanceNumber == expected
    for ratio in (None, ["1", "1"], ["3", "1"]):
        header = films.changed(cr(), {"PixelSpacing": [0.2, 0.1], "PixelAspectRatio": ratio})
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


def test_the_first_window_keeps_its_explanation_and_an_unusable_one_is_left_out() -> None:
    header = cr()
    header.WindowCenter, header.WindowWidth = [600, 40], [1200.5, 80]
    header.WindowCenterWidthExplanation = ["LUNG", "BONE"]
    header.VOILUTFunction = "SIGMOID"

    [voi] = written(several(), header).SoftcopyVOILUTSequence

    assert (voi.WindowCenter, voi.WindowWidth, voi.WindowCenterWidthExplanation) == (600, 1200.5, "LUNG")
    assert voi.VOILUTFunction == "SIGMOID"
    for center, width in ((math.nan, 100), (100, math.nan), (100, 0), (None, 50), (100, -3)):
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


def test_a_display_table_of_12_bits_is_spread_over_16_and_a_modality_table_of_packed_bytes_keeps_its_values() -> None:
    header = cr()
    header.ModalityLUTSequence = [_table([4, 0, 8], bytes((0, 3, 100, 255)), vr="US")]
    header.VOILUTSequence = [_table([4, 0, 12], struct.pack("<4H", 0, 1, 2048, 4095), vr="US")]

    dataset = written(several(), header)

    [voi] = dataset.SoftcopyVOILUTSequence
    assert list(voi.VOILUTSequence[0].LUTDescriptor) == [4, 0, 16]
    assert struct.unpack("<4H", voi.VOILUTSequence[0].LUTData) == (0, 16, 32776, 65535)
    [table] = dataset.ModalityLUTSequence
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


def test_a_contradictory_lookup_table_gives_way_to_the_window() -> None:
    for descriptor in ([1024, 0, 12], [4, 0]):
        table = _table(descriptor, struct.pack("<4H", 0, 9, 90, 900), vr="US")
        [voi] = written(several(), films.changed(cr(), {"VOILUTSequence": [table]})).SoftcopyVOILUTSequence
        assert "VOILUTSequence" not in voi
        assert voi.WindowWidth == 4096


GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def film_part(image: Image.Image) -> np.ndarray:
    """Return the part of a drawn picture that is the film, which is gray at its left edge: [row, column, color]."""
    pixels = np.asarray(image)
    rows = np.flatnonzero((pixels[:, 0] == GRAY[0, 0]).all(axis=1))
    return pixels[rows.min() : rows.max() + 1]


def colored(image: Image.Image) -> np.ndarray:
    """Return where the film of a drawn picture is not gray: [row, column]."""
    return np.asarray(np.ptp(film_part(image).astype(int), axis=2) > 40)


def test_a_large_film_is_shrunk_and_its_boxes_with_it() -> None:
    box = Box(left=1000, top=800, right=1600, bottom=1400)

    image = overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),)))

    assert film_part(image).shape[1] == overlay.LONGEST_SIDE
    scale = overlay.LONGEST_SIDE / samples.COLUMNS
    row = colored(image)[round(1200 * scale)]
    found = np.flatnonzero(row[round(900 * scale) : round(1700 * scale)]) + round(900 * scale)
    assert found.min() == pytest.approx(1000 * scale, abs=1)
    assert found.max() + 1 == pytest.approx(1600 * scale, abs=1)


def test_present_boxes_are_solid_and_what_is_doubtful_or_analyzed_is_dashed() -> None:
    box = Box(left=600, top=400, right=1400, bottom=1400)
    scale = overlay.LONGEST_SIDE / samples.COLUMNS
    column, rows = round(600 * scale) + 1, slice(round(500 * scale), round(1300 * scale))

    present = overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),)))
    doubtful = overlay.draw(GRAY, film(findings=(finding(boxes=(box,), state=FindingState.INDETERMINATE),)))

    assert 0.3 < colored(present)[400:1100, round(120 * scale) + 1].mean() < 0.7  # the square
    assert colored(present)[rows, column].all()
    assert 0.3 < colored(doubtful)[rows, column].mean() < 0.7
    red, green, _ = film_part(present)[rows.start, column]
    assert red > 2 * green, "as the legend says: red"
    drawn = film_part(doubtful)[rows, column][colored(doubtful)[rows, column]].mean(axis=0)
    assert drawn[1] > 0.7 * drawn[0] > 2 * drawn[2], "and yellow"


def test_the_impression_is_written_above_the_film(monkeypatch: pytest.MonkeyPatch) -> None:
    of = film(findings=(finding(), finding(EDEMA, state=FindingState.UNCALIBRATED, side=Side.BILATERAL)))
    written = DrawnTexts(monkeypatch)

    overlay.draw(GRAY, of, made=wording.made_by(samples.report(of)))

    assert written.lines[-1] == f"ChEX Node {VERSION}, model phantom 1.2.0 (weights abababababab)"
    assert "Right pleural effusion 83 %" in written.lines  # the label of the box
    above = written.lines[written.lines.index("AI RESEARCH - NOT FOR DIAGNOSIS") + 1 :]
    assert above[:2] == impression.of_film(of)[:2]
    assert "yellow dashes: possible, please review" in above[-2]
    assert written.cut_off() == []


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.UNCALIBRATED])
def test_the_head_names_every_reported_finding_also_without_a_box(
    state: FindingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuple(
        finding(replace(EDEMA, meaning=f"Finding {number}"), state=state, boxes=(), side=None) for number in range(9)
    )
    written = DrawnTexts(monkeypatch)

    overlay.draw(GRAY, film(findings=found))

    text = " ".join(written.lines)
    assert [number for number in range(9) if f"inding {number}, 83 %" not in text] == []
    assert "no box: finding 0, finding 1, " in text
    assert "red:" not in text and "yellow" not in text  # the legend names no line that is not drawn
    assert written.cut_off() == []


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (several(), overlay.NOT_DRAWN),
        (film(findings=(samples.uncalibrated(),)), overlay.NOT_DRAWN),
        (film(), overlay.NOT_DRAWN),
        (unread(1, Reason.LATERAL), wording.not_processed(unread(1, Reason.LATERAL))),
    ],
)
def test_a_head_says_why_a_film_was_not_read_or_not_drawn_and_never_normal(
    of: Film, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = DrawnTexts(monkeypatch)

    overlay.draw_head(of)

    text = " ".join(written.lines)
    assert text.startswith("AI RESEARCH - NOT FOR DIAGNOSIS") and text.endswith(why)
    assert "normal" not in text.replace("This is not a report of a normal film", "")
    assert written.cut_off() == []


def test_only_characters_of_the_font_are_drawn() -> None:
    for text, expected in (
        ("Pleural effusion, 83 %", "Pleural effusion, 83 %"),
        ("Größe \u2013 Ödem naïve", "Grosse - Odem naive"),
        ("a\u0301 5\u00a0%\tx", "a 5 % x"),
        ("胸水 1", "?? 1"),
        ("½", "1\u20442"),
    ):
        assert overlay.drawable(text) == expected
        assert all(overlay.is_drawable(character) for character in expected)
    assert not overlay.is_drawable("胸")


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (3, 900), (4000, 20), (200, 900), (700, 2100)])
def test_odd_films_are_drawn_and_no_text_is_cut_off(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Box(left=0, top=0, right=columns, bottom=rows)
    long = replace(EDEMA, meaning="Enlarged cardiomediastinum or another finding with a long name")
    found = (finding(boxes=(whole,)), finding(long, boxes=(whole,), state=FindingState.UNCALIBRATED))
    written = DrawnTexts(monkeypatch)

    of = replace(film(findings=found), columns=columns, rows=rows, analyzed=whole)
    image = overlay.draw(np.zeros((rows, columns), np.uint8), of)

    if min(columns, rows) < 30:  # no letter is so small
        assert max(image.size) <= overlay.LONGEST_SIDE
    else:
        assert written.cut_off() == []


def test_pixels_that_are_not_square_become_square() -> None:
    box = Box(left=600, top=400, right=1400, bottom=800)

    of = film(findings=(finding(boxes=(box,)),))

    plain, tall = (overlay.draw(GRAY, of, shape=shape) for shape in ((1, 1), (2, 1)))

    def ratio(image: Image.Image) -> float:
        pixels = film_part(image)
        return float(pixels.shape[0] / pixels.shape[1])

    assert ratio(plain) == pytest.approx(samples.ROWS / samples.COLUMNS, rel=0.01)
    assert ratio(tall) == pytest.approx(2 * samples.ROWS / samples.COLUMNS, rel=0.01)
    assert max(film_part(tall).shape) <= overlay.LONGEST_SIDE


PICTURE = Box(left=0, top=0, right=1000, bottom=800)
SHARE = st.floats(0, 1)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    left, top = 990 * draw(SHARE), 790 * draw(SHARE)
    right, bottom = left + 1 + (999 - left) * draw(SHARE), top + 1 + (799 - top) * draw(SHARE)
    return Box(left=left, top=top, right=right, bottom=bottom)


def overlap(label: Box, other: Box) -> bool:
    """Say whether two labels cover one another by more than a thousandth of a pixel."""
    across = min(label.right, other.right) - max(label.left, other.left)
    return across > 1e-3 and min(label.bottom, other.bottom) - max(label.top, other.top) > 1e-3


def gap(label: Box, box: Box) -> float:
    across = max(box.left - label.right, label.left - box.right, 0)
    return across + max(box.top - label.bottom, label.top - box.bottom, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(boxes(), st.floats(10, 1500)), max_size=20), st.floats(4, 90), st.lists(boxes(), max_size=2))
def test_labels_stand_near_their_box_inside_the_picture_and_off_all_texts(
    labeled: list[tuple[Box, float]], height: float, taken: list[Box]
) -> None:
    places = place([box for box, _ in labeled], [(width, height) for _, width in labeled], within=PICTURE, taken=taken)

    texts = list(taken)
    for label, (box, width) in zip(places, labeled, strict=True):
        if label is None:
            continue
        assert not any(overlap(label, other) for other in texts)
        assert min(label.left, label.top) >= 0 and label.right <= 1000.001 and label.bottom <= 800.001
        assert (label.right - label.left, label.bottom - label.top) == pytest.approx((min(width, 1000), height))
        assert gap(label, box) <= 3 * height + 1e-3
        texts.append(label)


@settings(max_examples=200, deadline=None)
@given(st.lists(boxes(), min_size=1, max_size=4))
def test_four_labels_find_places_wherever_their_boxes_are(found: list[Box]) -> None:
    assert None not in place(found, [(300, 20)] * len(found), within=PICTURE)


def at(left: float, top: float, right: float, bottom: float) -> Box:
    return Box(left=left, top=top, right=right, bottom=bottom)


COINCIDING = at(100, 100, 300, 300)


@pytest.mark.parametrize(
    ("found", "within", "expected"),
    [
        ([at(100, 100, 300, 200)], PICTURE, [(100, 80)]),
        ([at(100, 0, 300, 200)], PICTURE, [(100, 200)]),  # no room above: below
        ([at(100, 0, 300, 800)], PICTURE, [(100, 0)]),  # nor below: inside
        ([at(900, 100, 1000, 200)], PICTURE, [(850, 80)]),  # not beyond the right edge
        ([at(900, 0, 1000, 200)], PICTURE, [(850, 200)]),
        (
            [at(100, 200, 400, 400), at(120, 150, 420, 195)],
            PICTURE,
            [(100, 400), (120, 130)],
        ),  # off outlines
        ([COINCIDING] * 4, PICTURE, [(100, 80), (100, 300), (100, 60), (100, 320)]),
        ([at(15, 7, 135, 27)] * 2, at(0, 0, 150, 33), [(0, 0), None]),  # no place near its box: left out
    ],
)
def test_a_label_stands_above_its_box_else_below_it(
    found: list[Box], within: Box, expected: list[tuple[float, float] | None]
) -> None:
    places = place(found, [(150, 20)] * len(found), within=within)

    assert [label and (label.left, label.top) for label in places] == expected


# The secondary capture that carries the picture, for archives that show nothing else.


def captures(*films: Film, picture: Picture | None = GRAY, header: Dataset | None = None) -> list[Dataset]:
    """Write the captures of films, and read them back from their bytes."""
    headers = [header or cr(1), *(cr(number) for number in range(2, 5))]
    objects = samples.datasets(secondary_capture.write, report(*films), received(*headers, picture=picture), BERLIN)
    return [dcmread(BytesIO(save_bytes(dataset))) for dataset in objects]


def test_the_pixels_are_those_that_were_drawn() -> None:
    """Also of a film that was not read, or that cannot be decoded again."""
    lateral, made = unread(1, Reason.LATERAL), wording.made_by(report(several()))
    [drawn], [head], [undecoded] = (
        captures(several()),
        captures(lateral, picture=None),
        captures(several(), picture=None),
    )

    for dataset, image in (
        (drawn, overlay.draw(GRAY, several(), made=made)),
        (head, overlay.draw_head(lateral, made=made)),
        (undecoded, overlay.draw_head(several(), made=made)),
    ):
        assert dataset.PhotometricInterpretation == "RGB"
        assert np.array_equal(dataset.pixel_array, np.asarray(image))
    assert head.SourceImageSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert "BodyPartExamined" not in head
    assert "not drawn" in head.DerivationDescription
    assert validators.dciodvfy(head) == []


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(["L", "F"], ["L", "F"]), (["P", "FR"], ["P", "FR"]), (["L"], None), (["left", "F"], None), (None, None)],
)
def test_the_film_keeps_its_directions_and_that_it_lost_something(
    sent: list[str] | None, expected: list[str] | None
) -> None:
    header = cr(1)
    header.add_new("PatientOrientation", "LO", sent)
    header.LossyImageCompression, header.LossyImageCompressionRatio = "01", "12.5"
    header.LossyImageCompressionMethod = "ISO_10918_1"

    [drawn], [head] = captures(several(), header=header), captures(several(), header=header, picture=None)

    assert (list(drawn.PatientOrientation) if drawn.PatientOrientation else None) == expected
    assert not head.PatientOrientation
    assert (drawn.LossyImageCompression, drawn.LossyImageCompressionRatio) == ("01", 12.5)
    assert drawn.LossyImageCompressionMethod == "ISO_10918_1"
    assert "LossyImageCompression" not in head
    assert validators.dciodvfy(drawn) == []


@pytest.mark.parametrize(
    ("said", "has_overlay", "expected"),
    [("YES", False, "YES"), ("NO", False, "NO"), ("NO", True, None), ("MAYBE", False, None), (None, False, None)],
)
def test_a_capture_says_what_its_film_says_of_burned_in_annotation(
    said: str | None, has_overlay: bool, expected: str | None
) -> None:
    header = films.changed(cr(1), {"BurnedInAnnotation": said})
    if has_overlay:
        header.add_new(0x60000010, "US", 1)

    [drawn], [head] = captures(several(), header=header), captures(several(), header=header, picture=None)

    assert (drawn.get("BurnedInAnnotation"), head.BurnedInAnnotation) == (expected, "NO")
