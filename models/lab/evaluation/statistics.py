"""Areas under ROC curves by sorting, calibration errors, and resampled films and patients.

Our own: an interval by resampling asks for thousands of areas, and scikit-learn takes 16 times as long for each;
its calibration curve has no counts of films.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]

BINS = 15
_INTERVAL = (2.5, 97.5)
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
    """A bootstrap; resamples: number of resampled sets, 0 for none.

    A measure computes the figures of the films with these row numbers, which may repeat.
    """

    resamples: int = 100

    def deviations(self, measure: Callable[[Indices], Figures], films: int) -> dict[str, float]:
        """Return the standard deviation, over films, of each figure that could be measured at least twice."""
        rng = np.random.default_rng(0)
        values = _values([measure(rng.integers(films, size=films)) for _ in range(self.resamples)])
        return {name: float(np.std(some, ddof=1)) for name, some in values.items() if len(some) > 1}

    def intervals(self, measure: Callable[[Indices], Figures], patients: NDArray[np.str_]) -> dict[str, list[float]]:
        """Return the bounds of the 95 % interval of each figure that could be measured, by drawing patients anew.

        patients: that of each film; all films of a patient stay together
        """
        rng = np.random.default_rng(0)
        names, owner = np.unique(patients, return_inverse=True)
        own = [np.flatnonzero(owner == number) for number in range(len(names))]
        drawn = [rng.integers(len(names), size=len(names)) for _ in range(self.resamples)]
        values = _values([measure(np.concatenate([own[number] for number in some])) for some in drawn])
        return {name: np.percentile(some, _INTERVAL).tolist() for name, some in values.items() if some}


def _values(drawn: Sequence[Figures]) -> dict[str, list[float]]:
    """Return the values of each figure on the resampled sets on which it could be measured."""
    return {name: [value for made in drawn if (value := made[name]) is not None] for name in (drawn or [{}])[0]}


def mean(values: list[float | None] | list[float]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
