"""What is on a film besides the patient: side markers, printed words, shutters, borders."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from models.lab.phantoms.film import GrayArray
from models.lab.phantoms.frame import Frame
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.regions import ShutterWindow

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
    """Cover what the collimator cut off: black, white or gray."""
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
