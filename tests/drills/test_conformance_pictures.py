"""Boxes are found in pictures of a viewer, and a box that is off, broken or gone is told from one at its place."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from models.contract import Box
from tests.drills.conformance import pictures
from tests.drills.conformance.pictures import Picture
from tests.support import films

pytestmark = pytest.mark.drill(part="conformance")

WHERE = Box(left=100, top=80, right=220, bottom=190)
WIDTH = 400.0


@pytest.mark.parametrize(
    ("right", "down", "deviation"),
    [(0, 0, 0.0), (-12, 0, 0.03), (12, 0, 0.03), (60, 60, None)],
    ids=["at its place", "left of it", "right of it", "elsewhere"],
)
def test_how_far_a_box_is_off_is_measured(right: int, down: int, deviation: float | None) -> None:
    """Beside a label and another box that crosses it."""
    image = Image.new("1", (500, 400))
    draw = ImageDraw.Draw(image)
    left, top, end, bottom = WHERE.edges
    draw.rectangle((left + right, top + down, end + right, bottom + down), outline=1)
    draw.text((112, 84), "Right pleural effusion 83 %", fill=1)
    draw.rectangle((150, 110, 300, 300), outline=1)

    found = pictures.find(np.asarray(image, dtype=bool), WHERE, width=WIDTH)

    assert found.deviation == (None if deviation is None else pytest.approx(deviation, abs=0.004))


def test_dashes_are_told_from_a_solid_line() -> None:
    image = Image.new("1", (500, 400))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = map(int, WHERE.edges)
    for x in range(left, right, 12):
        draw.line((x, top, x + 7, top), fill=1)
        draw.line((x, bottom, x + 7, bottom), fill=1)
    for y in range(top, bottom, 12):
        draw.line((left, y, left, y + 7), fill=1)
        draw.line((right, y, right, y + 7), fill=1)

    outline = pictures.find(np.asarray(image, dtype=bool), WHERE, width=WIDTH)

    assert outline.deviation is not None
    assert 0.5 < outline.covered < 0.8


def test_the_calibration_film_tells_where_a_film_lies() -> None:
    film = films.thumbnail()
    pixels = (pictures.calibration(film).pixel_array // 16).astype(np.uint8)

    def shown(pixels: Picture) -> Picture:
        screen = Image.new("L", (600, 500))
        screen.paste(Image.fromarray(pixels).resize((462, 490)), (60, 4))
        return np.asarray(screen.convert("RGB"))

    placing = pictures.locate(shown(pixels), film)

    edges = placing.to_screen(Box(left=0, top=0, right=film.Columns, bottom=film.Rows)).edges
    assert edges == pytest.approx((60, 4, 522, 494), abs=2.5)
    with pytest.raises(AssertionError, match="turns or mirrors"):
        pictures.locate(shown(pixels[:, ::-1]), film)


@pytest.mark.parametrize(("ground", "least", "most"), [(30, 12, 21), (236, 1.0, 1.3)])
def test_white_letters_stand_out_on_dark_ground_alone(ground: int, least: float, most: float) -> None:
    bare = Image.new("RGB", (300, 100), (ground,) * 3)
    labeled = bare.copy()
    draw = ImageDraw.Draw(labeled)
    draw.text((20, 40), "Right pleural effusion 83 %", fill=(255,) * 3)
    draw.line((0, 45, 300, 45), fill=(90,) * 3)  # a box that crosses the label

    where = Box(left=15, top=35, right=200, bottom=60)
    contrast = pictures.contrast(np.asarray(labeled), np.asarray(bare), where)

    assert least < contrast < most
    assert pictures.contrast(np.asarray(bare), np.asarray(bare), where) == 1.0
