"""Converts a gray film to the network's input, and locates it on the film (spec §1). No torch.

Pixels and geometry use the same plan, so a box drawn on the film is where the network saw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from models.manifest import InputRule

FloatArray = NDArray[np.float32]

_INTERMEDIATE_SIDE = 256


class Square(NamedTuple):
    """The network's field of view, as edges in pixels of the upright film."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A resize of the whole film, then a square cut out of it; all in pixels after the resize."""

    columns: int
    rows: int
    left: int
    top: int
    side: int


def square(columns: int, rows: int, rule: InputRule) -> Square:
    """Return the square of an upright film that the network sees: scale and offset only, no half-pixel shifts.

    Its sides differ by less than a pixel if a resize rounds. Raises ValueError for a film without pixels.
    """
    plan = _plan(columns, rows, rule)
    across, down = columns / plan.columns, rows / plan.rows
    return Square(
        left=plan.left * across,
        top=plan.top * down,
        right=(plan.left + plan.side) * across,
        bottom=(plan.top + plan.side) * down,
    )


def prepare(gray: FloatArray, rule: InputRule) -> FloatArray:
    """Return the network's input [size, size] for an upright film, gray: [row, column], 0..1."""
    rows, columns = gray.shape
    plan = _plan(columns, rows, rule)
    picture = np.ascontiguousarray(gray, dtype=np.float32)
    if (plan.columns, plan.rows) != (columns, rows):
        picture = np.asarray(cv2.resize(picture, (plan.columns, plan.rows), interpolation=cv2.INTER_AREA))
    picture = picture[plan.top : plan.top + plan.side, plan.left : plan.left + plan.side]
    picture = np.asarray(cv2.resize(picture, (rule.size, rule.size), interpolation=cv2.INTER_LINEAR))
    return ((picture - rule.mean) / rule.std).astype(np.float32)


def _plan(columns: int, rows: int, rule: InputRule) -> _Plan:
    short = min(columns, rows)
    if short < 1:
        raise ValueError(f"a film of {columns} x {rows} pixels is empty")
    if rule.resize == "via_256":
        # round() takes halves to even, as the published preprocessing does
        columns, rows = (round(side * _INTERMEDIATE_SIDE / short) for side in (columns, rows))
        short = _INTERMEDIATE_SIDE
    return _Plan(columns=columns, rows=rows, left=(columns - short) // 2, top=(rows - short) // 2, side=short)
