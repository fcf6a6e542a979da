"""Measures the band of probabilities in which a finding is to be reviewed: where the films do not clearly lack it.

The band ends at the finding's threshold, from which it is present. It begins where the share of films that show the
finding, fitted to rise with the probability (isotonic regression), reaches one in ten: at every probability below that,
fewer do. So at least nine in ten of the films below the band do not show the finding, at their own mix of films. But it
begins at 0.5 at the latest, so that nothing is absent that is as likely as not.
More than a quarter of the films are taken as too many to review. A band that would hold so many begins at the higher of
these two probabilities instead (0.5 counts only below a higher threshold), and then more than one in ten of the films
below it may show the finding; if it still would, no band is written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import isotonic_regression

from models.decisions import LEFT_OUT, Band
from models.lab.evaluation.calibration import Marks, Scores

CLEARLY_LOW: Final = 0.1
"""The share of films with a finding below which the finding is not reported."""
NEVER_ABSENT: Final = 0.5
"""The probability at which a band begins at the latest."""
MOST_REVIEWED: Final = 0.25
"""The largest share of films that a band may hold."""
MOST_UNMEASURED: Final = 0.1
"""The largest share of real films that may be reviewed for a finding that was measured on phantoms alone."""


def measured_band(probabilities: Scores, there: Marks, *, threshold: float) -> Band | None:
    """Measure the band below a threshold on films, [film].

    Returns None for a finding that is never present, which cannot be told from its absence, and for one whose band
    would hold more films than `MOST_REVIEWED`.
    """
    if threshold == LEFT_OUT:
        return None
    _, place, films = np.unique(probabilities, return_inverse=True, return_counts=True)
    shares = np.bincount(place, weights=there) / films  # films of one probability have one share
    fitted = isotonic_regression(shares, weights=films).x[place]
    is_low = fitted < CLEARLY_LOW
    highest = probabilities[is_low].max(initial=0.0)
    begin = probabilities[~is_low].min(initial=threshold)
    # Halfway between two films, rounded down, as a threshold is.
    lower = min(float(np.floor((highest + begin) / 2 * 1e6) / 1e6), threshold) if begin < threshold else threshold
    begins = [min(lower, NEVER_ABSENT), max(lower, NEVER_ABSENT)] if threshold > NEVER_ABSENT else [lower]
    bands = (_counted(probabilities, there, lower=first, threshold=threshold) for first in begins)
    return next((band for band in bands if band.within <= MOST_REVIEWED * len(probabilities)), None)


def _counted(probabilities: Scores, there: Marks, *, lower: float, threshold: float) -> Band:
    below, within = probabilities < lower, (probabilities >= lower) & (probabilities < threshold)
    return Band(
        lower=lower,
        below=int(below.sum()),
        missed=int((below & there).sum()),
        within=int(within.sum()),
        shown=int((within & there).sum()),
    )
