"""Boxes of the network: center-size and corner forms, overlap, suppression. Numpy arrays and torch tensors alike.

Center-size: center x, center y, width, height in 0..1 of the square the network saw. Corners: left, top, right, bottom
in the same frame. Only the node's `Framing` maps them to a film.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

UnitBoxes = TypeVar("UnitBoxes", NDArray[np.floating], "Tensor")
"""Boxes [..., 4] or numbers about them, as a numpy array or a torch tensor; what goes in comes out."""


def to_corners(boxes: UnitBoxes) -> UnitBoxes:
    """Turn center-size boxes [..., 4] into corners."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return _join(center - half, center + half)


def to_center_size(corners: UnitBoxes) -> UnitBoxes:
    """Turn corners [..., 4] into center-size boxes."""
    low, high = corners[..., :2], corners[..., 2:]
    return _join((low + high) / 2, high - low)


def clip(boxes: UnitBoxes) -> UnitBoxes:
    """Cut center-size boxes [..., 4] off at the edges of the square."""
    return to_center_size(to_corners(boxes).clip(0, 1))


def scale(boxes: UnitBoxes, factor: float | UnitBoxes) -> UnitBoxes:
    """Stretch center-size boxes [..., 4] about their centers; they may leave the square.

    factor: one for all, or [..., 1] for each
    """
    return _join(boxes[..., :2], boxes[..., 2:] * factor)


def enclosing(corners: UnitBoxes) -> UnitBoxes:
    """Give the smallest box around boxes [..., box, 4], as corners [..., 4]."""
    library = _library(corners)
    low: UnitBoxes = library.amin(corners[..., :2], axis=-2)
    high: UnitBoxes = library.amax(corners[..., 2:], axis=-2)
    return _join(low, high)


def iou(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    """Give the overlap, 0..1, of every pair of corners [..., N, 4] and [..., M, 4], as [..., N, M]; empty boxes: 0."""
    common, union = _areas(first, second)
    overlap: UnitBoxes = _ratio(common, union)
    return overlap


def giou(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    """Give the generalized overlap, -1..1, of every pair: IoU less the empty share of the box around both."""
    library = _library(first)
    common, union = _areas(first, second)
    one, other = first[..., :, None, :], second[..., None, :, :]
    sides = library.maximum(one[..., 2:], other[..., 2:]) - library.minimum(one[..., :2], other[..., :2])
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
    """Give intersection and union of every pair."""
    library = _library(first)
    one, other = first[..., :, None, :], second[..., None, :, :]
    sides = library.minimum(one[..., 2:], other[..., 2:]) - library.maximum(one[..., :2], other[..., :2])
    sides = sides.clip(0, None)
    common = sides[..., 0] * sides[..., 1]
    return common, _area(one) + _area(other) - common


def _area(corners: UnitBoxes) -> UnitBoxes:
    return (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])


def _ratio(part: UnitBoxes, whole: UnitBoxes) -> UnitBoxes:
    """Divide; nothing of nothing is 0."""
    ratio: UnitBoxes = part / (whole + (whole <= 0))
    return ratio


def _join(first: UnitBoxes, second: UnitBoxes) -> UnitBoxes:
    joined: UnitBoxes = _library(first).concatenate((first, second), axis=-1)
    return joined


def _library(array: NDArray[np.floating] | Tensor) -> ModuleType:
    """Find the library an array belongs to. Whoever has a tensor has imported torch, so this file need not."""
    return sys.modules[type(array).__module__.partition(".")[0]]
