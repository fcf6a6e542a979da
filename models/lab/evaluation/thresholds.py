"""Chooses temperature and thresholds on labelled films: at the best F1, at a sensitivity, or with few false findings.

With a limit on false findings, at most so many findings are called present on the mean film without a finding. Opacity
comes first and may use most of them, because it stands for most findings and radiologists read it, while other labels
are mined from reports. The others share what it leaves, for the greatest sum of sensitivities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.decisions import LEFT_OUT
from models.errors import ModelError
from models.lab.evaluation.calibration import Marks, Scores
from models.lab.evaluation.curves import area_under_curve
from models.lab.evaluation.evaluated_model import logit, sigmoid

TEMPERATURES: Final = tuple(round(float(value), 6) for value in np.geomspace(0.005, 2.0, 120))
LEAST_POSITIVES: Final = 15
"""How many real films must show a finding before it gets a threshold, or counts in a mean over findings."""
OPACITY: Final = "lung_opacity"
LEAST_THRESHOLD: Final = 0.4
"""Below it a finding that shares false findings is never present: nobody believes "present, 17 %"."""
FIRST_SHARE: Final = 0.8
"""The share of the false findings that opacity may use before all others."""
LEAST_AUROC: Final = 0.7
"""Below it films with a finding and films without it are hardly told apart."""
_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What thresholds are chosen for.

    sensitivity: that each finding must reach; None for the best common F1
    false_findings: the most findings that may be called present, on the mean film without a finding; None for any
    number. It goes before F1 and sensitivity
    least: how many films must show a finding, and how many not, before a threshold is chosen for it
    """

    sensitivity: float | None = None
    false_findings: float | None = None
    least: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """The films on which the label of one judged prompt is known, [film], and those without any finding, [normal].

    differences, normal: of the cosines to the prompt and to its opposite; there: whether it is present
    """

    differences: Scores
    there: Marks
    normal: Scores

    def is_enough(self, least: int) -> bool:
        """Say whether so many films show the finding, and so many do not."""
        positives = int(self.there.sum())
        return min(positives, len(self.there) - positives) >= least

    def at(self, temperature: float) -> Labelled:
        """Return the same with probabilities at a temperature instead of differences."""
        return Labelled(
            differences=sigmoid(self.differences / temperature),
            there=self.there,
            normal=sigmoid(self.normal / temperature),
        )


def is_recognized(some: Labelled) -> bool:
    """Say whether films with a finding are told apart from films without it."""
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
    if aim.false_findings is not None:
        chosen |= shared({key: said[key] for key in chosen if key != NO_FINDING}, most=aim.false_findings)
    return temperature, chosen


def shared(findings: Mapping[str, Labelled], *, most: float) -> dict[str, float]:
    """Share the false findings that are allowed on the mean film without a finding, for the most sensitivity.

    findings: with probabilities, all with the same films without a finding
    A threshold that calls n of N such films is expected to call (n + 1) / (N + 1) of others, so it counts as one more.
    A finding that is not worth its share, or is found at low probabilities alone, is left out.
    """
    films = max((len(some.normal) for some in findings.values()), default=0)
    budget = int(most * (films + 1) + 1e-9)
    first = findings.keys() & {OPACITY}
    spent, chosen = _most_sensitive({key: findings[key] for key in first}, int(budget * FIRST_SHARE))
    rest = {key: some for key, some in findings.items() if key not in first}
    return chosen | _most_sensitive(rest, budget - spent)[1]


def _most_sensitive(findings: Mapping[str, Labelled], budget: int) -> tuple[int, dict[str, float]]:
    """Choose the thresholds with the greatest sum of sensitivities; returns what they cost, too."""
    # By what may be spent: the sum of sensitivities, what was spent, and the thresholds.
    plans: list[tuple[float, int, dict[str, float]]] = [(0.0, 0, {})] * (budget + 1)
    for key, some in findings.items():
        offers = list(_offers(some, budget))
        plans = [
            max(
                (
                    (before + sensitivity, spent + cost, chosen | {key: threshold})
                    for cost, sensitivity, threshold in offers
                    if cost <= allowed
                    for before, spent, chosen in (plans[allowed - cost],)
                ),
                key=lambda plan: plan[0],
            )
            for allowed in range(budget + 1)
        ]
    _, spent, chosen = plans[-1]
    return spent, chosen


def _offers(some: Labelled, budget: int) -> Iterator[tuple[int, float, float]]:
    """Yield what a finding may cost: the cost, and the best sensitivity for it with its threshold."""
    yield 0, 0.0, LEFT_OUT
    cuts = _cuts(some.differences, some.there)
    costs = 1 + np.count_nonzero(some.normal >= cuts.thresholds[:, np.newaxis], axis=1)
    for cost in range(1, budget + 1):
        if len(right := cuts.right[(costs <= cost) & (cuts.thresholds >= LEAST_THRESHOLD)]):
            place = int(right.argmax())
            yield cost, float(right[place] / cuts.right[-1]), float(cuts.thresholds[place])


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
    cuts = {key: _cuts(probabilities[key], marks) for key, marks in there.items() if marks.any() and not marks.all()}
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


class _Cuts(NamedTuple):
    """All ways to divide a finding's films by a threshold, from none called positive to all.

    thresholds: probabilities; right, called: how many films are called correctly, and called at all
    """

    thresholds: Scores
    right: NDArray[np.intp]
    called: NDArray[np.intp]


def _cuts(probabilities: Scores, there: Marks) -> _Cuts:
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order]
    called = np.array([0, *(np.flatnonzero(np.diff(ordered)) + 1), len(ordered)])
    bounds = np.concatenate([[1.0], ordered, ordered[-1:]])
    # Halfway between two films, rounded down, so that a probability equal to the threshold reaches it.
    thresholds = np.floor((bounds[called] + bounds[called + 1]) / 2 * 1e6) / 1e6
    return _Cuts(thresholds, np.concatenate([[0], there[order].cumsum()])[called], called)


def _f1(cuts: _Cuts, others: Sequence[tuple[_Cuts, int]] = ()) -> Scores:
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
    return min(round(float(sigmoid(np.array(logit(threshold) * before / after))), 6), 0.999999)
