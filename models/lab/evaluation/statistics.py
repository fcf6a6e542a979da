"""Areas under ROC curves by sorting, calibration errors, and deviations over resampled films.

Our own: an interval by resampling asks for thousands of areas, and scikit-learn takes 16 times as long for each;
its calibration curve has no counts of films.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]

BINS = 15
Indices = NDArray[np.intp]
Figures = Mapping[str, float | None]
"""By name; None if there is nothing to measure."""


def area_under_curve(there: NDArray[np.bool_], scores: NDArray[np.float64]) -> float | None:
    """Return the share of pairs of a positive and a negative [n] that their scores order rightly; a tie counts half.

    None if all are positive, or none is. It is the Mann-Whitney U divided by the number of pairs.
    """
    positives, negatives = scores[there], np.sort(scores[~there])
    if not len(positives) or not len(negatives):
        return None
    below = np.searchsorted(negatives, positives, side="left").sum()
    not_above = np.searchsorted(negatives, positives, side="right").sum()
    return float((below + not_above) / 2 / (len(positives) * len(negatives)))


def calibration_error(probabilities: Scores, there: Marks) -> float:
    """Return the expected calibration error over 15 bins of equal width, each weighted by its share of the films."""
    gaps = np.bincount(_places(probabilities), weights=there - probabilities, minlength=BINS)
    return float(np.abs(gaps).sum() / len(probabilities))


def reliability(probabilities: Scores, there: Marks) -> list[tuple[float, float, int]]:
    """Return the mean probability, the frequency and the count of each non-empty bin, in rising order."""
    places = _places(probabilities)
    return [
        (float(probabilities[mine].mean()), float(there[mine].mean()), int(mine.sum()))
        for place in range(BINS)
        if (mine := places == place).any()
    ]


def _places(probabilities: Scores) -> NDArray[np.intp]:
    return np.minimum((probabilities * BINS).astype(np.intp), BINS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """A bootstrap over films; resamples: number of resampled sets, 0 for none."""

    resamples: int = 100

    def deviations(self, measure: Callable[[Indices], Figures], films: int) -> dict[str, float]:
        """Return the standard deviation of each figure that could be measured at least twice.

        measure: computes the figures of the films with these row numbers, which may repeat
        """
        rng = np.random.default_rng(0)
        drawn = [measure(rng.integers(films, size=films)) for _ in range(self.resamples)]
        values = {
            name: [value for figures in drawn if (value := figures[name]) is not None] for name in (drawn or [{}])[0]
        }
        return {name: float(np.std(some, ddof=1)) for name, some in values.items() if len(some) > 1}


def mean(values: list[float | None] | list[float]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
