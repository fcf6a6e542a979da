"""Chooses the operating points of findings on films of people: readout, and the probability from which one is present.

The readout is the logistic curve that makes the labels most likely. How many films without a finding a threshold calls
is read off an exponential tail, fitted to the upper half of what such films show, because so few of them are known that
their highest alone says little. Opacity may call half of the false findings that are allowed, and the other findings
share the other half; of the films that a finding calls, half must show it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from language.labels import NO_FINDING
from models.decisions import LEFT_OUT, Readout, sigmoid
from models.lab.evaluation.calibration import Marks, Scores
from models.lab.evaluation.thresholds import OPACITY, Aim, Labelled, best_threshold, cuts_of

FIRST_SHARE: Final = 0.5
"""The share of the false findings that are allowed, that opacity has alone."""
_LEAST_SLOPE, _LEAST_BEND, _PRECISION, _MOST_STEPS = 1e-6, 1e-9, 1e-9, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How a finding is decided; threshold: `LEFT_OUT` if it is never present."""

    readout: Readout
    threshold: float


def choose(films: Mapping[str, Labelled], aim: Aim) -> dict[str, Point]:
    """Choose the points of the findings that enough films show, and enough do not; films: by key."""
    known = {key: some for key, some in films.items() if some.is_enough(aim.least)}
    others = len(known.keys() - {NO_FINDING, OPACITY})
    chosen = {}
    for key, some in known.items():
        readout = fitted(some.differences, some.there)
        said = some.read_out(readout)
        if aim.sensitivity is not None or key == NO_FINDING:
            threshold = best_threshold(said.differences, said.there, sensitivity=aim.sensitivity)
        elif aim.false_findings is None or len(said.normal) < aim.least:
            threshold = LEFT_OUT
        else:
            share = FIRST_SHARE if key == OPACITY else (1 - FIRST_SHARE) / others
            threshold = max(expected(said.normal, aim.false_findings * share), half_right(said))
        chosen[key] = Point(readout=readout, threshold=LEFT_OUT if threshold is None else threshold)
    return chosen


def fitted(differences: Scores, there: Marks) -> Readout:
    """Fit the logistic curve; labels are drawn in a little, so that it stays flat enough (Platt 1999)."""
    middle, width = differences.mean(), differences.std() or 1.0
    positives = int(there.sum())
    likely = np.where(there, (positives + 1) / (positives + 2), 1 / (len(there) - positives + 2))
    steepness, height = _least_loss((differences - middle) / width, likely)
    if steepness <= 0:  # what tells the opposite is not turned round
        steepness, height = 0.0, np.log(likely.mean() / (1 - likely.mean()))
    slope = float(steepness / width)
    return Readout(slope=max(round(slope, 6), _LEAST_SLOPE), offset=round(float(height - slope * middle), 6))


def _least_loss(scores: Scores, likely: Scores) -> Scores:
    """Return steepness and height [2] of the logistic curve of the least loss, which is convex, by Newton's method."""
    points = np.stack([scores, np.ones_like(scores)])  # [2, films]

    def loss(curve: Scores) -> float:
        logits = curve @ points
        return float((np.logaddexp(0.0, logits) - likely * logits).sum())

    curve = np.zeros(2)
    for _ in range(_MOST_STEPS):
        said = sigmoid(curve @ points)
        bend = points * said * (1 - said) @ points.T + np.eye(2) * _LEAST_BEND
        step = np.linalg.solve(bend, points @ (said - likely))
        while loss(curve - step) > loss(curve) and np.abs(step).max() > _PRECISION:
            step /= 2
        curve -= step
        if np.abs(step).max() <= _PRECISION:
            break
    return curve


def expected(normal: Scores, share: float) -> float:
    """Return the probability that so large a share of films without a finding are expected to reach, at least 12."""
    logits = np.log(normal / (1 - normal))
    median = np.median(logits)
    above = logits[logits > median]
    reached = median + (above - median).mean() * np.log(0.5 / share) if len(above) else median
    return round(float(sigmoid(reached)), 6)


def half_right(some: Labelled) -> float:
    """Return the lowest probability at which half of the films called show a finding, one more counted as called."""
    cuts = cuts_of(some.differences, some.there)
    is_half = 2 * cuts.right >= cuts.called + 1
    return float(cuts.thresholds[is_half][-1]) if is_half.any() else LEFT_OUT
