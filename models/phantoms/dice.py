"""Random numbers that stay the same: raw bits of PCG64, which numpy keeps for ever, and arithmetic of our own on them.

Every part of a film throws its own dice, named after the part. A part that throws once more or is left out therefore
changes nothing else in the film.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")


class Dice:
    """One stream of random numbers, chosen by a seed and the name of what it is for."""

    def __init__(self, seed: int, name: str) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def between(self, low: float, high: float) -> float:
        """Draw evenly."""
        return low + (high - low) * (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def near(self, middle: float, spread: float) -> float:
        """Draw around a middle, with a standard deviation and never further off than 3.5 of them."""
        return middle + spread * math.sqrt(3) * (sum(self.between(0, 1) for _ in range(4)) - 2)

    def chance(self, probability: float) -> bool:
        """Say yes with a probability."""
        return self.between(0, 1) < probability

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number, both ends included."""
        return low + int(self.between(0, high - low + 1))

    def pick(self, choices: Sequence[_T]) -> _T:
        """Choose one of some."""
        return choices[self.whole(0, len(choices) - 1)]

    def units(self, *shape: int) -> NDArray[np.float64]:
        """Draw an array, evenly in 0..1."""
        raw = self._bits.random_raw(math.prod(shape))
        return ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def bytes(self, *shape: int) -> NDArray[np.uint8]:
        """Draw an array of bytes."""
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 8))
        return raw.astype("<u8").view(np.uint8)[:count].reshape(shape)
