"""The overlay picture: boxes where they belong, labels that can be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from node.domain import Box, Film, FindingState, Side
from node.outputs import impression, overlay
from tests import samples
from tests.samples import EDEMA, absent, film, finding

GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def colored(image: Image.Image) -> np.ndarray:
    """Return where a picture is not gray: [row, column]."""
    pixels = np.asarray(image).astype(int)
    return np.asarray(np.ptp(pixels, axis=2) > 40)


def test_a_large_film_is_shrunk_and_its_boxes_with_it() -> None:
    box = Box(left=1000, top=800, right=1600, bottom=1400)

    image = overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),)))

    assert max(image.size) == overlay.LONGEST_SIDE
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

    present = np.asarray(overlay.draw(GRAY, film(findings=(finding(boxes=(box,)),))))
    doubtful = overlay.draw(GRAY, film(findings=(finding(boxes=(box,), state=FindingState.INDETERMINATE),)))

    assert 0.3 < colored(doubtful)[rows, column].mean() < 0.7
    assert tuple(present[rows.start, column]) not in set(map(tuple, np.asarray(doubtful)[rows, column]))


def test_absent_findings_are_not_drawn() -> None:
    boxless = replace(absent(), boxes=())

    drawn, without = (np.asarray(overlay.draw(GRAY, film(findings=(found,)))) for found in (absent(), boxless))

    assert np.array_equal(drawn, without)


def test_the_impression_is_written_below_the_film(monkeypatch: pytest.MonkeyPatch) -> None:
    of = film(findings=(finding(), finding(EDEMA, state=FindingState.UNCALIBRATED, side=Side.BILATERAL)))
    written: list[str] = []
    whole = ImageDraw.ImageDraw.text

    def text(canvas: ImageDraw.ImageDraw, xy: tuple[float, float], value: str, **style: object) -> None:
        written.append(value)
        whole(canvas, xy, value, **style)  # type: ignore[arg-type]  # handed through as it came

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    overlay.draw(GRAY, of)

    assert "Right pleural effusion 83 %" in written  # the label of the box
    caption = written[written.index("AI RESEARCH - NOT FOR DIAGNOSIS") + 1 :]
    assert caption[:2] == impression.of_film(of)[:2]
    assert "yellow dashes: to be reviewed" in caption[-1]


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (32, 48), (3, 900), (4000, 20)])
def test_odd_films_are_drawn(columns: int, rows: int) -> None:
    whole = Box(left=0, top=0, right=columns, bottom=rows)
    of = Film(source="1.2", columns=columns, rows=rows, analyzed=whole, findings=(finding(boxes=(whole,)),))

    image = overlay.draw(np.zeros((rows, columns), np.uint8), of)

    assert max(image.size) <= overlay.LONGEST_SIDE


def test_the_same_film_gives_the_same_picture() -> None:
    of = film(findings=(finding(), finding(EDEMA)))

    assert overlay.draw(GRAY, of).tobytes() == overlay.draw(GRAY, of).tobytes()
