"""The widths of heart and thorax, read off the boxes of regions on the upright square; pure functions.

The heart is as wide as its box. The thorax reaches from the outer edge of the right lung's zones to that of the left
ones: its inner diameter. A box does not tell at which height it is widest, so the heart's width is placed at the middle
of its box, and the thorax's at the heart's lower edge, near the diaphragm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.boxes import enclosing, to_corners
from models.reading.answers import FloatArray

HEART: Final = "cardiac_silhouette"
RIGHT_LUNG: Final = tuple(f"right_{height}_lung_zone" for height in ("upper", "mid", "lower"))
LEFT_LUNG: Final = tuple(f"left_{height}_lung_zone" for height in ("upper", "mid", "lower"))
"""Keys of the prompts whose boxes are measured."""
EDGE: Final = 0.01
"""A thorax that comes so near to an edge of the square is taken as cut off: so 77 of 81 cut phantoms were refused."""
_LEAST_THORAX: Final = 0.25
_LEAST_RATIO: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A width: from left to right, at a height, in 0..1 of the square."""

    left: float
    right: float
    height: float

    @property
    def width(self) -> float:
        """The width."""
        return self.right - self.left


@dataclass(frozen=True, slots=True, kw_only=True)
class ChestWidths:
    """The widths of heart and thorax."""

    heart: Extent
    thorax: Extent

    @property
    def ratio(self) -> float:
        """The cardiothoracic ratio."""
        return self.heart.width / self.thorax.width


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def measure_chest(regions: Mapping[str, FloatArray]) -> ChestWidths | None:
    """Measure heart and thorax.

    regions: the box [4] of each region, center-size, by prompt key
    Returns None if a region is missing, and for boxes that no chest has: the heart is wider than the thorax or leaves
    it, the lungs are not beside the heart on either side, they share no rows, the thorax is cut off, or one of
    both is far too narrow.
    """
    if not {HEART, *RIGHT_LUNG, *LEFT_LUNG} <= regions.keys():
        return None
    heart = _around([regions[HEART]])
    right, left = (_around([regions[key] for key in keys]) for keys in (RIGHT_LUNG, LEFT_LUNG))
    is_inside = EDGE <= right.left < heart.left and heart.right < left.right <= 1 - EDGE
    is_between = right.middle < heart.middle < left.middle
    tops, bottoms = zip(*((box.top, box.bottom) for box in (heart, right, left)), strict=True)
    if not (is_inside and is_between and max(tops) < min(bottoms)):
        return None
    chest = ChestWidths(
        heart=Extent(left=heart.left, right=heart.right, height=(heart.top + heart.bottom) / 2),
        thorax=Extent(left=right.left, right=left.right, height=min(bottoms)),
    )
    return chest if chest.thorax.width >= _LEAST_THORAX and chest.ratio >= _LEAST_RATIO else None


def _around(boxes: list[FloatArray]) -> _Edges:
    """Return the edges of the smallest box around some boxes."""
    left, top, right, bottom = enclosing(to_corners(np.stack(boxes).astype(np.float64))).tolist()
    return _Edges(left=left, top=top, right=right, bottom=bottom)
