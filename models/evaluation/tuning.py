"""Chooses a manifest's decisions on validation films; the network stays unchanged.

In the order of spec §9.2: a scale for each finding's boxes, how boxes are scored, and the overlap at which a box is
suppressed. Then the temperature that makes the labels most likely, the thresholds of all findings at their best common
F1, or each at a requested sensitivity, raised where they call too much on films without a finding, and the threshold of
regions. A threshold that the films say nothing about, and the review band, keep their difference of cosines. Of each
threshold the manifest then says on which films it was measured. Test films are never used; the caller ensures that with
`check_tunable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from language.labels import NO_FINDING
from models.decisions import Decisions, Measurement
from models.errors import ModelError
from models.evaluation.bootstrap import mean
from models.evaluation.calibration import Marks, Scores, calibration_error
from models.evaluation.cases import Truth
from models.evaluation.detection import Detections, Precision, summary
from models.evaluation.evaluated_model import Weighed, logit
from models.evaluation.reports import f1
from models.manifest import DetectionRule, Manifest
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What thresholds are chosen for.

    sensitivity: that each finding must reach; None for the best common F1
    false_findings: the most findings that may be called present, on the mean film without a finding; None for any
    number. It goes before the sensitivity
    """

    sensitivity: float | None = None
    false_findings: float | None = None


def check_tunable(films: object, *, held_out: str | None) -> None:
    """Raise ModelError unless the films are for validation: phantoms of those seeds, or patients that were held out."""
    if isinstance(films, PhantomSet):
        if films.split != "validate":
            raise ModelError(
                f"{films} cannot be used for tuning, which uses seeds 1000000 to 1999999 only; "
                "give --data phantoms:1000000:COUNT"
            )
    elif held_out is None:
        raise ModelError(
            "thresholds must not be tuned on patients that the model was trained on; give --held-out as in the "
            "run file, or --held-out 1 if it was trained on none of these films"
        )


def tune(
    manifest: Manifest,
    truths: Sequence[Truth],
    weighed: Sequence[Weighed],
    *,
    detections: Callable[[Detection, DetectionRule], Detections],
    population: str,
    aim: Aim,
) -> Tuned:
    """Choose all decisions.

    detections: scores located boxes by a rule
    population: the name of the films' population, for the manifest
    """

    def precision(rule: DetectionRule) -> dict[str, float | None]:
        return Precision(truths, [detections(film.located, rule) for film in weighed]).per_class()

    films = _labelled(truths, weighed)
    noted = _regions(truths, weighed)
    decisions = best_decisions(manifest.decisions, films, noted=noted, population=population, aim=aim)
    after = replace(manifest, decisions=decisions, detection=best_rule(manifest.detection, precision))
    return Tuned(
        manifest=after,
        before=_figures(manifest, precision, films, noted),
        after=_figures(after, precision, films, noted),
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """The films on which the label of one judged prompt is known, [film], and those without any finding, [normal].

    differences, normal: of the cosines to the prompt and to its opposite; there: whether it is present
    """

    differences: Scores
    there: Marks
    normal: Scores


def best_decisions(
    start: Decisions,
    films: Mapping[str, Labelled],
    *,
    noted: tuple[Scores, Marks],
    population: str,
    aim: Aim,
) -> Decisions:
    """Choose temperature and thresholds.

    films: by key of a judged prompt
    noted: positiveness of regions, and whether they hold any finding
    """
    temperature, chosen = calibrate(films, start=start.temperature, aim=aim)
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
        measurements=dict(start.measurements)
        | {key: _measurement(films[key].there, population=population) for key in chosen},
        region_threshold=start.region_threshold if region is None else region,
    )


def calibrate(films: Mapping[str, Labelled], *, start: float, aim: Aim) -> tuple[float, dict[str, float]]:
    """Choose the temperature and the thresholds of findings; films: by key; start: the previous temperature.

    One film at least must show one of the findings.
    """
    # A finding that no film has would only lower the probabilities of the others.
    known = {key: some for key, some in films.items() if some.there.any()}
    temperature = best_temperature(
        np.concatenate([some.differences for some in known.values()]),
        np.concatenate([some.there for some in known.values()]),
        start=start,
    )
    chosen = best_thresholds(
        {key: sigmoid(some.differences / temperature) for key, some in known.items()},
        {key: some.there for key, some in known.items()},
        sensitivity=aim.sensitivity,
    )
    if aim.false_findings is not None:
        normal = {key: sigmoid(known[key].normal / temperature) for key in chosen if key != NO_FINDING}
        chosen |= raised(chosen, normal, most=aim.false_findings)
    return temperature, chosen


def raised(thresholds: Mapping[str, float], normal: Mapping[str, Scores], *, most: float) -> dict[str, float]:
    """Raise thresholds until at most so many findings are called present on the mean film without a finding.

    Each finding gets an equal share of them.
    normal: probabilities on the films without a finding, by key
    """
    share = most / len(normal) if normal else 0.0
    return {key: max(thresholds[key], _least_called(values, share=share)) for key, values in normal.items()}


def _least_called(values: Scores, *, share: float) -> float:
    """Return the lowest threshold, in millionths, that at most a share of the values reach."""
    allowed = int(share * len(values) + 1e-9)
    if allowed >= len(values):
        return 0.0
    first_refused = float(np.sort(values)[::-1][allowed])
    return min(float(np.floor(first_refused * 1e6) + 1) / 1e6, 1.0)


def _measurement(there: Marks, *, population: str) -> Measurement:
    positives = int(there.sum())
    return Measurement(measured_on=population, positives=positives, negatives=len(there) - positives)


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
    films: Mapping[str, Labelled],
    noted: tuple[Scores, Marks],
) -> dict[str, object]:
    """Compute the figures of a manifest's decisions."""
    decisions = manifest.decisions
    said = {key: sigmoid(some.differences / decisions.temperature) for key, some in films.items()}
    by_finding = {key: f1(some.there, said[key] >= decisions.threshold(key)) for key, some in films.items()}
    return {
        **summary(precision(manifest.detection)),
        "calibration_error": calibration_error(
            np.concatenate(list(said.values())), np.concatenate([some.there for some in films.values()])
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


def _labelled(truths: Sequence[Truth], weighed: Sequence[Weighed]) -> dict[str, Labelled]:
    """Collect what is known of each judged prompt. Raises ModelError if no film has a label of any of them."""
    films: dict[str, Labelled] = {}
    for key in weighed[0].differences:
        known = [
            (film.differences[key], truth.labels[key])
            for truth, film in zip(truths, weighed, strict=True)
            if key in truth.labels
        ]
        if known:
            films[key] = Labelled(
                differences=np.array([value for value, _ in known], dtype=np.float64),
                there=np.array([there for _, there in known], dtype=np.bool_),
                normal=np.array(
                    [
                        film.differences[key]
                        for truth, film in zip(truths, weighed, strict=True)
                        if truth.labels.get(NO_FINDING)
                    ],
                    dtype=np.float64,
                ),
            )
    if not any(some.there.any() for some in films.values()):
        raise ModelError(
            "no film has a label that a threshold could be chosen by; add nih_labels or labels to its line"
        )
    return films


def _regions(truths: Sequence[Truth], weighed: Sequence[Weighed]) -> tuple[Scores, Marks]:
    """Join the positiveness of all visible regions with whether they hold any finding."""
    pairs = [
        (value, bool(truth.region_findings[name]))
        for truth, film in zip(truths, weighed, strict=True)
        for key, value in film.positiveness.items()
        if (name := key.replace("_", " ")) in truth.region_findings
    ]
    return np.array([value for value, _ in pairs]), np.array([noted for _, noted in pairs], dtype=np.bool_)
