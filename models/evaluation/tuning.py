"""Chooses a manifest's decisions on validation films; the network stays unchanged.

In the order of spec §9.2: a scale for each finding's boxes, how boxes are scored, and the overlap at which a box is
suppressed. Then the temperature that makes the labels most likely, the thresholds of all findings at their best common
F1, or each at a requested sensitivity, and the threshold of regions. A threshold that the films say nothing about, and
the review band, keep their difference of cosines. Test films are never used; the caller ensures that with
`check_tunable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from models.errors import ModelError
from models.evaluation.bootstrap import mean
from models.evaluation.calibration import Marks, Scores, calibration_error
from models.evaluation.cases import Truth
from models.evaluation.detection import Detections, Precision, summary
from models.evaluation.evaluated_model import Weighed, logit
from models.evaluation.reports import f1
from models.manifest import Decisions, DetectionRule, Manifest
from models.network.detector import Detection
from models.phantoms import FINDINGS, PhantomSet

SCALES: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0)
SHARPNESS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 1.0)
OVERLAPS: Final = (0.05, 0.1, 0.25, 0.5)
_ROUNDS: Final = 10
TEMPERATURES: Final = tuple(round(float(value), 6) for value in np.geomspace(0.005, 2.0, 120))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The tuned manifest, and the figures before and after on the films that it was tuned on."""

    manifest: Manifest
    before: dict[str, object]
    after: dict[str, object]


def check_tunable(films: object) -> None:
    """Raise ModelError unless the films are for validation."""
    if not (isinstance(films, PhantomSet) and films.split == "validate"):
        raise ModelError(
            f"{films} cannot be used for tuning, which uses seeds 1000000 to 1999999 only; "
            "give --data phantoms:1000000:COUNT"
        )


def tune(
    manifest: Manifest,
    truths: Sequence[Truth],
    weighed: Sequence[Weighed],
    *,
    detections: Callable[[Detection, DetectionRule], Detections],
    sensitivity: float | None = None,
) -> Tuned:
    """Choose all decisions.

    detections: scores located boxes by a rule
    sensitivity: that each finding must reach; None for the best F1
    """

    def precision(rule: DetectionRule) -> dict[str, float | None]:
        return Precision(truths, [detections(film.located, rule) for film in weighed]).per_class()

    differences = _table(weighed, lambda film: film.differences)
    there = {key: np.array([truth.labels[key] for truth in truths]) for key in differences if key in truths[0].labels}
    noted = _regions(truths, weighed)
    decisions = best_decisions(manifest.decisions, differences, there, noted=noted, sensitivity=sensitivity)
    after = replace(manifest, decisions=decisions, detection=best_rule(manifest.detection, precision))
    return Tuned(
        manifest=after,
        before=_figures(manifest, precision, differences, there, noted),
        after=_figures(after, precision, differences, there, noted),
    )


def best_rule(start: DetectionRule, precision: Callable[[DetectionRule], Mapping[str, float | None]]) -> DetectionRule:
    """Choose scales, then the score, then the overlap, each with the previous choices; among equals the first."""
    by_scale = {scale: precision(replace(start, scales=dict.fromkeys(FINDINGS, scale))) for scale in SCALES}
    nearest = sorted(SCALES, key=lambda scale: abs(scale - 1))
    scales = {key: max(nearest, key=lambda scale: by_scale[scale].get(key) or 0.0) for key in FINDINGS}
    scaled = replace(start, scales={key: scale for key, scale in scales.items() if scale != 1})
    scored = [
        scaled,
        replace(scaled, scored_by="weights"),
        *(replace(scaled, scored_by="prompts", temperature=value) for value in SHARPNESS),
        *(replace(scaled, scored_by="both", temperature=value) for value in SHARPNESS),
    ]
    best = _best(scored, precision)
    return _best([best, *(replace(best, overlap=overlap) for overlap in OVERLAPS)], precision)


def best_decisions(
    start: Decisions,
    differences: Mapping[str, Scores],
    there: Mapping[str, Marks],
    *,
    noted: tuple[Scores, Marks],
    sensitivity: float | None = None,
) -> Decisions:
    """Choose temperature and thresholds.

    differences: [film] of each judged prompt; there: [film], of those whose labels are known
    noted: positiveness of regions, and whether they hold any finding
    """
    # A finding that no film has would only lower the probabilities of the others.
    known = [key for key in differences if key in there and there[key].any()]
    temperature = best_temperature(
        np.concatenate([differences[key] for key in known]),
        np.concatenate([there[key] for key in known]),
        start=start.temperature,
    )
    chosen = best_thresholds(
        {key: sigmoid(differences[key] / temperature) for key in known},
        {key: there[key] for key in known},
        sensitivity=sensitivity,
    )
    kept = {
        key: same_point(threshold, start.temperature, temperature)
        for key, threshold in start.thresholds.items()
        if key not in chosen
    }
    region = best_threshold(*noted)
    default, lowest = (
        same_point(value, start.temperature, temperature)
        for value in (start.default_threshold, max(start.default_threshold - start.review_band, 0.0))
    )
    return replace(
        start,
        temperature=temperature,
        default_threshold=default,
        review_band=round(default - lowest, 6),
        thresholds=kept | chosen,
        region_threshold=start.region_threshold if region is None else region,
    )


def best_temperature(differences: Scores, there: Marks, *, start: float) -> float:
    """Choose the temperature that makes the labels most likely, from a list and the previous value."""

    def loss(temperature: float) -> float:
        return float(log_loss(there, sigmoid(differences / temperature), labels=[False, True]))

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
    return round(float(sigmoid(np.array(logit(threshold) * before / after))), 6)


def sigmoid(values: Scores) -> Scores:
    """Return the probabilities of logits, without overflow."""
    probabilities: Scores = 0.5 + 0.5 * np.tanh(values / 2)
    return probabilities


def _figures(
    manifest: Manifest,
    precision: Callable[[DetectionRule], Mapping[str, float | None]],
    differences: Mapping[str, Scores],
    there: Mapping[str, Marks],
    noted: tuple[Scores, Marks],
) -> dict[str, object]:
    """Compute the figures of a manifest's decisions."""
    decisions = manifest.decisions
    said = {key: sigmoid(differences[key] / decisions.temperature) for key in there}
    present = {key: said[key] >= decisions.threshold(key) for key in there}
    by_finding = {key: f1(there[key], present[key]) for key in there}
    return {
        **summary(precision(manifest.detection)),
        "calibration_error": calibration_error(
            np.concatenate([said[key] for key in there]), np.concatenate([there[key] for key in there])
        ),
        "finding_f1": mean(list(by_finding.values())),
        "finding_f1_per_class": by_finding,
        "region_f1": f1(noted[1], noted[0] > decisions.region_threshold),
        "temperature": decisions.temperature,
        "scored_by": manifest.detection.scored_by,
    }


def _best(
    rules: Sequence[DetectionRule], precision: Callable[[DetectionRule], Mapping[str, float | None]]
) -> DetectionRule:
    return max(rules, key=lambda rule: mean(list(precision(rule).values())) or 0.0)


def _table(weighed: Sequence[Weighed], of: Callable[[Weighed], Mapping[str, float]]) -> dict[str, Scores]:
    return {key: np.array([of(film)[key] for film in weighed], dtype=np.float64) for key in of(weighed[0])}


def _regions(truths: Sequence[Truth], weighed: Sequence[Weighed]) -> tuple[Scores, Marks]:
    """Join the positiveness of all visible regions with whether they hold any finding."""
    pairs = [
        (value, bool(truth.region_findings[name]))
        for truth, film in zip(truths, weighed, strict=True)
        for key, value in film.positiveness.items()
        if (name := key.replace("_", " ")) in truth.region_findings
    ]
    return np.array([value for value, _ in pairs]), np.array([noted for _, noted in pairs], dtype=np.bool_)
