"""Labels: above their box, else below it, else shifted; inside the picture, off one another, and near their box."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contract import Box
from node.outputs.label_placement import place

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
