"""Chooses temperature and thresholds on phantoms, at the best F1 or a sensitivity, and points on patient films.

On patient films a finding has a readout, the logistic curve that makes the labels most likely, and the probability
from which it is present. How many films without a finding a threshold calls is read off an exponential tail, fitted to
the upper half of what such films show, because so few of them are known that their highest alone says little. Opacity
may call half of the false findings that are allowed, and the other findings share the other half; of the films that a
finding calls, half must show it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.decisions import LEFT_OUT, Band, Readout, sigmoid
from models.errors import ModelError
from models.lab.evaluation.statistics import Marks, Scores, area_under_curve

TEMPERATURES: Final = tuple(round(float(value), 6) for value in np.geomspace(0.005, 2.0, 120))
LEAST_POSITIVES: Final = 15
"""How many real films must show a finding before it gets a threshold, or counts in a mean over findings."""
OPACITY: Final = "lung_opacity"
LEAST_AUROC: Final = 0.7
"""The least AUROC of a finding that the model recognizes."""
NEVER_ABSENT: Final = 0.5
"""The probability at which a band begins at the latest."""
MOST_UNMEASURED: Final = 0.1
"""The largest share of real films that may be reviewed for a finding that was measured on phantoms alone."""
_ROUNDS: Final = 10
FIRST_SHARE: Final = 0.5
"""The share of the false findings that are allowed, that opacity has alone."""
_LEAST_SLOPE, _LEAST_BEND, _PRECISION, _MOST_STEPS = 1e-6, 1e-9, 1e-9, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What thresholds are chosen for.

    sensitivity: that each finding must reach; None for the best common F1
    false_findings: expected number of present findings on the average patient film without a finding
    least: how many films must show a finding, and how many not, before a threshold is chosen for it
    """

    sensitivity: float | None = None
    false_findings: float | None = None
    least: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """The films on which the label of one judged prompt is known, [film], and those without any finding, [normal].

    differences, normal: cosine to the prompt minus cosine to its opposite; there: whether it is present
    """

    differences: Scores
    there: Marks
    normal: Scores

    def is_enough(self, least: int) -> bool:
        """Return whether so many films show the finding, and so many do not."""
        positives = int(self.there.sum())
        return min(positives, len(self.there) - positives) >= least

    def at(self, temperature: float) -> Labelled:
        """Return the same films with probabilities at a temperature instead of differences."""
        return Labelled(
            differences=sigmoid(self.differences / temperature),
            there=self.there,
            normal=sigmoid(self.normal / temperature),
        )

    def read_out(self, readout: Readout) -> Labelled:
        """Return the same films with the probabilities of a readout instead of differences."""
        said, normal = (sigmoid(readout.slope * scores + readout.offset) for scores in (self.differences, self.normal))
        return Labelled(differences=said, there=self.there, normal=normal)


def is_recognized(some: Labelled) -> bool:
    """Return whether the AUROC of a finding is at least `LEAST_AUROC`."""
    area = area_under_curve(some.there, some.differences)
    return area is not None and area >= LEAST_AUROC


def calibrate(films: Mapping[str, Labelled], *, start: float, aim: Aim) -> tuple[float, dict[str, float]]:
    """Choose the temperature and the thresholds of findings; films: by key; start: the previous temperature.

    Raises ModelError if too few films show any of the findings.
    """
    # A finding that no film has would only lower the probabilities of the others.
    known = {key: some for key, some in films.items() if some.is_enough(aim.least)}
    if not known:
        raise ModelError(
            f"no finding that a threshold could be chosen for is on {aim.least} films and missing on {aim.least}; "
            "add films with labels"
        )
    temperature = best_temperature(
        np.concatenate([some.differences for some in known.values()]),
        np.concatenate([some.there for some in known.values()]),
        start=start,
    )
    said = {key: some.at(temperature) for key, some in known.items()}
    chosen = best_thresholds(
        {key: some.differences for key, some in said.items()},
        {key: some.there for key, some in said.items()},
        sensitivity=aim.sensitivity,
    )
    return temperature, chosen


def best_temperature(differences: Scores, there: Marks, *, start: float) -> float:
    """Choose the temperature that makes the labels most likely, from a list and the previous value."""
    against = np.where(there, -differences, differences)

    def loss(temperature: float) -> float:
        return float(np.logaddexp(0.0, against / temperature).mean())

    return min((start, *TEMPERATURES), key=loss)


def best_thresholds(
    probabilities: Mapping[str, Scores], there: Mapping[str, Marks], *, sensitivity: float | None = None
) -> dict[str, float]:
    """Choose the probabilities above which findings are present: at the best common F1, or each at a sensitivity.

    Chosen one by one, a finding that the model cannot recognize would be called present on every film; chosen together,
    on hardly any.
    No threshold is chosen for a finding that all films have, or none; among equals the highest threshold is.
    """
    cuts = {key: cuts_of(probabilities[key], marks) for key, marks in there.items() if marks.any() and not marks.all()}
    if sensitivity is not None:
        # A little less, because a share of a number of films is seldom a whole number.
        least = {key: sensitivity * own_cuts.right[-1] - 1e-9 for key, own_cuts in cuts.items()}
        return {
            key: float(own_cuts.thresholds[np.flatnonzero(own_cuts.right >= least[key])[0]])
            for key, own_cuts in cuts.items()
        }
    places = {key: int(_f1(own_cuts).argmax()) for key, own_cuts in cuts.items()}
    for _ in range(_ROUNDS):
        before = dict(places)
        for key in cuts:
            others = [(other_cuts, places[other]) for other, other_cuts in cuts.items() if other != key]
            places[key] = int(_f1(cuts[key], others).argmax())
        if places == before:
            break
    return {key: float(own_cuts.thresholds[places[key]]) for key, own_cuts in cuts.items()}


def best_threshold(probabilities: Scores, there: Marks, *, sensitivity: float | None = None) -> float | None:
    """Choose one threshold, as `best_thresholds` does; None if none is chosen."""
    return best_thresholds({"": probabilities}, {"": there}, sensitivity=sensitivity).get("")


class Cuts(NamedTuple):
    """All ways to divide a finding's films by a threshold, from none called positive to all.

    thresholds: probabilities; right, called: how many films are called correctly, and called at all
    """

    thresholds: Scores
    right: NDArray[np.intp]
    called: NDArray[np.intp]


def cuts_of(probabilities: Scores, there: Marks) -> Cuts:
    """Divide the films of a finding in all ways."""
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order]
    called = np.array([0, *(np.flatnonzero(np.diff(ordered)) + 1), len(ordered)])
    bounds = np.concatenate([[1.0], ordered, ordered[-1:]])
    # Halfway between two films, rounded down, so that a probability equal to the threshold reaches it.
    thresholds = np.floor((bounds[called] + bounds[called + 1]) / 2 * 1e6) / 1e6
    return Cuts(thresholds, np.concatenate([[0], there[order].cumsum()])[called], called)


def _f1(cuts: Cuts, others: Sequence[tuple[Cuts, int]] = ()) -> Scores:
    """Return the F1 at every cut of a finding, together with other findings at one cut each."""
    right = cuts.right + sum(other_cuts.right[place] for other_cuts, place in others)
    called = cuts.called + sum(other_cuts.called[place] for other_cuts, place in others)
    there = cuts.right[-1] + sum(other_cuts.right[-1] for other_cuts, _ in others)
    f1: Scores = 2 * right / (called + there)
    return f1


def same_point(threshold: float, before: float, after: float) -> float:
    """Return the threshold at the same difference of cosines, for another temperature."""
    if threshold == LEFT_OUT:
        return LEFT_OUT
    inner = min(max(threshold, 1e-7), 1 - 1e-7)
    logit = np.log(inner / (1 - inner))
    return min(round(float(sigmoid(logit * before / after)), 6), 0.999999)


def measured_band(probabilities: Scores, there: Marks, *, threshold: float, normal: Scores) -> Band | None:
    """Measure the band below a threshold on films, [film]; normal: the probabilities of films without any finding.

    The band, in which a finding is to be reviewed, ends at the finding's threshold. It begins at the lowest probability
    from which, up to the threshold, half of the films show the finding; but at 0.5 at the latest, so that nothing is
    absent that is as likely as not. If no such probability is below the threshold, nothing is to be reviewed for it.
    Returns None for a finding that is never present, because it is not distinguished from its absence.
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
