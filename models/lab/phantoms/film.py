"""Turns attenuation into gray values: scatter, film curve, noise, blur; then markers, words, shutters and borders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from models.lab.phantoms.drawing import FloatArray, Frame, soften
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.regions import ShutterWindow

GrayArray = NDArray[np.uint16]
"""[row, column], 0..65535, white is dense."""

_WATER = 0.2
"""Attenuation per cm of water."""
_STEPS = 64
"""Steps per cm in the table of transmission."""
_DEPTH = 1000
"""Steps per cm after scatter."""
_MOST = 60
_COARSE = 3
"""The low bits of a depth that the film curve ignores."""
# Strokes of letters that are 2 wide and 3 tall, given by their corner points.
_LETTERS: Mapping[str, tuple[str, ...]] = {
    "A": ("03 10 23", "0.4,1.8 1.6,1.8"),
    "B": ("00 03 13 2,2.3 1,1.5 2,0.7 10 00",),
    "E": ("20 00 03 23", "0,1.5 1.5,1.5"),
    "I": ("10 13",),
    "L": ("00 03 23",),
    "N": ("03 00 23 20",),
    "O": ("00 20 23 03 00",),
    "P": ("03 00 10 2,0.8 1,1.6 0,1.6",),
    "R": ("03 00 10 2,0.8 1,1.6 0,1.6", "1,1.6 23"),
    "S": ("20 00 0,1.5 2,1.5 23 03",),
    "T": ("00 20", "10 13"),
    "U": ("00 03 23 20",),
}
_WORDS = ("AP PORTABLE", "SUPINE", "PORTABLE", "AP", "ERECT", "PA", "BETT", "AP SUPINE")
_SHUTTERED = 0.28


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How a film was taken and displayed.

    scatter: the share that is spread over the film; local: how strongly local contrast is equalized, 0..1
    low: the depth shown as black, as a share of the depth of the lungs; high: share of the pixels that are not white
    bend: curvature of the film curve, 0 is straight; black, white: the darkest and the lightest gray, 0..1
    noise, blur: standard deviations, in cm of water and in pixels of a film of 224
    equalized: whether the histogram of gray values is almost flat
    """

    scatter: float
    local: float
    low: float
    high: float
    bend: float
    gamma: float
    black: float
    white: float
    noise: float
    blur: float
    equalized: bool


def exposure(stream: RandomStream, *, supine: bool) -> Exposure:
    """Draw an exposure; films taken at the bedside have more scatter and less contrast."""
    flat = stream.chance(0.4 if supine else 0.2)
    black = stream.between(0.15, 0.4) if flat else stream.between(0.0, 0.12)
    return Exposure(
        scatter=stream.between(0.05, 0.2) * (1.7 if supine else 1.0),
        local=stream.between(0.0, 0.55) if stream.chance(0.6) else 0.0,
        low=stream.between(0.0, 0.55) if stream.chance(0.75) else stream.between(0.55, 1.0),
        high=stream.between(0.93, 1.0),
        bend=stream.between(0.0, 4.5),
        gamma=stream.between(0.6, 1.35),
        black=black,
        white=black + stream.between(0.28, 0.5) if flat else stream.between(0.82, 1.0),
        noise=stream.between(0.005, 0.04) * (1.5 if supine else 1.0) * (2.5 if stream.chance(0.15) else 1.0),
        blur=stream.between(0.0, 0.8),
        equalized=stream.chance(0.12),
    )


def develop(attenuation: FloatArray, taken: Exposure, frame: Frame, stream: RandomStream) -> GrayArray:
    """Turn cm of water into gray values."""
    through = _transmission()[np.minimum(attenuation * np.float32(_STEPS), _MOST * _STEPS).astype(np.int32)]
    scattered = _wide_blur(through, frame, 0.09)
    total = through.astype(np.uint32) + (scattered.astype(np.uint32) * round(taken.scatter * 1024) >> 10)
    seen = _depths()[np.minimum(total >> 1, 65535)]
    if taken.local:
        around = _wide_blur(seen, frame, 0.05).astype(np.int32)
        middle = int(np.median(around[::4, ::4]))
        evened = seen.astype(np.int32) - ((around - middle) * round(taken.local * 1024) >> 10)
        seen = np.clip(evened, 0, 65535).astype(np.uint16)
    seen = np.clip(seen.astype(np.int32) + _noise(seen, taken, frame, stream), 0, 65535).astype(np.uint16)
    gray: GrayArray = _curve(seen, taken)[seen >> _COARSE]
    return gray


def finish(gray: GrayArray, taken: Exposure, frame: Frame) -> GrayArray:
    """Blur as the detector does; only the printing comes after it."""
    return soften(gray, taken.blur * frame.side / 224)


@cache
def _transmission() -> GrayArray:
    """Return the table of transmission through some cm of water, in 65535ths."""
    depth = np.arange(_MOST * _STEPS + 1) / _STEPS
    through: GrayArray = np.rint(np.exp(-_WATER * depth) * 65535).astype(np.uint16)
    return through


@cache
def _depths() -> GrayArray:
    """Return the table of apparent cm of water, indexed by half of the transmission."""
    share = np.maximum(np.arange(65536) * 2, 1) / 65535
    return np.rint(np.clip(-np.log(share) / _WATER, 0, 65) * _DEPTH).astype(np.uint16)


def _wide_blur(layer: GrayArray, frame: Frame, reach: float) -> GrayArray:
    """Blur by a share of the square's side, computed on a small copy."""
    factor = max(1, frame.side // 56)
    small = cv2.resize(layer, (frame.columns // factor, frame.rows // factor), interpolation=cv2.INTER_LINEAR_EXACT)
    sigma = reach * frame.side / factor
    size = 2 * round(2 * sigma) + 1
    small = cv2.GaussianBlur(small, (size, size), sigma, hint=cv2.ALGO_HINT_ACCURATE)
    return np.asarray(cv2.resize(small, (frame.columns, frame.rows), interpolation=cv2.INTER_LINEAR_EXACT))


def _noise(seen: GrayArray, taken: Exposure, frame: Frame, stream: RandomStream) -> NDArray[np.int32]:
    """Draw noise in thousandths of a cm, stronger where less radiation passes."""
    raw = stream.bytes(4, frame.rows, frame.columns).astype(np.int32)
    even = raw[0] + raw[1] + raw[2] + raw[3] - 510
    # 148 is the standard deviation of the sum of four bytes.
    weight = np.rint(taken.noise * _DEPTH / 148 * 1024 * np.exp(_WATER / 2 * np.arange(66) * 0.55)).astype(np.int32)
    noise: NDArray[np.int32] = (even * weight[seen >> 10]) >> 10
    return noise


def _curve(seen: GrayArray, taken: Exposure) -> GrayArray:
    """Return the table from coarse depth to gray that maps a film's own range."""
    inner = seen[::2, ::2].ravel()
    inside = inner[inner > 2 * _DEPTH]
    ranked = np.sort(inside if len(inside) > 100 else inner)
    low = round(taken.low * int(ranked[len(ranked) // 25]))
    high = max(int(ranked[int(taken.high * (len(ranked) - 1))]), low + _DEPTH)
    x = np.clip(((np.arange(65536 >> _COARSE) << _COARSE) - low) / (high - low), 0, 1) ** taken.gamma
    if taken.equalized:
        counts = np.cumsum(np.bincount(ranked >> _COARSE, minlength=65536 >> _COARSE))
        x = 0.6 * counts / counts[-1] + 0.4 * x
    if taken.bend > 0.2:
        edge = 1 / (1 + np.exp(taken.bend / 2))
        x = (1 / (1 + np.exp(-taken.bend * (x - 0.5))) - edge) / (1 - 2 * edge)
    return np.rint((taken.black + (taken.white - taken.black) * x) * 65535).astype(np.uint16)


def shutters(stream: RandomStream) -> ShutterWindow:
    """Draw the part of the square that the collimator leaves visible."""
    if not stream.chance(_SHUTTERED):
        return ShutterWindow()
    near, far = [0.0, 0.0], [1.0, 1.0]
    for axis in (0, 1):
        if stream.chance(0.6):
            near[axis] = stream.between(0.0, 0.07)
        if stream.chance(0.6):
            far[axis] = 1 - stream.between(0.0, 0.07)
    return ShutterWindow(left=near[0], top=near[1], right=far[0], bottom=far[1])


def shut(gray: GrayArray, window: ShutterWindow, frame: Frame, stream: RandomStream) -> None:
    """Cover the collimated margins: black, white or gray."""
    color = stream.pick((0, 0, 0, 65535, 58000, 12000))
    left, top = (frame.columns - frame.side) // 2, (frame.rows - frame.side) // 2
    if window.top > 0:
        gray[: top + round(window.top * frame.side)] = color
    if window.bottom < 1:
        gray[top + round(window.bottom * frame.side) :] = color
    if window.left > 0:
        gray[:, : left + round(window.left * frame.side)] = color
    if window.right < 1:
        gray[:, left + round(window.right * frame.side) :] = color


def label(gray: GrayArray, frame: Frame, stream: RandomStream) -> None:
    """Draw side markers and words where technicians place them; the marker always shows the true side."""
    layer = np.zeros(gray.shape, dtype=np.uint8)
    if stream.chance(0.8):
        letter = stream.pick("LLR")
        x = stream.between(0.84, 0.96) if letter == "L" else stream.between(0.04, 0.16)
        at, size = (x, stream.between(0.03, 0.2)), stream.between(0.018, 0.04)
        _write(
            layer,
            frame,
            letter,
            at,
            size,
            turn=stream.near(0, 0.15) if stream.chance(0.7) else stream.between(-1.6, 1.6),
        )
        if stream.chance(0.3):
            ring = np.arange(25) * (2 * np.pi / 24)
            _draw(
                layer, frame, np.stack([at[0] + size * np.cos(ring), at[1] + size * np.sin(ring)], axis=1), size * 0.15
            )
    if stream.chance(0.3):
        at = (stream.between(0.15, 0.85), stream.pick((stream.between(0.02, 0.08), stream.between(0.9, 0.97))))
        _write(layer, frame, stream.pick(_WORDS), at, stream.between(0.008, 0.014), turn=0.0)
    if stream.chance(0.05):
        _plate(layer, frame, stream)
    level = stream.whole(190, 257)
    np.maximum(gray, layer.astype(np.uint16) * np.uint16(level), out=gray)


def _plate(layer: NDArray[np.uint8], frame: Frame, stream: RandomStream) -> None:
    """Cover a corner with a name plate; it is blank."""
    x, y = stream.pick((0.0, 0.8)), stream.pick((0.0, 0.92))
    corner = np.array([(x, y), (x + 0.2, y), (x + 0.2, y + 0.08), (x, y + 0.08)])
    cv2.fillPoly(layer, [_fixed(frame, corner)], (215,), lineType=cv2.LINE_AA, shift=4)


def _write(
    layer: NDArray[np.uint8], frame: Frame, text: str, at: tuple[float, float], size: float, *, turn: float
) -> None:
    """Draw letters of a size around a point, both in units of the square."""
    start = -len(text) * 1.4
    cosine, sine = np.cos(turn) * size / 2.2, np.sin(turn) * size / 2.2
    for number, letter in enumerate(text):
        for stroke in _LETTERS.get(letter, ()):
            corners = [tuple(map(float, word.split(",") if "," in word else word)) for word in stroke.split()]
            line = np.array(corners)
            x, y = line[:, 0] + (start + number * 2.8 + 0.4), line[:, 1] - 1.5
            turned = np.stack([at[0] + cosine * x - sine * y, at[1] + sine * x + cosine * y], axis=1)
            _draw(layer, frame, turned, size * 0.22)


def _draw(layer: NDArray[np.uint8], frame: Frame, line: NDArray[np.float64], width: float) -> None:
    thick = max(1, round(width * frame.side))
    cv2.polylines(layer, [_fixed(frame, line)], False, (255,), thick, lineType=cv2.LINE_AA, shift=4)


def _fixed(frame: Frame, line: NDArray[np.float64]) -> NDArray[np.int32]:
    offset = np.array([(frame.columns - frame.side) / 2, (frame.rows - frame.side) / 2])
    fixed: NDArray[np.int32] = np.rint((line * frame.side + offset - 0.5) * 16).astype(np.int32)
    return fixed
