"""Place the labels of boxes: above their box, else below it, else beside other texts there, else inside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from models.contract import Box

_ROUNDING: Final = 1e-6
"""Overlap, in pixels, that counts as a shared edge."""

_FARTHEST: Final = 3
"""Largest gap between a label and its box, in heights of the label; a farther label is ambiguous."""


def place(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], *, within: Box, taken: Sequence[Box] = ()
) -> list[Box | None]:
    """Return a place for each label inside the picture and off all other texts; earlier labels choose first.

    sizes: width and height of each label, in the pixels of the boxes; a label larger than the picture is made to fit it
    within: the part of the picture where labels may stand
    taken: places of other texts
    None: no room is left near the box, as on a small film with many boxes.
    """
    texts, places = list(taken), list[Box | None]()
    for box, (width, height) in zip(boxes, sizes, strict=True):
        size = min(width, within.right - within.left), min(height, within.bottom - within.top)
        found = _place(box, size, within, texts)
        places.append(found)
        texts += [] if found is None else [found]
    return places


def _place(box: Box, size: tuple[float, float], within: Box, texts: Iterable[Box]) -> Box | None:
    """Return the nearest free place for one label at an end of its box; None if there is none."""
    width, height = size
    beside = [edge for text in texts for edge in (text.top - height, text.bottom)]
    free = []
    for top in (box.top - height, box.bottom, box.top, *beside):
        for left in (box.left, box.right - width):
            x = min(max(left, within.left), within.right - width)
            y = min(max(top, within.top), within.bottom - height)
            where = Box(left=x, top=y, right=x + width, bottom=y + height)
            if not any(_overlap(where, text) for text in texts) and _gap(where, box) <= _FARTHEST * height + _ROUNDING:
                free.append(where)
    return min(free, key=lambda where: (_gap(where, box) < -_ROUNDING, _gap(where, box)), default=None)


def _gap(label: Box, box: Box) -> float:
    """Return how far a label is above or below its box; negative if it is at its height."""
    return max(box.top - label.bottom, label.top - box.bottom)


def _overlap(one: Box, other: Box) -> bool:
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    return width > _ROUNDING and height > _ROUNDING
