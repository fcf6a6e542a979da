"""Where a body lies on a film: centimeters of the patient to pixels, and pixels to the square that a network sees.

The body's frame: u to the right of the picture, so to the patient's left, from the midline; v downwards from the top of
the lungs. Centimeters in the plane of the film.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]


class Framing(NamedTuple):
    """What part of the body the square in the middle of a film shows.

    width: of the square in cm; u, v: what lies in its center; angle: of the body, in radians, clockwise
    """

    width: float
    u: float
    v: float
    angle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A film of columns x rows pixels, whose shorter side is that of the square."""

    columns: int
    rows: int
    framing: Framing

    @property
    def side(self) -> int:
        """Of the square, in pixels."""
        return min(self.columns, self.rows)

    @property
    def scale(self) -> float:
        """Pixels to a centimeter."""
        return self.side / self.framing.width

    def to_pixels(self, points: Points) -> Points:
        """Bring points [..., 2] of the body onto the film; whole numbers are the edges of pixels."""
        cosine, sine = math.cos(self.framing.angle), math.sin(self.framing.angle)
        u, v = points[..., 0] - self.framing.u, points[..., 1] - self.framing.v
        x = self.columns / 2 + self.scale * (cosine * u - sine * v)
        y = self.rows / 2 + self.scale * (sine * u + cosine * v)
        pixels = np.empty_like(points)
        pixels[..., 0], pixels[..., 1] = x, y
        return pixels

    def grid(self) -> tuple[FloatArray, FloatArray]:
        """Give u and v of the center of every pixel, each [row, column]."""
        cosine, sine = math.cos(self.framing.angle), math.sin(self.framing.angle)
        x = ((np.arange(self.columns) + 0.5 - self.columns / 2) / self.scale)[np.newaxis, :]
        y = ((np.arange(self.rows) + 0.5 - self.rows / 2) / self.scale)[:, np.newaxis]
        u = cosine * x + sine * y + self.framing.u
        v = cosine * y - sine * x + self.framing.v
        return u.astype(np.float32), v.astype(np.float32)

    def unit_box(self, points: Points) -> Points:
        """Give the corners of the box around points [n, 2], in pixels, as parts of the square, which they may leave."""
        offset = np.array([(self.columns - self.side) / 2, (self.rows - self.side) / 2])
        low, high = points.min(axis=0) - offset, points.max(axis=0) - offset
        corners: Points = np.concatenate([low, high]) / self.side
        return corners
