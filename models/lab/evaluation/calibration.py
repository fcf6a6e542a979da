"""How far probabilities are from observed frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]

BINS = 15


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
