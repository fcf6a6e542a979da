"""Change the gray values of films for training as hospitals differ: exposure, window, sharpness, noise, storage.

Films of one source must not be told from those of another by what their devices and their storage do to them, because
sources differ in what they show.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.lab.training.labels import FloatArray
from models.lab.training.stages import Augmentation

_QUALITIES = (40, 96)
_RESOLUTIONS = (0.4, 0.95)


def expose(pixels: NDArray[np.uint8], rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Change a film [side, side]. Returns values in 0..1."""
    gray = _window(_shares(pixels), rule, rng)
    gray = _sharpness(gray, rule, rng)
    if rule.noise:
        gray = gray + rng.standard_normal(gray.shape, dtype=np.float32) * np.float32(rng.uniform(0, rule.noise))
    gray = gray.clip(0, 1)
    return _stored(gray, rng) if rng.random() < rule.jpeg else gray


def _window(gray: FloatArray, rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Exchange black and white, change the brightness, the contrast about the film's mean, and the curve between."""
    if rule.invert and rng.random() < rule.invert:
        gray = 1 - gray
    brightness, contrast = 1 + rng.uniform(-1, 1, size=2) * (rule.brightness, rule.contrast)
    gray = gray * np.float32(brightness)
    gray = (gray - gray.mean()) * np.float32(contrast) + gray.mean()
    if rule.gamma:
        gray = gray.clip(0, 1) ** np.float32(np.exp(rng.uniform(-1, 1) * rule.gamma))
    if rng.random() < rule.equalize:
        levels = cv2.createCLAHE(clipLimit=float(rng.uniform(1, 4)), tileGridSize=(8, 8)).apply(_bytes(gray))
        gray = _shares(levels)
    return np.asarray(gray, dtype=np.float32)


def _sharpness(gray: FloatArray, rule: Augmentation, rng: np.random.Generator) -> FloatArray:
    """Blur, or reduce the resolution and enlarge again."""
    blurred, sigma = rng.random() < rule.blur, rng.uniform(0.1, max(0.1, rule.blur_sigma))
    if blurred:
        gray = np.asarray(cv2.GaussianBlur(gray, (3, 3), sigma), dtype=np.float32)
    if rng.random() < rule.coarse:
        side = gray.shape[0]
        small = max(2, round(side * rng.uniform(*_RESOLUTIONS)))
        reduced = cv2.resize(gray, (small, small), interpolation=cv2.INTER_AREA)
        gray = np.asarray(cv2.resize(reduced, (side, side), interpolation=cv2.INTER_LINEAR), dtype=np.float32)
    return gray


def _stored(gray: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Encode as JPEG of some quality, and decode."""
    _, encoded = cv2.imencode(".jpg", _bytes(gray), [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(*_QUALITIES))])
    return _shares(np.asarray(cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE)))


def _shares(levels: ArrayLike) -> FloatArray:
    """Return bytes as shares of white."""
    return np.asarray(levels, dtype=np.float32) / np.float32(255)


def _bytes(gray: FloatArray) -> NDArray[np.uint8]:
    return (gray.clip(0, 1) * 255 + 0.5).astype(np.uint8)
