"""The position of a body on a film: maps centimeters of the patient to pixels, and pixels to the network's square.

The body's frame: u points right in the picture, toward the patient's left, from the midline; v points down from the top
of the lungs. Centimeters in the plane of the film.
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


class BodyFraming(NamedTuple):
    """What part of the body is in the central square of a film.

    width: of the square in cm; u, v: the point at its center; angle: of the body, in radians, clockwise
    """

    width: float
    u: float
    v: float
    angle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A film of columns x rows pixels; the central square has the length of the shorter side."""

    columns: int
    rows: int
    framing: BodyFraming

    @property
    def side(self) -> int:
        """The side of the square, in pixels."""
        return min(self.columns, self.rows)

    @property
    def scale(self) -> float:
        """Pixels per centimeter."""
        return self.side / self.framing.width

    def to_pixels(self, points: Points) -> Points:
        """Map points [..., 2] of the body onto the film; integers are the edges of pixels."""
        cosine, sine = math.cos(self.framing.angle), math.sin(self.framing.angle)
        u, v = points[..., 0] - self.framing.u, points[..., 1] - self.framing.v
        x = self.columns / 2 + self.scale * (cosine * u - sine * v)
        y = self.rows / 2 + self.scale * (sine * u + cosine * v)
        pixels = np.empty_like(points)
        pixels[..., 0], pixels[..., 1] = x, y
        return pixels

    def grid(self) -> tuple[FloatArray, FloatArray]:
        """Return u and v of the center of every pixel, each [row, column]."""
        cosine, sine = math.cos(self.framing.angle), math.sin(self.framing.angle)
        x = ((np.arange(self.columns) + 0.5 - self.columns / 2) / self.scale)[np.newaxis, :]
        y = ((np.arange(self.rows) + 0.5 - self.rows / 2) / self.scale)[:, np.newaxis]
        u = cosine * x + sine * y + self.framing.u
        v = cosine * y - sine * x + self.framing.v
        return u.astype(np.float32), v.astype(np.float32)

    def unit_box(self, points: Points) -> Points:
        """Return the corners of the box around points [n, 2], in pixels, in units of the square; may exceed 0..1."""
        offset = np.array([(self.columns - self.side) / 2, (self.rows - self.side) / 2])
        low, high = points.min(axis=0) - offset, points.max(axis=0) - offset
        corners: Points = np.concatenate([low, high]) / self.side
        return corners
