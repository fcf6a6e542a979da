"""Labels: near their boxes, inside the picture, and off one another whenever there is room for all."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.domain import Box
from node.outputs.label_placement import Ground, place
from node.read.thumbnail import of_picture

Size = tuple[float, float]


def overlaps(places: list[Box]) -> list[tuple[Box, Box]]:
    """Return the pairs of labels that cover one another by more than a millionth of a pixel."""
    return [
        (label, other)
        for index, label in enumerate(places)
        for other in places[:index]
        if min(label.right, other.right) - max(label.left, other.left) > 1e-6
        and min(label.bottom, other.bottom) - max(label.top, other.top) > 1e-6
    ]


@st.composite
def pictures(draw: st.DrawFn) -> tuple[list[Box], list[Size], float, float]:
    """Draw boxes, and labels of one height that were cut from the lines of a picture, so that there is room for all."""
    columns, height = draw(st.integers(20, 1000)), draw(st.floats(1, 60))
    lines = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12).filter(lambda lines: sum(lines) <= 12))
    widths: list[int] = []
    for count in lines:
        cuts = draw(st.lists(st.integers(1, columns - 1), min_size=count, max_size=count, unique=True))
        widths += [right - left for left, right in pairwise([0, *sorted(cuts)])]
    rows = len(lines) * height * draw(st.floats(1, 1.5))
    share = st.floats(0, 0.99)
    boxes = []
    for _ in widths:
        left, top = draw(share) * columns, draw(share) * rows
        right, bottom = left + (columns - left) * (0.01 + draw(share)), top + (rows - top) * (0.01 + draw(share))
        boxes.append(Box(left=left, top=top, right=right, bottom=bottom))
    order = draw(st.permutations(widths))
    return boxes, [(float(width), height) for width in order], float(columns), rows


@settings(max_examples=300, deadline=None)
@given(pictures(), st.none() | st.integers(0, 1000))
def test_no_label_covers_another_one_if_there_is_room_for_all(
    picture: tuple[list[Box], list[Size], float, float], seed: int | None
) -> None:
    boxes, sizes, columns, rows = picture
    shape = (math.ceil(rows), math.ceil(columns))
    ground = (
        None
        if seed is None
        else Ground(of_picture(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)))
    )

    places = place(boxes, sizes, columns=columns, rows=rows, ground=ground)

    assert overlaps(places) == []
    for label, (width, height) in zip(places, sizes, strict=True):
        assert (label.right - label.left, label.bottom - label.top) == pytest.approx((width, height))
        assert min(label.left, label.top) >= -1e-6
        assert label.right <= columns + 1e-6 and label.bottom <= rows + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 990), st.floats(0, 990), st.floats(1, 500), st.floats(1, 500)), min_size=13, max_size=30
    )
)
def test_many_labels_stay_inside_the_picture_and_off_one_another(
    corners: list[tuple[float, float, float, float]],
) -> None:
    boxes = [Box(left=x, top=y, right=min(x + w, 1000), bottom=min(y + h, 1000)) for x, y, w, h in corners]

    places = place(boxes, [(330, 100)] * len(boxes), columns=1000, rows=1000)

    assert overlaps(places) == []
    for label in places:
        assert min(label.left, label.top) >= 0
        assert max(label.right, label.bottom) <= 1000 + 1e-6


def test_labels_find_the_one_way_in_which_they_fit_side_by_side() -> None:
    boxes = [Box(left=10, top=10, right=90, bottom=40)] * 6

    # The longest first, each into the first line that has room, needs a third line: 44 and 33, 30 and 26 and 24, 22.
    places = place(boxes, [(width, 20) for width in (44, 33, 30, 26, 24, 22)], columns=90, rows=40)

    assert overlaps(places) == []


def test_without_room_a_label_stands_above_its_box() -> None:
    boxes = [Box(left=10, top=60, right=90, bottom=90), Box(left=12, top=50, right=90, bottom=90)]

    places = place(boxes, [(80, 60), (80, 60)], columns=100, rows=100)

    assert [label.edges for label in places] == [(10, 0, 90, 60), (12, 0, 92, 60)]


def test_a_label_larger_than_the_picture_is_made_to_fit_it() -> None:
    [label] = place([Box(left=1, top=1, right=3, bottom=3)], [(500, 90)], columns=40, rows=30)

    assert label.edges == (0, 0, 40, 30)


def test_labels_of_coinciding_boxes_stand_one_below_the_other() -> None:
    box = Box(left=100, top=100, right=300, bottom=300)

    places = place([box] * 4, [(120, 20)] * 4, columns=1000, rows=1000)

    assert [where.top for where in places] == [80, 100, 120, 140]
    assert {where.left for where in places} == {100}


@pytest.mark.parametrize("shape", [(40, 60), (700, 900)])
def test_brightness_is_that_of_the_picture_below_a_place(shape: tuple[int, int]) -> None:
    rows, columns = shape
    picture = np.zeros(shape, np.uint8)
    picture[: rows // 2] = 255
    places = np.array(
        [(0, 0, columns, rows), (0, 0, columns, rows / 2), (2, rows / 2 + 3, 9, rows), (columns - 0.5, 0, columns, 0.5)]
    )

    assert Ground(of_picture(picture)).brightness(places) == pytest.approx([0.5, 1, 0, 1], abs=0.02)


def test_a_label_stands_on_the_dark_side_of_its_box() -> None:
    box = Box(left=400, top=400, right=600, bottom=500)
    for dark, expected in ((slice(300, 400), 380), (slice(500, 600), 500)):
        picture = np.full((1000, 1000), 250, np.uint8)
        picture[dark] = 30

        [label] = place([box], [(150, 20)], columns=1000, rows=1000, ground=Ground(of_picture(picture)))

        assert label.top == pytest.approx(expected, abs=20)
        assert box.left <= label.left and label.right <= box.right


def test_a_label_does_not_go_far_for_a_little_darkness() -> None:
    box = Box(left=400, top=400, right=600, bottom=500)
    picture = np.full((1000, 1000), 120, np.uint8)
    picture[:100] = 100

    [label] = place([box], [(150, 20)], columns=1000, rows=1000, ground=Ground(of_picture(picture)))

    assert label.bottom == 400 or label.top == 500
