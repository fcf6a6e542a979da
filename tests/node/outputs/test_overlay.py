"""The picture of a film: boxes where they belong, labels that can be read, and the object that carries it."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, Side
from node.dicom.film_header import parse_header
from node.dicom.identity import VERSION
from node.domain import Film, Reason
from node.outputs import impression, overlay, secondary_capture, wording
from node.outputs.document import save_bytes
from node.outputs.label_placement import place
from node.outputs.source import Picture
from tests.support import samples, validators
from tests.support.documents import film_of
from tests.support.output_texts import DrawnTexts
from tests.support.samples import BERLIN, EDEMA, absent, bare, cr, film, finding, received, report, several, unread

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


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED])
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


@pytest.mark.parametrize("of", [several(), film(findings=(samples.uncalibrated(),)), film(), unread(1, Reason.LATERAL)])
def test_no_head_concludes_normal(of: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    written = DrawnTexts(monkeypatch)

    overlay.draw_head(of)

    text = " ".join(written.lines)
    assert text.startswith("AI RESEARCH - NOT FOR DIAGNOSIS")
    assert "normal" not in text.replace("This is not a report of a normal film", "")
    assert written.cut_off() == []


def test_a_head_says_why_a_film_was_not_read_or_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    written = DrawnTexts(monkeypatch)
    overlay.draw_head(unread(1, Reason.LATERAL))
    assert " ".join(written.lines[1:]) == wording.not_processed(unread(1, Reason.LATERAL))

    written = DrawnTexts(monkeypatch)
    overlay.draw_head(several())
    assert " ".join(written.lines).endswith(overlay.NOT_DRAWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pleural effusion, 83 %", "Pleural effusion, 83 %"),
        ("Größe \u2013 Ödem naïve", "Grosse - Odem naive"),
        ("a\u0301 5\u00a0%\tx", "a 5 % x"),
        ("胸水 1", "?? 1"),
        ("½", "1\u20442"),
    ],
)
def test_only_characters_of_the_font_are_drawn(text: str, expected: str) -> None:
    assert overlay.drawable(text) == expected
    assert all(overlay.is_drawable(character) for character in expected)
    assert not overlay.is_drawable("胸")


def test_only_boxes_and_their_labels_cover_the_film() -> None:
    whole = Box(left=0, top=0, right=samples.COLUMNS, bottom=samples.ROWS)
    image = overlay.draw(GRAY, replace(film(findings=(absent(),)), analyzed=whole))

    pixels = np.asarray(image)
    gray = (pixels == GRAY[0, 0]).all(axis=2)
    scaled = round(samples.ROWS * overlay.LONGEST_SIDE / samples.COLUMNS)
    assert gray[:, 700].sum() >= scaled - 8  # but for the dashes of the square


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


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((100, 100, 300, 200), (100, 80)),
        ((100, 0, 300, 200), (100, 200)),  # no room above: below
        ((100, 0, 300, 800), (100, 0)),  # nor below: inside
        ((900, 100, 1000, 200), (850, 80)),  # not beyond the right edge
        ((900, 0, 1000, 200), (850, 200)),
    ],
)
def test_a_label_stands_above_its_box_else_below_it(
    box: tuple[float, float, float, float], expected: tuple[float, float]
) -> None:
    left, top, right, bottom = box

    [label] = place([Box(left=left, top=top, right=right, bottom=bottom)], [(150, 20)], within=PICTURE)

    assert label is not None
    assert (label.left, label.top) == expected


def test_a_label_keeps_off_the_outline_of_another_box() -> None:
    lower, upper = Box(left=100, top=200, right=400, bottom=400), Box(left=120, top=150, right=420, bottom=195)

    places = place([lower, upper], [(150, 20)] * 2, within=PICTURE)

    assert [label and (label.left, label.top) for label in places] == [(100, 400), (120, 130)]


def test_labels_of_coinciding_boxes_stand_above_and_below_it() -> None:
    box = Box(left=100, top=100, right=300, bottom=300)

    places = place([box] * 4, [(120, 20)] * 4, within=PICTURE)

    assert [label and (label.left, label.top) for label in places] == [(100, 80), (100, 300), (100, 60), (100, 320)]


def test_a_label_that_finds_no_place_near_its_box_is_left_out() -> None:
    box = Box(left=10, top=10, right=90, bottom=40)

    first, second = place([box, box], [(100, 30)] * 2, within=Box(left=0, top=0, right=100, bottom=50))

    assert first is not None and second is None


# The secondary capture that carries the picture, for archives that show nothing else.


def written(*films: Film, picture: Picture | None = GRAY, header: Dataset | None = None) -> list[Dataset]:
    """Write the captures of films, and read them back from their bytes."""
    headers = [header or cr(1), *(cr(number) for number in range(2, 5))]
    objects = samples.datasets(secondary_capture.write, report(*films), received(*headers, picture=picture), BERLIN)
    return [dcmread(BytesIO(save_bytes(dataset))) for dataset in objects]


@pytest.mark.parametrize("of", [several(), film(findings=(absent(),))], ids=["findings", "none"])
def test_a_read_film_has_one_capture(of: Film) -> None:
    [dataset] = written(of)

    assert dataset.InstanceNumber == 1
    assert dataset.SOPClassUID == "1.2.840.10008.5.1.4.1.1.7"
    assert (dataset.ConversionType, dataset.BurnedInAnnotation) == ("WSD", "NO")
    assert list(dataset.ImageType) == ["DERIVED", "SECONDARY"]
    assert dataset.SeriesDescription == "AI pictures - RESEARCH, NOT FOR DIAGNOSIS"
    assert dataset.DerivationDescription.startswith("AI RESEARCH - NOT FOR DIAGNOSIS")
    [source] = dataset.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == samples.film_uid(1)
    assert (dataset.PatientID, str(dataset.PatientName)) == ("4711", "Müller^Jörg")
    assert validators.unknown_warnings(dataset) == []


def test_the_pixels_are_those_that_were_drawn() -> None:
    """Also of a film that was not read, or that cannot be decoded again."""
    lateral, made = unread(1, Reason.LATERAL), wording.made_by(report(several()))
    [drawn], [head], [undecoded] = written(several()), written(lateral, picture=None), written(several(), picture=None)

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


def test_each_film_has_a_series_of_its_own_that_is_known_again() -> None:
    objects = written(several(), unread(2), film(3), header=bare(1))

    assert {str(dataset.PatientID) for dataset in objects} == {"4711"}, "that of another film, if its own names none"
    assert [film_of(dataset) for dataset in objects] == [samples.film_uid(number) for number in (1, 2, 3)]
    assert len({dataset.SeriesInstanceUID for dataset in objects}) == 3
    assert all(parse_header(dataset).is_own for dataset in objects)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(["L", "F"], ["L", "F"]), (["P", "FR"], ["P", "FR"]), (["L"], None), (["left", "F"], None), (None, None)],
)
def test_the_film_keeps_its_directions(sent: list[str] | None, expected: list[str] | None) -> None:
    header = cr(1)
    header.add_new("PatientOrientation", "LO", sent)

    [drawn], [head] = written(several(), header=header), written(several(), header=header, picture=None)

    assert (list(drawn.PatientOrientation) if drawn.PatientOrientation else None) == expected
    assert not head.PatientOrientation
    assert validators.dciodvfy(drawn) == []


def test_a_film_compressed_with_loss_stays_one() -> None:
    header = cr(1)
    header.LossyImageCompression = "01"
    header.LossyImageCompressionRatio = "12.5"
    header.LossyImageCompressionMethod = "ISO_10918_1"

    [drawn], [head] = written(several(), header=header), written(several(), header=header, picture=None)

    assert (drawn.LossyImageCompression, drawn.LossyImageCompressionRatio) == ("01", 12.5)
    assert drawn.LossyImageCompressionMethod == "ISO_10918_1"
    assert "LossyImageCompression" not in head
    assert validators.dciodvfy(drawn) == []
