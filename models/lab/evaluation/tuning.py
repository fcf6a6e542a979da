"""Chooses a manifest's decisions on validation films; the network stays unchanged.

On phantoms, in the order of spec §9.2, a scale for each finding's boxes, how boxes are scored, and the IoU above which
a box is suppressed; then the temperature that makes the labels most likely, and thresholds (`thresholds`). One that the
films say nothing about keeps its difference of cosines. On patient films a readout and a threshold for each finding
(`thresholds.choose`); one with a threshold of phantoms alone is left out there if too many films would show it
(`thresholds.MOST_UNMEASURED`). On both the bands below thresholds and the threshold of regions. Of each threshold
the manifest says on which films it was measured; it may hold one for phantoms and one for people. Test films are never
used; the caller ensures that with `check_tunable`.

Figures on films that chose decisions would say how well the choice fits them, and no more: `models.calibrate` writes
their digests into the manifest, and `models.evaluate` refuses to report on them, or chooses anew for each fold of
patients on the films of all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from language.labels import NO_FINDING
from models.decisions import PHANTOMS, Band, Decisions, Measurement
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.cases import CaseSource, Truth
from models.lab.evaluation.detection import OVERLAPS, best_settings, scored_by
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed, settings_of
from models.lab.evaluation.film_classification import LEAST_OF_OTHERS, films_of
from models.lab.evaluation.statistics import Marks, Scores
from models.lab.evaluation.thresholds import (
    MOST_UNMEASURED,
    Aim,
    Labelled,
    best_threshold,
    calibrate,
    is_recognized,
    measured_band,
    same_point,
)
from models.lab.evaluation.thresholds import choose as choose_points
from models.lab.phantoms import FINDINGS, PhantomSet
from models.lab.tasks.detection import DetectionSettings
from models.lab.training.split import folds_of
from models.manifest import DetectionRule, Manifest
from models.progress import ProgressReport

SHARPNESS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 1.0)


def digest(gray: FloatArray) -> str:
    """Return a hash that identifies a film: of its gray values [row, column], 0..1, in 256 steps."""
    return hashlib.sha256(np.round(gray * 255).astype(np.uint8).tobytes()).hexdigest()[:16]


def require_others(manifest: Manifest, films: CaseSource, report: ProgressReport) -> None:
    """Raise ModelError if a film of these chose the manifest's decisions."""
    chose, count = frozenset(manifest.chosen_on), 0
    for index in range(len(films) if chose else 0):
        count += digest(films.load(index).gray) in chose
        report("looking for films that chose", index + 1, len(films))
    if count:
        raise ModelError(
            f"{count} of {len(films)} films chose the thresholds of this model: figures on them would be no results; "
            "give --folds, which chooses for each fifth of the patients on films of the others, or give other films"
        )


def for_each_film(
    model: EvaluatedModel, films: CaseSource, *, population: str, most_false: float, report: ProgressReport
) -> list[EvaluatedModel]:
    """Return for each film the model with the decisions that the films of other patients choose, in five folds.

    population: the films' population; most_false: as in `films.cross_fitted`
    A finding that the model leaves out stays so. Raises ModelError if no film has a label of any finding.
    """
    truths, weighed = [], []
    for index in range(len(films)):
        case = films.load(index)
        truths.append(case.truth)
        weighed.append(model.weigh(case))
        report("weighing films", index + 1, len(films))
    folds = folds_of(films_of(truths, [film.differences for film in weighed]).patients)
    aim = Aim(false_findings=most_false, least=LEAST_OF_OTHERS)

    def chosen_without(fold: int) -> EvaluatedModel:
        others = np.flatnonzero(folds != fold)
        own = [truths[index] for index in others], [weighed[index] for index in others]
        left_out = model.manifest.decisions.left_out
        return model.deciding_by(tune(model.manifest, *own, population=population, aim=aim, left_out=left_out))

    by_fold = {fold: chosen_without(fold) for fold in np.unique(folds).tolist()}
    return [by_fold[fold] for fold in folds.tolist()]


def check_tunable(films: PhantomSet) -> None:
    """Raise ModelError unless phantoms are for validation."""
    if films.split != "validate":
        raise ModelError(
            f"{films} cannot be used to calibrate, which takes seeds 1000000 to 1999999 only; "
            "give phantoms:1000000:COUNT"
        )


def tune(
    manifest: Manifest,
    truths: Sequence[Truth],
    weighed: Sequence[Weighed],
    *,
    population: str,
    aim: Aim,
    left_out: Collection[str] = (),
) -> Manifest:
    """Choose temperature or readouts, thresholds and bands.

    population: the name of the films' population, for the manifest; left_out: the findings that stay as they are
    Raises ModelError if no film has a label, or too few show any finding.
    """
    decisions = best_decisions(
        manifest.decisions,
        {key: some for key, some in labelled(truths, weighed).items() if key not in left_out},
        noted=_regions(truths, weighed),
        population=population,
        aim=aim,
    )
    if population != PHANTOMS:
        decisions = without_often_shown(decisions, weighed)
    return replace(manifest, decisions=decisions)


def best_rule(
    start: DetectionRule, precision: Callable[[DetectionSettings], Mapping[str, float | None]]
) -> DetectionRule:
    """Choose scales, then the scoring, then the IoU for suppression, by average precision; of equals the first."""

    def scored(own: DetectionSettings) -> list[DetectionSettings]:
        return [
            own,
            replace(own, by_prompts=False, by_weights=True),
            *(replace(own, by_prompts=True, by_weights=False, temperature=value) for value in SHARPNESS),
            *(replace(own, by_prompts=True, by_weights=True, temperature=value) for value in SHARPNESS),
        ]

    before = settings_of(start)
    overlaps = list(dict.fromkeys((before.overlap, *OVERLAPS)))  # each once: it may be one of them
    best = best_settings(FINDINGS, before, scored, precision, overlaps=overlaps)
    return DetectionRule(
        scored_by=scored_by(best),
        temperature=best.temperature,
        scales={key: scale for key, scale in zip(FINDINGS, best.scales, strict=True) if scale != 1},
        overlap=best.overlap,
    )


def best_decisions(
    start: Decisions,
    films: Mapping[str, Labelled],
    *,
    noted: tuple[Scores, Marks],
    population: str,
    aim: Aim,
) -> Decisions:
    """Choose thresholds, and what makes probabilities.

    films: labeled films by key of the prompt
    noted: positiveness of regions, and whether they hold any finding
    """
    choose = _on_phantoms if population == PHANTOMS else _on_people
    decisions = choose(start, films, population=population, aim=aim)
    region = best_threshold(*noted)
    return decisions if region is None else replace(decisions, region_threshold=region)


def _on_phantoms(start: Decisions, films: Mapping[str, Labelled], *, population: str, aim: Aim) -> Decisions:
    """Choose on phantoms. A finding that is not recognized even there is left out on patient films."""
    temperature, chosen = calibrate(films, start=start.temperature, aim=aim)
    decisions = _at_temperature(start, temperature)
    for key, threshold in chosen.items():
        measurement = _measurement(films[key].at(temperature), threshold=threshold, population=population)
        decisions = decisions.measured(key, threshold, measurement)
        if not is_recognized(films[key]):
            decisions = decisions.leaving_out(key)
    return decisions


def _on_people(start: Decisions, films: Mapping[str, Labelled], *, population: str, aim: Aim) -> Decisions:
    decisions = start
    for key, point in choose_points(films, aim).items():
        some = films[key].read_out(point.readout)
        measurement = _measurement(some, threshold=point.threshold, population=population)
        decisions = decisions.measured(key, point.threshold, measurement, readout=point.readout)
    return decisions


def without_often_shown(decisions: Decisions, weighed: Sequence[Weighed]) -> Decisions:
    """Leave out each finding measured on phantoms alone that more than a tenth of the real films would show.

    On a film of a person such a finding is only to be reviewed, whatever its probability; "no finding" never is.
    """
    for key, measurement in decisions.measurements.items():
        is_asked = key in weighed[0].differences and key != NO_FINDING
        if is_asked and measurement.measured_on == PHANTOMS and not decisions.leaves_out(key):
            said = decisions.probability(key, np.array([film.differences[key] for film in weighed]))
            if np.mean(said >= decisions.lower(key)) > MOST_UNMEASURED:
                decisions = decisions.leaving_out(key)
    return decisions


def _at_temperature(start: Decisions, temperature: float) -> Decisions:
    """Return decisions that mean the same at another temperature; no readout depends on it."""

    def moved(threshold: float) -> float:
        return same_point(threshold, start.temperature, temperature)

    def moved_band(band: Band | None) -> Band | None:
        return None if band is None else replace(band, lower=moved(band.lower))

    def is_moved(key: str) -> bool:
        return key not in start.readout

    default, lowest = moved(start.default_threshold), moved(max(start.default_threshold - start.review_band, 0.0))
    return replace(
        start,
        temperature=temperature,
        default_threshold=default,
        review_band=round(default - lowest, 6),
        thresholds={
            key: moved(threshold) if is_moved(key) else threshold for key, threshold in start.thresholds.items()
        },
        measurements={
            key: replace(
                own,
                band=moved_band(own.band),
                threshold=None if own.threshold is None else moved(own.threshold),
            )
            if is_moved(key)
            else own
            for key, own in start.measurements.items()
        },
        phantoms={
            key: replace(own, threshold=moved(own.threshold), band=moved_band(own.band))
            for key, own in start.phantoms.items()
        },
    )


def _measurement(some: Labelled, *, threshold: float, population: str) -> Measurement:
    """Count a finding's films, and measure its band; some: with probabilities."""
    positives = int(some.there.sum())
    return Measurement(
        measured_on=population,
        positives=positives,
        negatives=len(some.there) - positives,
        band=measured_band(some.differences, some.there, threshold=threshold, normal=some.normal),
    )


def labelled(truths: Sequence[Truth], weighed: Sequence[Weighed]) -> dict[str, Labelled]:
    """Collect what is known of each judged prompt. Raises ModelError if no film has a label of any of them."""
    films: dict[str, Labelled] = {}
    is_normal = np.array([truth.is_normal for truth in truths], dtype=np.bool_)
    for key in weighed[0].differences:
        scores = np.array([film.differences[key] for film in weighed], dtype=np.float64)
        known = np.array([is_known(truth, key) for truth in truths], dtype=np.bool_)
        if known.any():
            there = np.array([truth.labels.get(key, False) for truth in truths], dtype=np.bool_)
            films[key] = Labelled(differences=scores[known], there=there[known], normal=scores[is_normal])
    if not any(some.there.any() for some in films.values()):
        raise ModelError("no film has a label that a threshold could be chosen by; label some films")
    return films


def is_known(truth: Truth, key: str) -> bool:
    """Return whether a film has a label of a finding; a mined "no finding" alone is none."""
    return key in truth.labels and (key != NO_FINDING or truth.mined_normal is None or bool(truth.read_as))


def _regions(truths: Sequence[Truth], weighed: Sequence[Weighed]) -> tuple[Scores, Marks]:
    """Join the positiveness of all visible regions with whether they hold any finding."""
    pairs = [
        (value, bool(truth.region_findings[name]))
        for truth, film in zip(truths, weighed, strict=True)
        for key, value in film.positiveness.items()
        if (name := key.replace("_", " ")) in truth.region_findings
    ]
    return np.array([value for value, _ in pairs]), np.array([noted for _, noted in pairs], dtype=np.bool_)
