"""Measures the band of probabilities in which a finding is to be reviewed: where the films do not clearly lack it.

The band ends at the finding's threshold, from which it is present. It begins where the share of films that show the
finding, fitted to rise with the probability (isotonic regression), reaches one in ten: at every probability below that,
fewer do. So at least nine in ten of the films below the band do not show the finding, at their own mix of films. But it
begins at 0.5 at the latest, so that nothing is absent that is as likely as not.
More than a quarter of the films, or more than a tenth of those without any finding, are taken as too many to review. A
band that would hold so many begins at the lowest probability up to 0.5 from which it holds fewer (at 0.5 counts only
below a higher threshold), else where one in ten shows the finding, and then more than one in ten of the films below it
may show it. If it still would hold more than a quarter of the films, no band is written.
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
MOST_NORMAL: Final = 0.1
"""The largest share of the films without any finding that a band may hold."""
MOST_UNMEASURED: Final = 0.1
"""The largest share of real films that may be reviewed for a finding that was measured on phantoms alone."""


def measured_band(probabilities: Scores, there: Marks, *, threshold: float, normal: Scores) -> Band | None:
    """Measure the band below a threshold on films, [film]; normal: the probabilities of films without any finding.

    Returns None for a finding that is never present, which cannot be told from its absence, and for one whose band
    would hold more films than `MOST_REVIEWED` allows.
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
    begins = [lower]
    if threshold > NEVER_ABSENT:
        cuts = _halfway(probabilities)
        first, last = min(lower, NEVER_ABSENT), max(lower, NEVER_ABSENT)
        begins = [first, *cuts[(cuts > first) & (cuts < NEVER_ABSENT)].tolist(), NEVER_ABSENT, last]
    bands = [_counted(probabilities, there, normal, lower=begin, threshold=threshold) for begin in begins]
    few = [band for band in bands if band.within <= MOST_REVIEWED * len(probabilities)]
    return next((band for band in few if (band.normal or 0.0) <= MOST_NORMAL), few[-1] if few else None)


def _halfway(probabilities: Scores) -> Scores:
    """Return the points halfway between two films, rising, rounded down as a threshold is."""
    distinct = np.unique(probabilities)
    halfway: Scores = np.floor((distinct[1:] + distinct[:-1]) / 2 * 1e6) / 1e6
    return halfway


def _counted(probabilities: Scores, there: Marks, normal: Scores, *, lower: float, threshold: float) -> Band:
    below, within = probabilities < lower, (probabilities >= lower) & (probabilities < threshold)
    return Band(
        lower=lower,
        below=int(below.sum()),
        missed=int((below & there).sum()),
        within=int(within.sum()),
        shown=int((within & there).sum()),
        normal=round(float(((normal >= lower) & (normal < threshold)).mean()), 6) if len(normal) else None,
    )
