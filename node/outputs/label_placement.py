"""Place the labels of boxes: above their box, else below it, else shifted to where it is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from models.contract import Box

_ROUNDING: Final = 1e-6
"""Overlap, in pixels, that counts as a shared edge."""

_FARTHEST: Final = 3
"""Largest gap between a label and its box, in heights of the label; a farther label is ambiguous."""

_Edges = npt.NDArray[np.float64]
"""[box, edge] left, top, right, bottom."""


def place(
    boxes: Sequence[Box], sizes: Sequence[tuple[float, float]], *, within: Box, taken: Sequence[Box] = ()
) -> list[Box | None]:
    """Return a place for each label inside the picture and off all other texts; earlier labels choose first.

    sizes: width and height of each label, in the pixels of the boxes; a label larger than the picture is made to fit it
    within: the part of the picture where labels may stand
    taken: places of other texts
    None: no room is left near the box, as on a small film with many boxes.
    """
    drawn, texts = _edges(boxes), _edges(taken)
    places: list[Box | None] = []
    for box, (width, height) in zip(boxes, sizes, strict=True):
        size = min(width, within.right - within.left), min(height, within.bottom - within.top)
        found = _place(box, size, drawn, texts, within)
        places.append(found)
        if found is not None:
            texts = np.vstack((texts, found.edges))
    return places


def _place(box: Box, size: tuple[float, float], drawn: _Edges, texts: _Edges, within: Box) -> Box | None:
    """Return the best free place for one label; None if there is none near its box."""
    width, height = size
    lefts = (box.left, box.right - width, box.right, *texts[:, 2])
    tops = (box.top - height, box.bottom, box.top, *texts[:, 3], *(texts[:, 1] - height))
    x = np.unique(np.clip(lefts, within.left, within.right - width))
    y = np.unique(np.clip(tops, within.top, within.bottom - height))
    across, down = _overlaps(x, width, texts[:, 0], texts[:, 2]), _overlaps(y, height, texts[:, 1], texts[:, 3])
    costs = np.where(across @ down.T > 0, np.inf, _costs(box, x, y, size, drawn))
    column, row = np.unravel_index(costs.argmin(), costs.shape)
    if not np.isfinite(costs[column, row]):
        return None
    left, top = float(x[column]), float(y[row])
    return Box(left=left, top=top, right=left + width, bottom=top + height)


def _costs(box: Box, x: _Edges, y: _Edges, size: tuple[float, float], drawn: _Edges) -> _Edges:
    """Return what each place costs: [column, row].

    A place costs its distance from that above the box, or from that below it and one line; twice the gap between label
    and box; a line for each box inside which it lies; and two for each whose outline it crosses. It costs infinity if
    the gap is too wide.
    """
    width, height = size
    above, below = np.abs(y - (box.top - height)), np.abs(y - box.bottom) + height
    gap_x = np.maximum(box.left - width - x, x - box.right).clip(0)
    gap_y = np.maximum(box.top - height - y, y - box.bottom).clip(0)
    gap = gap_x[:, None] + gap_y
    moved = np.abs(x - box.left)[:, None] + np.minimum(above, below)
    across, down = _overlaps(x, width, drawn[:, 0], drawn[:, 2]), _overlaps(y, height, drawn[:, 1], drawn[:, 3])
    inside_x = _lies_in(x, width, drawn[:, 0], drawn[:, 2])
    inside_y = _lies_in(y, height, drawn[:, 1], drawn[:, 3])
    costs = moved + 2 * gap + height * (2 * across @ down.T - inside_x @ inside_y.T)
    return np.where(gap > _FARTHEST * height + _ROUNDING, np.inf, costs)


def _overlaps(starts: _Edges, length: float, low: _Edges, high: _Edges) -> _Edges:
    """Return 1 for each interval that overlaps another one: [start, other]."""
    return ((starts[:, None] + length > low + _ROUNDING) & (starts[:, None] < high - _ROUNDING)).astype(float)


def _lies_in(starts: _Edges, length: float, low: _Edges, high: _Edges) -> _Edges:
    return ((starts[:, None] >= low - _ROUNDING) & (starts[:, None] + length <= high + _ROUNDING)).astype(float)


def _edges(boxes: Sequence[Box]) -> _Edges:
    return np.array([box.edges for box in boxes], float).reshape(-1, 4)
