"""A small picture of a film, enough to place labels on it; a reading makes it, so that no writer decodes again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from node.read.grayscale import Stretch

_FINEST: Final = 256
"""At least so many pixels lie along the shorter side, if the film has as many and is no long strip."""

_MOST_PIXELS: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thumbnail:
    """Every `step`-th pixel of a film, of its rows and its columns.

    gray: [row, column] in stored orientation, as displayed, 0..255
    stretch: the gray value mapping, if the header has no legible one
    """

    gray: npt.NDArray[np.uint8]
    step: int
    stretch: Stretch | None = None


def step_of(shape: tuple[int, ...]) -> int:
    """Return `Thumbnail.step` for a film of this shape, (rows, columns)."""
    return max(1, min(shape) // _FINEST, math.isqrt(math.prod(shape) // _MOST_PIXELS))
