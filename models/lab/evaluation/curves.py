"""The area under the ROC curve, from ranks: an interval by resampling asks for thousands of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def area_under_curve(there: NDArray[np.bool_], scores: NDArray[np.float64]) -> float | None:
    """Return the share of pairs of a positive and a negative [n] that their scores order rightly; a tie counts half.

    None if all are positive, or none is. It is the Mann-Whitney U divided by the number of pairs.
    """
    positive = int(np.count_nonzero(there))
    negative = len(there) - positive
    if not positive or not negative:
        return None
    ranks = rankdata(scores)[there].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))
