"""The widths of heart and thorax, read off the boxes of regions on the upright square; pure functions.

The heart is as wide as its box. The thorax reaches from the outer edge of the right lung's zones to that of the left
ones: its inner diameter. A box does not tell at which height it is widest, so the heart's width is placed at the middle
of its box, and the thorax's at the heart's lower edge, near the diaphragm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from models.contract import Box

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


def measure_chest(regions: Mapping[str, Box]) -> ChestWidths | None:
    """Measure heart and thorax.

    regions: the box of each region, by prompt key
    Returns None if a region is missing, and for boxes that no chest has: the heart is wider than the thorax or leaves
    it, the lungs are not beside the heart on either side, they share no rows, the thorax is cut off, or one of
    both is far too narrow.
    """
    if not {HEART, *RIGHT_LUNG, *LEFT_LUNG} <= regions.keys():
        return None
    heart = regions[HEART]
    right, left = (_around([regions[key] for key in keys]) for keys in (RIGHT_LUNG, LEFT_LUNG))
    is_inside = EDGE <= right.left < heart.left and heart.right < left.right <= 1 - EDGE
    is_between = _middle(right) < _middle(heart) < _middle(left)
    tops, bottoms = zip(*((box.top, box.bottom) for box in (heart, right, left)), strict=True)
    if not (is_inside and is_between and max(tops) < min(bottoms)):
        return None
    chest = ChestWidths(
        heart=Extent(left=heart.left, right=heart.right, height=(heart.top + heart.bottom) / 2),
        thorax=Extent(left=right.left, right=left.right, height=min(bottoms)),
    )
    return chest if chest.thorax.width >= _LEAST_THORAX and chest.ratio >= _LEAST_RATIO else None


def _middle(box: Box) -> float:
    return (box.left + box.right) / 2


def _around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box around some boxes."""
    lefts, tops, rights, bottoms = zip(*(box.edges for box in boxes), strict=True)
    return Box(left=min(lefts), top=min(tops), right=max(rights), bottom=max(bottoms))
