"""The overlay picture: boxes where they belong, labels that can be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from models.contract import Box, FindingState, Side
from node.domain import Film, Reason
from node.outputs import impression, overlay, wording
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

    overlay.draw(GRAY, of)

    assert "Right pleural effusion 83 %" in written.lines  # the label of the box
    above = written.lines[written.lines.index("AI RESEARCH - NOT FOR DIAGNOSIS") + 1 :]
    assert above[:2] == impression.of_film(of)[:2]
    assert "yellow dashes: possible, please review" in above[-1]
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


def test_the_same_film_gives_the_same_picture() -> None:
    of = film(findings=(finding(), finding(EDEMA)))

    assert overlay.draw(GRAY, of).tobytes() == overlay.draw(GRAY, of).tobytes()
