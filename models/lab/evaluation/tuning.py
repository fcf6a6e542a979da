"""Chooses a manifest's decisions on validation films; the network stays unchanged.

On phantoms first, in the order of spec §9.2, a scale for each finding's boxes, how boxes are scored, and the overlap at
which a box is suppressed; real films seldom have boxes of more than one finding, so they leave that as it is. Then the
temperature that makes the labels most likely, the thresholds (`thresholds`) with the bands below them (`bands`), and
that of regions. A finding with a threshold of phantoms alone is left out on real films if too many of them would show
it (`bands.MOST_UNMEASURED`). A threshold or band that the films say nothing about keeps its difference of cosines. Of
each threshold the manifest then says on which films it was measured; it may hold one for phantoms and one for real
films. Test films are never used; the caller ensures that with `check_tunable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from language.labels import NO_FINDING
from models.decisions import PHANTOMS, Band, Decisions, Measurement
from models.errors import ModelError
from models.lab.evaluation.bands import MOST_UNMEASURED, bands_of, measured_band
from models.lab.evaluation.bootstrap import mean
from models.lab.evaluation.calibration import Marks, Scores, calibration_error
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections, Precision, summary
from models.lab.evaluation.evaluated_model import Weighed, sigmoid
from models.lab.evaluation.reports import f1
from models.lab.evaluation.thresholds import Aim, Labelled, best_threshold, calibrate, is_told, same_point
from models.lab.phantoms import FINDINGS, PhantomSet
from models.manifest import DetectionRule, Manifest
from models.network.detector import Detection

SCALES: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0)
SHARPNESS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 1.0)
OVERLAPS: Final = (0.05, 0.1, 0.25, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The tuned manifest, and the figures before and after on the films that it was tuned on.

    bands: in which findings are to be reviewed, by finding, as `bands.bands_of`
    """

    manifest: Manifest
    bands: Mapping[str, Mapping[str, float]]
    before: dict[str, object]
    after: dict[str, object]


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
    is_drawn = population == PHANTOMS
    if not is_drawn:
        decisions = without_often_shown(decisions, weighed)
    rule = best_rule(manifest.detection, precision) if is_drawn else manifest.detection
    after = replace(manifest, decisions=decisions, detection=rule)

    def figures(of: Manifest) -> dict[str, object]:
        return _figures(of.on_phantoms() if is_drawn else of, precision, films, noted)

    bands = bands_of((after.on_phantoms() if is_drawn else after).decisions, population=population)
    return Tuned(manifest=after, bands=bands, before=figures(manifest), after=figures(after))


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
    films: Mapping[str, Labelled],
    *,
    noted: tuple[Scores, Marks],
    population: str,
    aim: Aim,
) -> Decisions:
    """Choose temperature and thresholds. A finding that cannot be told even on phantoms is left out on real films.

    films: by key of a judged prompt
    noted: positiveness of regions, and whether they hold any finding
    """
    temperature, chosen = calibrate(films, start=start.temperature, aim=aim)
    region = best_threshold(*noted)
    decisions = _at_temperature(start, temperature)
    for key, threshold in chosen.items():
        measurement = _measurement(films[key].at(temperature), threshold=threshold, population=population)
        decisions = decisions.measured(key, threshold, measurement)
        if population == PHANTOMS and not is_told(films[key]):
            decisions = decisions.leaving_out(key)
    return decisions if region is None else replace(decisions, region_threshold=region)


def without_often_shown(decisions: Decisions, weighed: Sequence[Weighed]) -> Decisions:
    """Leave out each finding measured on phantoms alone that more than a tenth of the real films would show.

    On a film of a person such a finding is only to be reviewed, whatever its probability; "no finding" never is.
    """
    for key, measurement in decisions.measurements.items():
        is_asked = key in weighed[0].differences and key != NO_FINDING
        if is_asked and measurement.measured_on == PHANTOMS and not decisions.leaves_out(key):
            said = sigmoid(np.array([film.differences[key] for film in weighed]) / decisions.temperature)
            if np.mean(said >= decisions.lower(key)) > MOST_UNMEASURED:
                decisions = decisions.leaving_out(key)
    return decisions


def _at_temperature(start: Decisions, temperature: float) -> Decisions:
    """Return decisions that mean the same at another temperature."""

    def moved(threshold: float) -> float:
        return same_point(threshold, start.temperature, temperature)

    def moved_band(band: Band | None) -> Band | None:
        return None if band is None else replace(band, lower=moved(band.lower))

    default, lowest = moved(start.default_threshold), moved(max(start.default_threshold - start.review_band, 0.0))
    return replace(
        start,
        temperature=temperature,
        default_threshold=default,
        review_band=round(default - lowest, 6),
        thresholds={key: moved(threshold) for key, threshold in start.thresholds.items()},
        measurements={
            key: replace(
                own,
                band=moved_band(own.band),
                threshold=None if own.threshold is None else moved(own.threshold),
            )
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
        band=measured_band(some.differences, some.there, threshold=threshold),
    )


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
