"""How far a figure would move on other films: the deviation over films that are drawn anew, some twice, some not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Figures = Mapping[str, float | None]
"""By name; None where there is nothing to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """resamples: how often films are drawn, 0 for never; seed: of the draw, so that it is the same every time."""

    resamples: int = 100
    seed: int = 0

    def deviations(self, measure: Callable[[Indices], Figures], films: int) -> dict[str, float]:
        """Give the standard deviation of each figure that could be measured at least twice.

        measure: makes the figures of these films, by their numbers
        """
        rng = np.random.default_rng(self.seed)
        drawn = [measure(rng.integers(films, size=films)) for _ in range(self.resamples)]
        values = {name: [value for one in drawn if (value := one[name]) is not None] for name in (drawn or [{}])[0]}
        return {name: float(np.std(some, ddof=1)) for name, some in values.items() if len(some) > 1}


def mean(values: list[float | None] | list[float]) -> float | None:
    """Give the mean of what could be measured."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
