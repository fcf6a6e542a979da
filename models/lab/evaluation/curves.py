"""The area under the ROC curve, by sorting: an interval by resampling asks for thousands of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
