"""The one decision about a prompt by its probability, for reports, questions and everything made of them.

Nothing is present, and nothing near present, unless the finding's threshold was measured on films of the kind that is
read. A site may trust every threshold all the same (`model.uncalibrated = "accept"`).
"""

from __future__ import annotations

from typing import Final

from models.contract import FindingState, Trusted
from models.decisions import PHANTOMS, Decisions, RatioError

NEAR: Final = 0.05
"""A probability less than this below the threshold, or below its band, came near it."""


def decide(decisions: Decisions, key: str | None, probability: float, *, trusted: Trusted) -> FindingState:
    """Decide about a prompt.

    key: of the prompt in the prompt set; None for a question of other words or about a box, for which no threshold can
    have been measured: it takes the default threshold
    probability: spec §8
    """
    if key is not None and decisions.leaves_out(key):
        return FindingState.LEFT_OUT
    threshold = decisions.default_threshold if key is None else decisions.threshold(key)
    if probability < decisions.lower(key):
        return FindingState.ABSENT
    if not is_trusted(decisions, key, trusted):
        return FindingState.UNCALIBRATED
    return FindingState.PRESENT if probability >= threshold else FindingState.INDETERMINATE


def is_trusted(decisions: Decisions, key: str | None, trusted: Trusted) -> bool:
    """Whether a threshold may call a finding present or absent. Never for a finding that is left out."""
    if key is not None and decisions.leaves_out(key):
        return False
    if trusted == "any":
        return True
    measurement = None if key is None else decisions.measurements.get(key)
    return measurement is not None and _counts(measurement.measured_on, trusted)


def is_near(decisions: Decisions, key: str, probability: float) -> bool:
    """Whether a probability is just below the reporting threshold. Never for a finding that is left out."""
    return not decisions.leaves_out(key) and probability > decisions.lower(key) - NEAR


def may_be_denied(decisions: Decisions, key: str, probability: float, *, trusted: Trusted) -> bool:
    """Whether a finding has a measured threshold and is far below it; with trust in any threshold, never."""
    return is_trusted(decisions, key, "real" if trusted == "any" else trusted) and not is_near(
        decisions, key, probability
    )


def is_ratio_measured(error: RatioError | None, trusted: Trusted) -> bool:
    """Return whether the error of the ratio was measured on the population that is read; `any`: on patient films."""
    return error is not None and _counts(error.measured_on, trusted)


def is_ratio_trusted(error: RatioError | None, trusted: Trusted) -> bool:
    """Return whether the cardiothoracic ratio of a model with this error may be compared with limits."""
    return error is not None and (trusted == "any" or _counts(error.measured_on, trusted))


def _counts(population: str, trusted: Trusted) -> bool:
    return (population == PHANTOMS) == (trusted == "phantoms")
