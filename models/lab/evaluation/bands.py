"""Measures the band of probabilities in which a finding is to be reviewed.

The band ends at the finding's threshold, from which it is present. It begins at the lowest probability from which, up
to the threshold, half of the films show the finding; but at 0.5 at the latest, so that nothing is absent that is as
likely as not. If no such probability is below the threshold, nothing is to be reviewed for it.
"""

from __future__ import annotations

from typing import Final

from models.decisions import LEFT_OUT, Band
from models.lab.evaluation.calibration import Marks, Scores
from models.lab.evaluation.thresholds import cuts_of

NEVER_ABSENT: Final = 0.5
"""The probability at which a band begins at the latest."""
MOST_UNMEASURED: Final = 0.1
"""The largest share of real films that may be reviewed for a finding that was measured on phantoms alone."""


def measured_band(probabilities: Scores, there: Marks, *, threshold: float, normal: Scores) -> Band | None:
    """Measure the band below a threshold on films, [film]; normal: the probabilities of films without any finding.

    Returns None for a finding that is never present, which cannot be told from its absence.
    """
    if threshold == LEFT_OUT:
        return None
    begins = [each for each in cuts_of(probabilities, there).thresholds[::-1].tolist() if each < threshold]
    bands = (_counted(probabilities, there, normal, lower=lower, threshold=threshold) for lower in begins)
    lowest = next((band.lower for band in bands if band.within and 2 * band.shown >= band.within), threshold)
    return _counted(probabilities, there, normal, lower=min(lowest, NEVER_ABSENT), threshold=threshold)


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
