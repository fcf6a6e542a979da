"""Draw onto films for training what is no finding: letters, collimation, leads, buttons and clips.

Nothing of it changes a label, so a network learns to leave it alone.
"""

from __future__ import annotations

import string

import cv2
import numpy as np
from numpy.typing import NDArray

from models.lab.training.stages import Augmentation

Film = NDArray[np.uint8]

_LETTERS = ("L", "R", "AP", "PA", "PORTABLE", "SUPINE", "UPRIGHT", "SEMI ERECT")
_FONTS = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_PLAIN)
_WIDEST_MARGIN = 0.08
"""The widest dark margin of a collimated film, as a share of its side."""


def overlay(pixels: Film, rule: Augmentation, rng: np.random.Generator) -> Film:
    """Draw onto a film [side, side]; the given array is not changed."""
    shown = pixels.copy()
    if rng.random() < rule.leads:
        _leads(shown, rng)
    if rng.random() < rule.clips:
        _buttons_and_clips(shown, rng)
    if rng.random() < rule.margin:
        _margins(shown, rng)
    if rng.random() < rule.letters:
        _letters(shown, rng)
    return shown


def _leads(shown: Film, rng: np.random.Generator) -> None:
    """Draw one to four leads of an electrocardiogram: a thin wire, and an electrode at its end."""
    side = shown.shape[0]
    for _ in range(int(rng.integers(1, 5))):
        start = rng.uniform([0, 0.7], [1, 1]) if rng.random() < 0.5 else rng.uniform([0, 0], [1, 0.25])
        end = rng.uniform(0.12, 0.88, size=2)
        bend = (start + end) / 2 + rng.normal(0, 0.12, size=2)
        share = np.linspace(0, 1, 24)[:, np.newaxis]
        line = (1 - share) ** 2 * start + 2 * share * (1 - share) * bend + share**2 * end
        gray = _bright(shown, end, rng)
        cv2.polylines(shown, [np.round(line * side).astype(np.int32)], isClosed=False, color=gray, lineType=cv2.LINE_AA)
        cv2.circle(shown, _point(end, side), max(2, side // 75), gray, thickness=-1, lineType=cv2.LINE_AA)


def _buttons_and_clips(shown: Film, rng: np.random.Generator) -> None:
    """Draw a row of buttons, or a few short bright clips."""
    side = shown.shape[0]
    if rng.random() < 0.5:
        column, top, step = rng.uniform(0.35, 0.65), rng.uniform(0.1, 0.4), rng.uniform(0.08, 0.16)
        for number in range(int(rng.integers(2, 6))):
            center = np.array([column, top + number * step])
            thickness = -1 if rng.random() < 0.5 else 1
            cv2.circle(shown, _point(center, side), max(2, side // 90), _bright(shown, center, rng), thickness)
        return
    middle = rng.uniform(0.2, 0.8, size=2)
    for _ in range(int(rng.integers(1, 6))):
        center = (middle + rng.normal(0, 0.04, size=2)).clip(0, 0.99)
        turn, length = rng.uniform(0, np.pi), rng.uniform(0.008, 0.02)
        reach = np.array([np.cos(turn), np.sin(turn)]) * length
        ends = _point(center - reach, side), _point(center + reach, side)
        cv2.line(shown, *ends, color=_bright(shown, center, rng), thickness=1, lineType=cv2.LINE_AA)


def _margins(shown: Film, rng: np.random.Generator) -> None:
    """Darken or whiten up to four margins."""
    side, gray = shown.shape[0], 0 if rng.random() < 0.8 else 255
    left, top, right, bottom = (rng.uniform(0, _WIDEST_MARGIN, size=4) * (rng.random(4) < 0.5) * side).astype(int)
    shown[:top], shown[side - bottom :] = gray, gray
    shown[:, :left], shown[:, side - right :] = gray, gray


def _letters(shown: Film, rng: np.random.Generator) -> None:
    """Write a marker or a few characters near a corner."""
    side = shown.shape[0]
    text = str(rng.choice(_LETTERS)) if rng.random() < 0.7 else "".join(rng.choice([*string.digits], size=6))
    scale = float(rng.uniform(0.25, 0.6)) * side / 224
    where = rng.uniform(0.01, 0.12, size=2)
    if rng.random() < 0.5:
        where[0] = 0.97 - where[0] - 0.035 * len(text)
    if rng.random() < 0.4:
        where[1] = 1 - where[1]
    origin = _point(where.clip(0, 0.97) + np.array([0, 0.03]), side)
    font = int(rng.choice(_FONTS))
    cv2.putText(shown, text, origin, font, scale, int(rng.integers(190, 256)), thickness=1, lineType=cv2.LINE_AA)


def _bright(shown: Film, center: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Return a gray value brighter than the film at a place."""
    column, row = _point(center.clip(0, 0.999), shown.shape[0])
    there = int(shown[min(row, len(shown) - 1), min(column, len(shown) - 1)])
    return min(255, there + int(rng.integers(25, 120)))


def _point(place: NDArray[np.float64], side: int) -> tuple[int, int]:
    """Return the column and row of a place given in 0..1."""
    column, row = (place * side).round().astype(int).tolist()
    return column, row
