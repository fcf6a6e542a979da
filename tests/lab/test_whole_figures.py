"""Whole figures of evaluation and whole choices of decisions on made-up scores, as recorded; what patients decide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import pytest

from language.labels import NO_FINDING
from models.decisions import PHANTOMS, Band, Decisions, Measurement, PlaceRule, Readout
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.detection import measure as measure_detection
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed, side_of
from models.lab.evaluation.film_classification import cross_fitted, films_of
from models.lab.evaluation.film_classification import measure as measure_films
from models.lab.evaluation.localization import measure as measure_places
from models.lab.evaluation.place_accuracy import PlacedFilm
from models.lab.evaluation.placing import Films, judge
from models.lab.evaluation.statistics import Bootstrap
from models.lab.evaluation.thresholds import OPACITY, Aim
from models.lab.evaluation.tuning import tune
from models.lab.phantoms import FINDINGS
from models.lab.tasks.detection import DetectionSettings
from models.manifest import Manifest, read_manifest
from models.network.detector import Detection
from models.reading.places import side_certainty
from models.reading.tokenizers import VOCABULARIES
from tests.support import recorded

FILMS = 240
NO_RESAMPLES = Bootstrap(resamples=0)
STRENGTH = {OPACITY: 2.5, "edema": 1.5, "cardiomegaly": 3.0, "fracture": 0.2, "pneumonia": -1.0, "lung_lesion": 2.0}
"""How far a finding moves its score; a lesion is on few films, and a device on none."""
RATE = {OPACITY: 0.3, "edema": 0.2, "cardiomegaly": 0.15, "fracture": 0.2, "pneumonia": 0.25, "lung_lesion": 0.04}


def films(seed: int) -> tuple[list[Truth], list[dict[str, float]]]:
    """Films of patients with up to three, and of some without a name: read, mined, both, or labelled in part."""
    rng = np.random.default_rng(seed)
    truths, scores = [], []
    for number in range(FILMS):
        there = {key: bool(rng.random() < rate) for key, rate in RATE.items()} | {"support_devices": False}
        normal = not any(there.values())
        origin = number % 4  # read; read against a mined label; mined; labelled by others
        known = {key: own for place, (key, own) in enumerate(there.items()) if (number + place) % 9}
        read_as = "Lung Opacity" if there[OPACITY] else "Normal" if normal else "No Lung Opacity / Not Normal"
        truths.append(
            Truth(
                labels=known | {NO_FINDING: normal},
                patient="" if number % 10 == 9 else f"patient {number // 3}",
                read_as=read_as if origin < 2 else "",
                mined_normal={1: not normal, 2: normal}.get(origin),
                groups=frozenset({f"sex {'MF'[number % 2]}", *(["view AP"] if number % 5 == 0 else [])}),
                region_findings={"left lung": frozenset({"edema"} if there["edema"] else {})},
                age=number % 90,
            )
        )
        noise = rng.normal(size=len(there) + 1)
        own = {key: (STRENGTH.get(key, 0.0) * on + noise[place]) / 10 for place, (key, on) in enumerate(there.items())}
        scores.append(own | {NO_FINDING: float(2.0 * normal + noise[-1]) / 10})
    return truths, scores


def weighed(scores: list[dict[str, float]]) -> list[Weighed]:
    return [Weighed(differences=own, positiveness={"left_lung": own["edema"], "spine": 1.0}) for own in scores]


def test_figures_of_films_are_as_recorded() -> None:
    truths, scores = films(1)

    made = measure_films(films_of(truths, scores), Bootstrap(resamples=6), left_out={"cardiomegaly"})

    recorded.check("figures_of_films", made)


def test_a_patients_films_have_no_say_in_the_thresholds_for_them() -> None:
    made_up = films_of(*films(1))
    before = cross_fitted(made_up).present
    own = made_up.patients == "patient 7"

    made_up.there[own] = ~made_up.there[own]

    again = cross_fitted(made_up).present
    assert np.array_equal(again[own], before[own]) and not np.array_equal(again, before)


def test_fewer_false_findings_are_called_where_fewer_are_allowed() -> None:
    made_up = films_of(*films(1))
    few, many = (measure_films(made_up, NO_RESAMPLES, most_false=most)["false_findings"] for most in (0.02, 0.2))

    assert few < many  # type: ignore[operator] # numbers
    unread = replace(made_up, mined_known=np.ones(FILMS, dtype=np.bool_), read_as=np.full(FILMS, ""))
    assert measure_films(unread, NO_RESAMPLES)["false_findings"] is None, "a mined label alone makes no film normal"


def test_intervals_come_from_patients_not_films() -> None:
    truths, scores = films(1)
    once = [replace(truth, patient=f"patient {number}") for number, truth in enumerate(truths)]

    bounds = []
    for often in (1, 6):
        intervals = measure_films(films_of(once * often, scores * often), Bootstrap(resamples=20))["intervals"]
        bounds.append(intervals["opacity_against_normal"])  # type: ignore[index] # a table

    assert bounds[1] == pytest.approx(bounds[0]), "six films of each patient tell no more than one"
    drawn = iter(range(101))
    known = Bootstrap(resamples=101).intervals(lambda _: {"a": float(next(drawn)), "b": None}, np.array(["one", "two"]))
    assert known == {"a": [2.5, 97.5]}


def decisions(scores: list[dict[str, float]]) -> Decisions:
    """Decisions of phantoms for all, one changed by hand; of people for an edema with its readout; no fractures."""
    keys = list(scores[0])
    band = Band(lower=0.25, below=60, missed=2, within=9, shown=5)
    drawn = Measurement(measured_on=PHANTOMS, positives=30, negatives=70)
    start = Decisions(
        temperature=0.2,
        default_threshold=0.6,
        review_band=0.2,
        box_threshold=0.5,
        region_threshold=0.5,
        thresholds=dict.fromkeys(keys, 0.6) | {"support_devices": 0.3},
        measurements=dict.fromkeys(keys, drawn)
        | dict.fromkeys(("edema", "support_devices"), replace(drawn, band=band)),
    )
    own = Measurement(measured_on="clinic", positives=40, negatives=60)
    start = start.measured("edema", 0.4, own, readout=Readout(slope=9.0, offset=-1.0)).leaving_out("fracture")
    return start.set_by_hand("support_devices", 0.35)


def test_decisions_chosen_on_patient_films_are_as_recorded() -> None:
    truths, scores = films(2)
    manifest = replace(read_manifest(VOCABULARIES.parent), decisions=decisions(scores))
    aims = {
        "false findings": Aim(false_findings=0.3, least=12),
        "sensitivity": Aim(sensitivity=0.8, least=12),
        "neither": Aim(least=12),
    }

    made = {
        name: tune(manifest, truths, weighed(scores), population="hospital", aim=aim, left_out={"cardiomegaly"})
        for name, aim in aims.items()
    }

    assert all(replace(own, decisions=manifest.decisions) == manifest for own in made.values())
    recorded.check("decisions_of_patient_films", {name: own.decisions for name, own in made.items()})


def test_decisions_chosen_on_phantoms_are_as_recorded() -> None:
    truths, scores = films(3)
    manifest = replace(read_manifest(VOCABULARIES.parent), decisions=decisions(scores))
    aims = {"f1": Aim(), "sensitivity": Aim(sensitivity=0.9)}

    made = {
        name: tune(manifest, truths, weighed(scores), population=PHANTOMS, aim=aim).decisions
        for name, aim in aims.items()
    }

    recorded.check("decisions_of_phantoms", made)


def boxes_of(rng: np.random.Generator, count: int) -> FloatArray:
    return np.concatenate([rng.uniform(0.15, 0.85, (count, 2)), rng.uniform(0.1, 0.35, (count, 2))], axis=1).astype(
        np.float32
    )


def located(seed: int) -> tuple[list[Truth], list[Detections]]:
    """Films with one to three boxes of some findings, and detections near them, elsewhere, and on films without."""
    rng = np.random.default_rng(seed)
    keys = ("cardiomegaly", "edema", "consolidation", OPACITY, "fracture")
    truths, found = [], []
    for number in range(60):
        there = {key: boxes_of(rng, 1 + number % 3) for place, key in enumerate(keys) if (number + place) % 3 == 0}
        known = FINDINGS if number % 5 else [*there, "edema"]
        truths.append(Truth(boxes=there, located=frozenset(known), patient=f"patient {number // 2}"))
        shown: list[tuple[FloatArray, int, float]] = []
        for key in keys:
            true = there.get(key, np.zeros((0, 4), dtype=np.float32))
            near = true + rng.normal(0, 0.03, true.shape)
            away = boxes_of(rng, 1)
            shown += [(box, FINDINGS.index(key), float(rng.uniform(0.3, 1.0))) for box in near]
            shown += [(box, FINDINGS.index(key), float(rng.uniform(0.0, 0.6))) for box in away]
        boxes, classes, scores = zip(*shown, strict=True)
        found.append(Detections(np.array(boxes, dtype=np.float32), np.array(classes), np.array(scores)))
    return truths, found


def scaled(found: list[Detections], scale: float) -> list[Detections]:
    return [own._replace(boxes=own.boxes * np.array([1, 1, scale, scale], dtype=np.float32)) for own in found]


def test_precisions_of_boxes_are_as_recorded() -> None:
    truths, found = located(4)

    recorded.check(
        "precisions_of_boxes",
        {
            "detection": measure_detection(truths, found, Bootstrap(resamples=4)),
            "beside constant boxes": measure_places(truths, partial(scaled, found), Bootstrap(resamples=2)),
        },
    )
    for few in (truths[:40], [replace(truth, patient="") for truth in truths]):
        assert measure_places(few, partial(scaled, found), NO_RESAMPLES) == {}, "too few films, or phantoms"


def zone_of(boxes: FloatArray) -> str | None:
    middle = float(boxes[:, 1].mean())
    return None if middle < 0.25 else "lower zone" if middle > 0.6 else "mid zone"


def placed(seed: int, key: str, *, patients: int, normal: bool = False) -> tuple[list[Truth], list[PlacedFilm]]:
    """Films with boxes on one or both sides: of some nothing is known, or reported; wrong boxes have lower scores."""
    rng = np.random.default_rng(seed)
    truths, places = [], []
    for number in range(patients * 2):
        count = 0 if normal or number % 6 == 5 else 1 + (number % 4 == 0)
        true = boxes_of(rng, count)
        true[:, 0] = np.abs(true[:, 0] - [0.5, 0.0][:count]) if count else true[:, 0]
        near = true + rng.normal(0, 0.02, true.shape)
        away = boxes_of(rng, (3 if key == OPACITY else 1) if number % 3 else 0)
        boxes = np.concatenate([near, away])
        scores = np.concatenate([rng.uniform(0.35, 0.95, count), rng.uniform(0.0, 0.42, len(away))])
        scores *= 0.03 if normal and number % 24 != 1 else 1
        own = partial(side_of, middle=0.5)
        patient = f"patient {seed} {number // 2}"
        truths.append(Truth(boxes={key: true} if count else {}, located=frozenset({key}), patient=patient))
        places.append(
            PlacedFilm(
                patient=patient,
                is_reported=number % 7 != 3,
                true=None if number % 11 == 4 else true,
                shown=(boxes, scores),
                certainties=side_certainty(boxes, scores, side_of=own),
                side_of=own,
                zone_of=zone_of,
            )
        )
    return truths, places


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A model whose detections are those that it gets, in the size that settings have."""

    manifest: Manifest

    def detections(self, found: Detections, settings: DetectionSettings) -> Detections:
        scales = np.array([settings.scales[number] for number in found.classes]).reshape(-1, 1)
        return found._replace(boxes=found.boxes * np.concatenate([scales**0, scales**0, scales, scales], axis=1))


def set_of(first: int, patients: int, *, normal: bool = False) -> Films:
    """Films of two findings, one after the other; each film is of one of them alone."""
    truths: list[Truth] = []
    places: dict[str, list[PlacedFilm]] = {}
    found: list[Detections] = []
    for seed, key in enumerate((OPACITY, "cardiomegaly"), first):
        own, places[key] = placed(seed, key, patients=patients, normal=normal)
        truths += own
        classes = FINDINGS.index(key)
        found += [
            Detections(boxes, np.full(len(boxes), classes), scores)
            for boxes, scores in (it.shown for it in places[key])
        ]
    return Films(truths=truths, places=places, located=cast("list[Detection]", found))


def test_rules_of_boxes_and_sides_are_as_recorded() -> None:
    rule = PlaceRule(measured_on="clinic", least=0.75, told=20, right=18)
    manifest = read_manifest(VOCABULARIES.parent)
    before = replace(manifest.decisions, boxes={OPACITY: rule}, sides={OPACITY: rule, "edema": rule})
    model = cast("EvaluatedModel", Scripted(manifest=replace(manifest, decisions=before)))

    made, better = judge(
        model, set_of(10, 30), set_of(20, 20), set_of(30, 12, normal=True), population="hospital", resamples=3
    )

    recorded.check("rules_of_places", {"figures": made, "better": better})
    boxes_on_normal = set_of(30, 12)
    _, none = judge(model, set_of(10, 30), set_of(20, 20), boxes_on_normal, population="hospital", resamples=3)
    assert none == {}, "with boxes on most normal films no rule is better"
