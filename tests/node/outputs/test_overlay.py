"""The overlay picture: boxes where they belong, labels that can be read and cover nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from models.contract import Box, FindingState, Side
from node.dicom.identity import VERSION
from node.domain import Film, Reason
from node.outputs import impression, overlay, wording
from node.outputs.label_placement import place
from tests.support import samples
from tests.support.drawn_texts import DrawnTexts
from tests.support.samples import EDEMA, absent, film, finding, several, uncalibrated, unread

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


def test_the_analyzed_square_is_dashed_and_present_boxes_solid() -> None:
    box = Box(left=600, top=400, right=1400, bottom=1400)

    marks = colored(overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),))))

    scale = overlay.LONGEST_SIDE / samples.COLUMNS
    square = marks[400:1100, round(120 * scale) + 1]
    solid = marks[round(500 * scale) : round(1300 * scale), round(600 * scale) + 1]
    assert 0.3 < square.mean() < 0.7
    assert solid.all()


def test_an_indeterminate_box_is_dashed_in_another_color() -> None:
    box = Box(left=600, top=400, right=1400, bottom=1400)
    scale = overlay.LONGEST_SIDE / samples.COLUMNS
    column, rows = round(600 * scale) + 1, slice(round(500 * scale), round(1300 * scale))

    present = film_part(overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),))))
    doubtful = overlay.draw(GRAY, film(findings=(finding(boxes=(box,), state=FindingState.INDETERMINATE),)))

    assert 0.3 < colored(doubtful)[rows, column].mean() < 0.7
    assert tuple(present[rows.start, column]) not in set(map(tuple, film_part(doubtful)[rows, column]))


def test_absent_findings_are_not_drawn() -> None:
    boxless = replace(absent(), boxes=())

    drawn, without = (np.asarray(overlay.draw(GRAY, film(findings=(found,)))) for found in (absent(), boxless))

    assert np.array_equal(drawn, without)


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


@pytest.mark.parametrize("of", [several(), film(findings=(uncalibrated(),)), film(), unread(1, Reason.LATERAL)])
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


@pytest.mark.parametrize(("columns", "rows"), [(200, 900), (700, 2100), (2100, 300), (90, 90)])
def test_no_text_is_cut_off(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Box(left=0, top=0, right=columns, bottom=rows)
    long = replace(EDEMA, meaning="Enlarged cardiomediastinum or another finding with a long name")
    found = (finding(boxes=(whole,)), finding(long, boxes=(whole,), state=FindingState.UNCALIBRATED))
    written = DrawnTexts(monkeypatch)

    of = replace(film(findings=found), columns=columns, rows=rows, analyzed=whole)
    overlay.draw(np.zeros((rows, columns), np.uint8), of)

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


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (32, 48), (3, 900), (4000, 20)])
def test_odd_films_are_drawn(columns: int, rows: int) -> None:
    whole = Box(left=0, top=0, right=columns, bottom=rows)
    of = Film(source="1.2", columns=columns, rows=rows, analyzed=whole, findings=(finding(boxes=(whole,)),))

    image = overlay.draw(np.zeros((rows, columns), np.uint8), of)

    assert max(image.size) <= overlay.LONGEST_SIDE


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


def test_a_label_larger_than_the_picture_is_made_to_fit_it() -> None:
    picture = Box(left=0, top=0, right=40, bottom=30)

    [label] = place([Box(left=1, top=1, right=3, bottom=3)], [(500, 90)], within=picture)

    assert label == picture
