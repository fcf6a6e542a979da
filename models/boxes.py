"""Boxes of the network: center-size and corner forms, overlap, suppression. For numpy arrays and torch tensors.

Center-size: center x, center y, width, height in 0..1 of the square that the network saw. Corners: left, top, right,
bottom in the same frame. Only the node's `Framing` maps them to a film.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.contract import Box, ScoredBox

if TYPE_CHECKING:
    from torch import Tensor

UnitBoxes = TypeVar("UnitBoxes", NDArray[np.floating], "Tensor")
"""Boxes [..., 4] or numbers about them, as a numpy array or a torch tensor; functions return the type they get."""

_LEAST: Final = 1e-6
"""The least width of a box that is given away. On a film it is far below a pixel."""


def to_box(box: NDArray[np.floating]) -> Box:
    """Turn a center-size box [4] into its edges."""
    x, y, width, height = box.tolist()
    half_width, half_height = max(width, _LEAST) / 2, max(height, _LEAST) / 2
    return Box(left=x - half_width, top=y - half_height, right=x + half_width, bottom=y + half_height)


def to_scored(boxes: NDArray[np.floating], scores: NDArray[np.floating]) -> tuple[ScoredBox, ...]:
    """Turn center-size boxes [box, 4] with scores [box] into edges with scores."""
    return tuple(ScoredBox(box=to_box(box), score=score) for box, score in zip(boxes, scores.tolist(), strict=True))


def to_array(boxes: Iterable[Box]) -> NDArray[np.float32]:
    """Turn edges into center-size boxes [box, 4]."""
    corners = np.array([box.edges for box in boxes], dtype=np.float64).reshape(-1, 4)
    return to_center_size(corners).astype(np.float32)


def to_corners(boxes: UnitBoxes) -> UnitBoxes:
    """Turn center-size boxes [..., 4] into corners."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return _join(center - half, center + half)


def to_center_size(corners: UnitBoxes) -> UnitBoxes:
    """Turn corners [..., 4] into center-size boxes."""
    low, high = corners[..., :2], corners[..., 2:]
    return _join((low + high) / 2, high - low)


def clip(boxes: UnitBoxes) -> UnitBoxes:
    """Clip center-size boxes [..., 4] to the square."""
    return to_center_size(to_corners(boxes).clip(0, 1))


def scale(boxes: UnitBoxes, factor: float | UnitBoxes) -> UnitBoxes:
    """Scale center-size boxes [..., 4] about their centers; they may leave the square.

    factor: one for all, or [..., 1] for each
    """
    return _join(boxes[..., :2], boxes[..., 2:] * factor)


def enclosing(corners: UnitBoxes) -> UnitBoxes:
    """Return the smallest box around boxes [..., box, 4], as corners [..., 4]."""
    library = _library(corners)
    low: UnitBoxes = library.amin(corners[..., :2], axis=-2)
    high: UnitBoxes = library.amax(corners[..., 2:], axis=-2)
    return _join(low, high)


def iou(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    """Return the overlap, 0..1, of each pair of corners [..., N, 4] and [..., M, 4], as [..., N, M]; empty boxes: 0."""
    common, union = _areas(first, second)
    overlap: UnitBoxes = _ratio(common, union)
    return overlap


def giou(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    """Return the generalized overlap, -1..1, of every pair: IoU minus the empty share of the box around both."""
    library = _library(first)
    common, union = _areas(first, second)
    rows, columns = first[..., :, None, :], second[..., None, :, :]
    sides = library.maximum(rows[..., 2:], columns[..., 2:]) - library.minimum(rows[..., :2], columns[..., :2])
    around = sides[..., 0] * sides[..., 1]
    generalized: UnitBoxes = _ratio(common, union) - _ratio(around - union, around)
    return generalized


def suppress(corners: UnitBoxes, scores: UnitBoxes, *, threshold: float) -> list[int]:
    """Drop boxes that overlap a better one by more than the threshold.

    corners: [box, 4]; scores: [box]; returns the indices that stay, best first, the first of equals first
    """
    overlap = iou(corners, corners)
    kept: list[int] = []
    for index in sorted(range(len(scores)), key=lambda box: -float(scores[box])):
        if all(float(overlap[index, better]) <= threshold for better in kept):
            kept.append(index)
    return kept


def _areas(first: UnitBoxes, second: UnitBoxes) -> tuple[UnitBoxes, UnitBoxes]:
    """Return intersection and union of every pair."""
    library = _library(first)
    rows, columns = first[..., :, None, :], second[..., None, :, :]
    sides = library.minimum(rows[..., 2:], columns[..., 2:]) - library.maximum(rows[..., :2], columns[..., :2])
    sides = sides.clip(0, None)
    common = sides[..., 0] * sides[..., 1]
    return common, _area(rows) + _area(columns) - common


def _area(corners: UnitBoxes) -> UnitBoxes:
    return (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])


def _ratio(part: UnitBoxes, whole: UnitBoxes) -> UnitBoxes:
    """Divide; 0 / 0 is 0."""
    ratio: UnitBoxes = part / (whole + (whole <= 0))
    return ratio


def _join(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    joined: UnitBoxes = _library(first).concatenate((first, second), axis=-1)
    return joined


def _library(array: NDArray[np.floating] | Tensor) -> ModuleType:
    """Return the library of an array. A tensor can exist only if torch is imported, so this file does not import it."""
    return sys.modules[type(array).__module__.partition(".")[0]]
