"""Boxes between the square the network saw and the stored film: there and back, whatever the turn."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import Box, Side
from node.read.decoding import side_of, turned
from node.read.framing import Framing, Turn, leaving

TURNS = [Turn(transpose=t, mirror_columns=c, mirror_rows=r) for t, c, r in product((False, True), repeat=3)]
UNIT = st.floats(0.0, 1.0)


def central(columns: int, rows: int) -> Box:
    """The exact central square of an upright film."""
    side = min(columns, rows)
    left, top = (columns - side) / 2, (rows - side) / 2
    return Box(left=left, top=top, right=left + side, bottom=top + side)


def resized(columns: int, rows: int) -> Box:
    """The square of a film whose short side is resized to 256 with rounded sides, as spec §1 does."""
    short = min(columns, rows)
    wide, high = round(columns * 256 / short), round(rows * 256 / short)
    left, top = (wide - 256) // 2 * columns / wide, (high - 256) // 2 * rows / high
    return Box(left=left, top=top, right=left + 256 * columns / wide, bottom=top + 256 * rows / high)


def whole(columns: int, rows: int) -> Box:
    return Box(left=0, top=0, right=columns, bottom=rows)


@st.composite
def framings(draw: st.DrawFn) -> Framing:
    columns, rows = draw(st.integers(64, 6000)), draw(st.integers(64, 6000))
    turn = draw(st.sampled_from(TURNS))
    rule = draw(st.sampled_from((central, resized, whole)))
    square = rule(rows, columns) if turn.transpose else rule(columns, rows)
    return Framing(columns=columns, rows=rows, square=square, turn=turn)


@st.composite
def unit_boxes(draw: st.DrawFn) -> tuple[float, float, float, float]:
    """Boxes inside the unit square, wide enough to be a pixel of the smallest film."""
    width, height = draw(st.floats(1 / 32, 1.0)), draw(st.floats(1 / 32, 1.0))
    return (width / 2 + draw(UNIT) * (1 - width), height / 2 + draw(UNIT) * (1 - height), width, height)


@given(framings(), unit_boxes())
def test_boxes_survive_the_way_to_the_film_and_back(framing: Framing, unit: tuple[float, float, float, float]) -> None:
    box = framing.to_image(unit)

    assert framing.to_unit(box) == pytest.approx(unit, rel=1e-6, abs=1e-9)
    assert framing.to_unit(framing.analyzed) == pytest.approx((0.5, 0.5, 1.0, 1.0), abs=1e-6)


@given(framings(), st.tuples(*[st.floats(-2.0, 3.0)] * 2, *[st.floats(0.0, 3.0)] * 2))
def test_every_box_ends_in_the_film_and_is_visible(framing: Framing, unit: tuple[float, float, float, float]) -> None:
    box = framing.to_image(unit)

    assert 0 <= box.left <= box.right - 0.999 and box.right <= framing.columns
    assert 0 <= box.top <= box.bottom - 0.999 and box.bottom <= framing.rows


@pytest.mark.parametrize("turn", TURNS)
@given(columns=st.integers(4, 40), rows=st.integers(4, 40), data=st.data())
def test_a_box_of_one_pixel_is_that_stored_pixel(turn: Turn, columns: int, rows: int, data: st.DataObject) -> None:
    stored = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    upright = turned(stored, turn)
    high, wide = upright.shape
    row, column = data.draw(st.integers(0, high - 1)), data.draw(st.integers(0, wide - 1))
    framing = Framing(columns=columns, rows=rows, square=whole(wide, high), turn=turn)

    box = framing.to_image(((column + 0.5) / wide, (row + 0.5) / high, 1 / wide, 1 / high))

    assert all(math.isclose(edge, round(edge), abs_tol=1e-6) for edge in box.edges)
    assert stored[round(box.top), round(box.left)] == upright[row, column]
    assert (round(box.right), round(box.bottom)) == (round(box.left) + 1, round(box.top) + 1)


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(
    ("middle", "left", "right", "side"),
    [
        (None, 0.1, 0.4, Side.RIGHT),
        (None, 0.1, 0.54, Side.RIGHT),
        (None, 0.1, 0.56, None),
        (None, 0.46, 0.9, Side.LEFT),
        (None, 0.44, 0.9, None),
        (None, 0.46, 0.54, None),
        (None, 0.2, 0.8, None),
        (0.4, 0.1, 0.44, Side.RIGHT),
        (0.4, 0.1, 0.46, None),
        (0.4, 0.36, 0.6, Side.LEFT),
        (0.4, 0.34, 0.6, None),
    ],
)
def test_the_side_is_that_of_the_patient_who_faces_the_viewer_and_goes_by_the_middle_of_the_patient(
    turn: Turn, middle: float | None, left: float, right: float, side: Side | None
) -> None:
    upright = (900, 1000) if turn.transpose else (1000, 900)
    framing = Framing(columns=1000, rows=900, square=central(*upright), turn=turn)
    framing = framing if middle is None else framing.about(middle)
    box = framing.to_image(((left + right) / 2, 0.5, right - left, 0.3))

    assert side_of(box, framing) is side


def test_a_box_that_leaves_the_film_is_told_its_size() -> None:
    for left, top, right, bottom in ((-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 11, 5), (0, 0, 5, 21)):
        said = leaving(Box(left=left, top=top, right=right, bottom=bottom), columns=10, rows=20)
        assert said == "the box leaves the film, which has 10 x 20 pixels"
    assert leaving(Box(left=0, top=0, right=10, bottom=20), columns=10, rows=20) is None
