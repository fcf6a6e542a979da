"""Measures the band of probabilities in which a finding is to be reviewed: where the films do not clearly lack it.

The band ends at the finding's threshold, from which it is present. It begins where the share of films that show the
finding, fitted to rise with the probability (isotonic regression), reaches one in ten: at every probability below that,
fewer do. So at least nine in ten of the films below the band do not show the finding, at their own mix of films.
A band that would hold more than a quarter of the films is not written: that is taken as too many to review.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import numpy as np
from sklearn.isotonic import IsotonicRegression

from models.decisions import Band, Decisions
from models.evaluation.calibration import Marks, Scores

CLEARLY_LOW: Final = 0.1
"""The share of films with a finding below which the finding is not reported."""
MOST_REVIEWED: Final = 0.25
"""The largest share of films that a band may hold."""


def measured_band(probabilities: Scores, there: Marks, *, threshold: float) -> Band | None:
    """Measure the band below a threshold on films, [film].

    Returns None for a finding that is never present, which cannot be told from its absence, and for one whose band
    would hold more films than `MOST_REVIEWED`.
    """
    if threshold >= 1:
        return None
    fitted = IsotonicRegression(y_min=0, y_max=1).fit_transform(probabilities, there.astype(np.float64))
    is_low = fitted < CLEARLY_LOW
    highest = probabilities[is_low].max(initial=0.0)
    begin = probabilities[~is_low].min(initial=threshold)
    # Halfway between two films, rounded down, as a threshold is.
    lower = min(float(np.floor((highest + begin) / 2 * 1e6) / 1e6), threshold) if begin < threshold else threshold
    below, within = probabilities < lower, (probabilities >= lower) & (probabilities < threshold)
    if within.sum() > MOST_REVIEWED * len(probabilities):
        return None
    return Band(
        lower=lower,
        below=int(below.sum()),
        missed=int((below & there).sum()),
        within=int(within.sum()),
        shown=int((within & there).sum()),
    )


def bands_of(decisions: Decisions, *, population: str) -> dict[str, dict[str, float]]:
    """Return the bands that were measured on a population, by finding, with their upper limits."""
    return {
        key: {"upper": decisions.threshold(key), **asdict(measurement.band)}
        for key, measurement in decisions.measurements.items()
        if measurement.band is not None and measurement.measured_on == population
    }
