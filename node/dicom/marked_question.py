"""A person's drawing and text from a workstation: a place on a film, words, or both; the box around a graphic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset

from models.contract import Box
from node.character_sets import visible
from node.dicom import attributes

LONGEST_PROMPT: Final = 300
_LEAST_EDGE: Final = 1.0
"""Pixels. A graphic that is narrower or lower is a point or a line along an axis, which has no content."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedQuestion:
    """One question of an object: about a film, by a box, a prompt, or both.

    film: SOP Instance UID
    box: in pixels of the stored film, perhaps beyond its edges; None for words without a graphic
    tracking: tracking ID and UID of the graphic; either may be ""
    """

    film: str
    box: Box | None
    prompt: str | None
    tracking: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A graphic that asks nothing that the node can answer; reason: without patient data."""

    reason: str


def surround(kind: str, points: Sequence[Point]) -> Box | LeftOut:
    """Return the box around a graphic, in the frame of its points."""
    if not points or not all(math.isfinite(number) for point in points for number in point):
        return LeftOut(reason="a graphic has no usable points")
    left, top, right, bottom = edges(kind, points)
    if min(right - left, bottom - top) < _LEAST_EDGE:
        return LeftOut(reason="a graphic has no area: draw a box around what is meant")
    return Box(left=left, top=top, right=right, bottom=bottom)


def clipped(box: Box, *, columns: int, rows: int) -> Box | LeftOut:
    """Return the part of a box that lies on a film."""
    left, top = max(box.left, 0.0), max(box.top, 0.0)
    right, bottom = min(box.right, float(columns)), min(box.bottom, float(rows))
    if min(right - left, bottom - top) < _LEAST_EDGE:
        return LeftOut(reason="a graphic lies outside the film")
    return Box(left=left, top=top, right=right, bottom=bottom)


def pairs(dataset: Dataset, keyword: str) -> list[Point]:
    """Return an attribute that lists x and y in turn; empty when it is absent or broken."""
    numbers: list[float] = []
    for value in attributes.values(dataset, keyword):
        try:
            numbers.append(float(str(value)))
        except ValueError:
            return []
    return list(zip(numbers[::2], numbers[1::2], strict=True)) if len(numbers) % 2 == 0 else []


def words(*texts: str) -> str | None:
    """Return texts as one printable line of at most `LONGEST_PROMPT` characters; None if nothing is left."""
    joined = "".join(letter if letter.isprintable() else " " for letter in visible(" ".join(texts)))
    return " ".join(joined.split())[:LONGEST_PROMPT].strip() or None


def edges(kind: str, points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a graphic, not checked (PS3.3 C.10.5.1.2 and C.18.6.1.1)."""
    if kind == "CIRCLE" and len(points) == 2:
        (x, y), radius = points[0], math.dist(*points)
        return x - radius, y - radius, x + radius, y + radius
    if kind == "ELLIPSE" and len(points) == 4:  # the ends of the long axis, then those of the short one
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
        x, y = (ax + bx) / 2, (ay + by) / 2
        half_x, half_y = math.hypot(bx - ax, dx - cx) / 2, math.hypot(by - ay, dy - cy) / 2
        return x - half_x, y - half_y, x + half_x, y + half_y
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)
