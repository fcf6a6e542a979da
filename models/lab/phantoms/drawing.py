"""Drawing primitives whose results are the same on every machine.

OpenCV draws and blurs bytes with integer arithmetic, which is exact; numpy adds and multiplies float32 exactly as IEEE
754 specifies. Nothing else touches a pixel: no OpenCV filter on floats, no sum over an array of floats, and powers and
exponentials only in tables that are rounded before use.

The body's frame: u points right in the picture, toward the patient's left, from the midline; v points down from the top
of the lungs. Centimeters in the plane of the film.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from models.lab.phantoms.random_streams import RandomStream

Points = NDArray[np.float64]
FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
_Level = TypeVar("_Level", np.uint8, np.uint16)
_FRACTION_BITS = 4


class BodyFraming(NamedTuple):
    """The part of the body in the central square of a film.

    width: width of the square in cm; u, v: the point at its center; angle: body's rotation in radians, clockwise
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


def smooth(points: Sequence[tuple[float, float]] | Points, *, steps: int = 6, closed: bool = False) -> Points:
    """Return a Catmull-Rom curve through points [n, 2], with some steps between neighbors."""
    knots = np.asarray(points, dtype=np.float64)
    if closed:
        knots = np.concatenate([knots[-1:], knots, knots[:2]])
    else:
        knots = np.concatenate([2 * knots[:1] - knots[1:2], knots, 2 * knots[-1:] - knots[-2:-1]])
    t = (np.arange(steps) / steps)[np.newaxis, :, np.newaxis]
    a, b, c, d = (knots[start : len(knots) - 3 + start, np.newaxis] for start in range(4))
    curve = 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
    joined = curve.reshape(-1, 2)
    return joined if closed else np.concatenate([joined, knots[-2:-1]])


def ribbon(lines: Points, width: float | Points) -> Points:
    """Return the outlines [..., 2 n, 2] of bands along lines [..., n, 2]; width: one, or [..., 1, 1] for each."""
    along = np.empty_like(lines)
    along[..., 1:-1, :] = lines[..., 2:, :] - lines[..., :-2, :]
    along[..., 0, :] = lines[..., 1, :] - lines[..., 0, :]
    along[..., -1, :] = lines[..., -1, :] - lines[..., -2, :]
    length = np.sqrt(along[..., :1] ** 2 + along[..., 1:] ** 2) + 1e-9
    across = along[..., ::-1] * (-1, 1) / length * (np.asarray(width) / 2)
    return np.concatenate([lines + across, (lines - across)[..., ::-1, :]], axis=-2)


def ellipse(center: tuple[float, float], radii: tuple[float, float], *, steps: int = 24) -> Points:
    """Return the outline of an ellipse."""
    turn = np.arange(steps) * (2 * np.pi / steps)
    return np.stack([center[0] + radii[0] * np.cos(turn), center[1] + radii[1] * np.sin(turn)], axis=1)


def blank(frame: Frame) -> ByteArray:
    """Return an empty layer."""
    return np.zeros((frame.rows, frame.columns), dtype=np.uint8)


def fill(
    frame: Frame, outlines: Sequence[Points] | Points, *, onto: ByteArray | None = None, value: int = 255
) -> ByteArray:
    """Fill outlines one by one, with soft edges; later ones cover earlier ones."""
    layer = blank(frame) if onto is None else onto
    for outline in _fixed(frame, outlines):
        cv2.fillPoly(layer, [outline], (value,), lineType=cv2.LINE_AA, shift=_FRACTION_BITS)
    return layer


def strokes(
    frame: Frame, lines: Sequence[Points] | Points, *, width: float, onto: ByteArray | None = None, value: int = 255
) -> ByteArray:
    """Draw lines of a width in cm; one thinner than a pixel is a pixel wide and fainter."""
    layer = blank(frame) if onto is None else onto
    pixels = width * frame.scale
    faint = round(value * min(1.0, pixels))
    thickness = max(1, round(pixels))
    cv2.polylines(layer, _fixed(frame, lines), False, (faint,), thickness, lineType=cv2.LINE_AA, shift=_FRACTION_BITS)
    return layer


def rounded(mask: ByteArray, radius: float) -> FloatArray:
    """Give a mask the thickness of a body with a round edge: 0 at its edge, rising to 1 at a radius in pixels."""
    inside = (mask > 127).astype(np.uint8)
    # Only OpenCV's integer distances are the same on all processors; they approximate a circle by an octagon.
    straight = np.asarray(cv2.distanceTransform(inside, cv2.DIST_C, 3), dtype=np.float32)
    steps = np.asarray(cv2.distanceTransform(inside, cv2.DIST_L1, 3, dstType=cv2.CV_8U)).astype(np.float32)
    away = np.maximum(straight, steps * np.float32(0.7071))
    # The soft edge encodes the position of the edge within its pixel.
    away = np.maximum(away + share(mask) - np.float32(1.5), 0)
    near = np.clip(1 - away * np.float32(1 / max(radius, 1.0)), 0, 1)
    thickness: FloatArray = np.sqrt(1 - near * near)
    return thickness


def solid(frame: Frame, outlines: list[Points], *, thick: float, radius: float) -> FloatArray:
    """Return the thickness of a round-edged body, `thick` cm within; radius: edge radius in cm."""
    return rounded(fill(frame, outlines), radius * frame.scale) * np.float32(thick)


def soften(layer: NDArray[_Level], sigma: float) -> NDArray[_Level]:
    """Blur a layer; sigma in pixels."""
    if sigma < 0.2:
        return layer
    reach = max(1, round(2.5 * sigma))
    return np.asarray(cv2.GaussianBlur(layer, (2 * reach + 1, 2 * reach + 1), sigma, hint=cv2.ALGO_HINT_ACCURATE))


def share(layer: ByteArray) -> FloatArray:
    """Convert a layer's bytes to 0..1."""
    return layer.astype(np.float32) * np.float32(1 / 255)


def clouds(frame: Frame, stream: RandomStream, *, size: float, layers: int = 2) -> FloatArray:
    """Return noise that varies over some cm, with finer detail: about -1..1."""
    total = np.zeros((frame.rows, frame.columns), dtype=np.float32)
    weight = 1.0
    for layer in range(layers):
        # Twice as many cells as the size needs, then blurred: the corners of cells would be visible otherwise.
        step = max(1.0, size * frame.scale / 2 ** (layer + 1))
        grid = stream.bytes(max(4, round(frame.rows / step)), max(4, round(frame.columns / step)))
        grid = soften(grid, 0.9)
        wide = cv2.resize(grid, (frame.columns, frame.rows), interpolation=cv2.INTER_LINEAR_EXACT)
        total += (wide.astype(np.float32) - np.float32(127.5)) * np.float32(weight / 42)
        weight *= 0.6
    return total


def ramp(values: FloatArray, low: float, high: float) -> FloatArray:
    """Rise smoothly from 0 at low to 1 at high; low may be greater than high."""
    t = np.clip((values - np.float32(low)) * np.float32(1 / (high - low)), 0, 1)
    risen: FloatArray = t * t * (3 - 2 * t)
    return risen


def _fixed(frame: Frame, lines: Sequence[Points] | Points) -> list[NDArray[np.int32]]:
    """Convert body coordinates to OpenCV's fixed-point numbers, which count from a pixel's center."""
    if not len(lines):
        return []
    points = np.concatenate(lines)
    fixed = np.rint((frame.to_pixels(points) - 0.5) * (1 << _FRACTION_BITS)).astype(np.int32)
    ends = accumulate(len(line) for line in lines)
    return [fixed[end - len(line) : end] for end, line in zip(ends, lines, strict=True)]
