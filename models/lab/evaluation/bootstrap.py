"""The standard deviation of a figure over resampled sets of films (bootstrap)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Figures = Mapping[str, float | None]
"""By name; None if there is nothing to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """resamples: how many resampled sets of films, 0 for none; seed: of the random numbers, so that results repeat."""

    resamples: int = 100
    seed: int = 0

    def deviations(self, measure: Callable[[Indices], Figures], films: int) -> dict[str, float]:
        """Return the standard deviation of each figure that could be measured at least twice.

        measure: computes the figures of these films, given by their numbers
        """
        rng = np.random.default_rng(self.seed)
        drawn = [measure(rng.integers(films, size=films)) for _ in range(self.resamples)]
        values = {
            name: [value for figures in drawn if (value := figures[name]) is not None] for name in (drawn or [{}])[0]
        }
        return {name: float(np.std(some, ddof=1)) for name, some in values.items() if len(some) > 1}


def mean(values: list[float | None] | list[float]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
