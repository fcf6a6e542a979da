"""Say where a finding lies among the network's own region boxes; pure functions.

Both come from boxes of one reading, so this is where the network points, not a measurement of the patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from node.domain import Box, Evidence

_MOST: Final = 2 / 3
"""The share in one region, of what lies of a box in any, from which the box lies in that one."""


def locate(boxes: Sequence[Box], regions: Mapping[str, Box]) -> Evidence:
    """Return the region that one of the boxes overlaps most, by IoU, and the share of it that all boxes cover.

    IoU, not the common area alone: a small region that fits says more than a large one that contains everything. A box
    that reaches far into other regions, such as that of a whole lung, lies in no one region.
    regions: box by prompt key; of equal ones the first counts
    """
    overlap = {
        key: max((iou(box, region) for box in boxes if _lies_in(box, region, regions)), default=0.0)
        for key, region in regions.items()
    }
    zone = max(overlap, key=lambda key: overlap[key], default=None)
    if zone is None or overlap[zone] == 0:
        return Evidence(zone=None, extent=0.0)
    return Evidence(zone=zone, extent=covered(regions[zone], boxes))


def _lies_in(box: Box, region: Box, regions: Mapping[str, Box]) -> bool:
    return covered(box, [region]) >= _MOST * covered(box, tuple(regions.values()))


def covered(region: Box, boxes: Sequence[Box]) -> float:
    """Return the share of a region, 0..1, that lies in any of the boxes."""
    inside = [common for box in boxes if (common := _common(region, box)) is not None]
    columns = sorted({edge for box in inside for edge in (box.left, box.right)})
    rows = sorted({edge for box in inside for edge in (box.top, box.bottom)})
    area = sum(
        (right - left) * (bottom - top)
        for left, right in pairwise(columns)
        for top, bottom in pairwise(rows)
        if any(box.left <= left and right <= box.right and box.top <= top and bottom <= box.bottom for box in inside)
    )
    return min(area / _area(region), 1.0)


def iou(first: Box, second: Box) -> float:
    """Return the overlap of two boxes, 0..1: their common area as a share of the area that either covers."""
    common = _common(first, second)
    if common is None:
        return 0.0
    return _area(common) / (_area(first) + _area(second) - _area(common))


def _common(first: Box, second: Box) -> Box | None:
    """Return the part that two boxes have in common; None if there is none."""
    left, top = max(first.left, second.left), max(first.top, second.top)
    right, bottom = min(first.right, second.right), min(first.bottom, second.bottom)
    return Box(left=left, top=top, right=right, bottom=bottom) if left < right and top < bottom else None


def _area(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)
