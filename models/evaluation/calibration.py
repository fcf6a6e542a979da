"""How far probabilities are from frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]

BINS = 15


def calibration_error(probabilities: Scores, there: Marks) -> float:
    """Give the expected calibration error: the gap of each of 15 bins of equal width, by the share that lies in it."""
    gaps = np.bincount(_places(probabilities), weights=there - probabilities, minlength=BINS)
    return float(np.abs(gaps).sum() / len(probabilities))


def reliability(probabilities: Scores, there: Marks) -> list[tuple[float, float, int]]:
    """Give the mean probability, the frequency and the number of each bin that holds any, from low to high."""
    places = _places(probabilities)
    return [
        (float(probabilities[mine].mean()), float(there[mine].mean()), int(mine.sum()))
        for place in range(BINS)
        if (mine := places == place).any()
    ]


def _places(probabilities: Scores) -> NDArray[np.intp]:
    return np.minimum((probabilities * BINS).astype(np.intp), BINS - 1)
