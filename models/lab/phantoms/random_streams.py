"""Reproducible random numbers: raw bits of PCG64, which numpy guarantees not to change, and arithmetic defined here.

Every part of a film has its own stream, named after the part. A part that draws more numbers or is left out therefore
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


class RandomStream:
    """A stream of random numbers, identified by a seed and the name of its purpose."""

    def __init__(self, seed: int, name: str) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def between(self, low: float, high: float) -> float:
        """Draw from a uniform distribution."""
        return low + (high - low) * (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def near(self, middle: float, spread: float) -> float:
        """Draw around a mean with a standard deviation, at most 3.5 deviations away."""
        return middle + spread * math.sqrt(3) * (sum(self.between(0, 1) for _ in range(4)) - 2)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.between(0, 1) < probability

    def whole(self, low: int, high: int) -> int:
        """Draw an integer, both ends included."""
        return low + int(self.between(0, high - low + 1))

    def pick(self, choices: Sequence[_T]) -> _T:
        """Choose one element."""
        return choices[self.whole(0, len(choices) - 1)]

    def units(self, *shape: int) -> NDArray[np.float64]:
        """Draw an array, uniform in 0..1."""
        raw = self._bits.random_raw(math.prod(shape))
        return ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def bytes(self, *shape: int) -> NDArray[np.uint8]:
        """Draw an array of bytes."""
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 8))
        return raw.astype("<u8").view(np.uint8)[:count].reshape(shape)
