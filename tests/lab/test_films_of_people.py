"""Figures over films of people: thresholds, scales and constant boxes of other patients, intervals by patient."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation import localization
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.film_classification import Films, cross_fitted, curve, films_of, measure
from models.lab.evaluation.request import CURVE
from models.lab.evaluation.statistics import Bootstrap
from models.lab.phantoms import FINDINGS
from models.lab.training.split import folds_of
from models.manifest import read_manifest
from models.reading.tokenizers import VOCABULARIES

MODEL = VOCABULARIES.parent


def made_up(count: int, *, patients: int, strength: float, seed: int = 0) -> Films:
    """Films whose scores tell opacity and no finding apart this well, and edema, which two films have."""
    rng = np.random.default_rng(seed)
    sick = np.arange(count) % 2 == 0
    truths, scores = [], []
    for number in range(count):
        read_as = "Lung Opacity" if sick[number] else "Normal"
        truths.append(
            Truth(
                labels={"lung_opacity": bool(sick[number]), "no_finding": not sick[number], "edema": number < 2},
                patient=f"patient {number % patients}",
                read_as=read_as,
                groups=frozenset({"view AP" if number % 3 else "view PA"}),
            )
        )
        own = strength * (1 if sick[number] else -1)
        scores.append({"lung_opacity": own + rng.normal(), "edema": rng.normal(), "no_finding": -own + rng.normal()})
    return films_of(truths, scores)


def test_read_films_are_told_apart_from_those_with_a_mined_label() -> None:
    def film(number: int, *, read_as: str, is_mined_normal: bool) -> Truth:
        is_normal = read_as == "Normal" if read_as else is_mined_normal
        return Truth(
            labels={"lung_opacity": read_as == "Lung Opacity", "no_finding": is_normal},
            patient=f"patient {number}",
            read_as=read_as,
            mined_normal=is_mined_normal,
        )

    readings = ["Normal"] * 20 + ["No Lung Opacity / Not Normal"] * 20 + ["Lung Opacity"] * 20
    # Mined labels follow the reading in three of four films; those of films that nobody read are at random.
    read = [film(i, read_as=name, is_mined_normal=(name == "Normal") == (i % 4 > 0)) for i, name in enumerate(readings)]
    unread = [film(100 + i, read_as="", is_mined_normal=i % 2 == 0) for i in range(60)]
    told = [replace(truth, mined_normal=None) for truth in unread if truth.mined_normal]
    films = [*read, *unread, *told]
    scores = [
        {"lung_opacity": float(truth.read_as not in ("", "Normal")), "no_finding": float(truth.read_as == "Normal")}
        for truth in films
    ]
    scores[-len(told) :] = [{"lung_opacity": 0.0, "no_finding": 1.0} for _ in told]

    figures = measure(films_of(films, scores), Bootstrap(resamples=0))

    assert figures["auroc_no_finding_read"] == 1.0
    assert figures["auroc_no_finding_mined"] == 0.5
    assert figures["opacity_against_normal"] == 1.0
    assert figures["opacity_against_all_others"] == 0.75, "half of the others have the scores of opacities"


def test_a_finding_of_few_films_is_never_called_present() -> None:
    films = made_up(300, patients=100, strength=1.0)

    called = cross_fitted(films)

    assert called.chosen == {"lung_opacity", "no_finding"}
    assert not called.present[:, films.place("edema")].any()
    assert cross_fitted(films, left_out=["lung_opacity"]).chosen == {"no_finding"}
    figures = measure(films, Bootstrap(resamples=0))
    areas = figures["per_class"]
    assert isinstance(areas, dict)
    assert figures["macro_auroc"] == pytest.approx((areas["lung_opacity"] + areas["no_finding"]) / 2)
    assert measure(films, Bootstrap(resamples=0), most_false=0.02)["false_findings"] < figures["false_findings"] <= 0.1  # type: ignore[operator]


def test_a_mined_label_alone_makes_no_film_normal() -> None:
    films = made_up(300, patients=100, strength=1.0)
    mined = replace(films, mined_known=np.ones(300, dtype=np.bool_), read_as=np.full(300, ""))

    assert films.normal.sum() == 150 and not mined.normal.any()
    figures = measure(mined, Bootstrap(resamples=0))
    assert figures["false_findings"] is None
    assert not cross_fitted(mined).present[:, mined.place("lung_opacity")].any()


def test_thresholds_come_from_other_patients() -> None:
    films = made_up(200, patients=40, strength=2.0)
    before = cross_fitted(films)
    own = films.patients == "patient 7"

    films.there[own] = ~films.there[own]  # the truth of a patient is no reason for what is called on their films

    assert np.array_equal(cross_fitted(films).present[own], before.present[own])


def test_intervals_come_from_patients_not_films() -> None:
    once = made_up(60, patients=60, strength=0.4)
    again = np.tile(np.arange(60), 6)
    often = Films(
        keys=once.keys,
        differences=once.differences[again],
        there=once.there[again],
        known=once.known[again],
        patients=once.patients[again],
        read_as=once.read_as[again],
        groups=once.groups * 6,
        mined_known=once.mined_known[again],
    )

    bounds = []
    for films in (once, often):
        intervals = measure(films, Bootstrap(resamples=200))["intervals"]
        assert isinstance(intervals, dict)
        bounds.append(intervals["opacity_against_normal"])

    assert bounds[1] == pytest.approx(bounds[0]), "six films of each patient tell no more than one"
    assert bounds[0][1] - bounds[0][0] > 0.15
    drawn = iter(range(101))
    known = Bootstrap(resamples=101).intervals(lambda _: {"a": float(next(drawn)), "b": None}, np.array(["one", "two"]))
    assert known == {"a": [2.5, 97.5]}
    assert films_of([Truth(), Truth()], [{}, {}]).patients[0] != films_of([Truth(), Truth()], [{}, {}]).patients[1]


def test_a_curve_says_what_false_findings_buy() -> None:
    films = made_up(400, patients=200, strength=1.0)
    points = [point for point in curve(films, "lung_opacity", np.arange(400)).values() if point is not None]

    assert len(points) == len(CURVE) and points == sorted(points) and points[0] < points[-1]
    there, normal = films.there[:, films.place("lung_opacity")], films.normal
    scores = films.differences[:, films.place("lung_opacity")]
    threshold = scores[there][scores[there] > np.quantile(scores[normal], 0.9)].min()
    assert (scores[normal] >= threshold).mean() <= 0.1
    assert points[3] == pytest.approx((scores[there] >= threshold).mean())


def test_a_group_has_intervals_of_its_own_patients() -> None:
    figures = measure(made_up(300, patients=100, strength=1.0), Bootstrap(resamples=50))

    groups = figures["by_group"]
    assert isinstance(groups, dict)
    for name, group in groups.items():
        low, high = group["intervals"]["opacity_against_normal"]
        assert low < group["opacity_against_normal"] < high, name
    whole = figures["intervals"]
    assert isinstance(whole, dict)
    widths = [high - low for low, high in (some["intervals"]["macro_auroc"] for some in groups.values())]
    assert min(widths) != pytest.approx(whole["macro_auroc"][1] - whole["macro_auroc"][0])


def test_a_file_says_who_read_a_film_and_how(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "00000007_001.png"), np.zeros((80, 80), dtype=np.uint8))
    line = {"file": "00000007_001.png", "nih_labels": ["Pneumonia"], "rsna": "Normal", "view": "AP", "age": "41"}
    path = tmp_path / "films.jsonl"
    path.write_text(json.dumps(line))

    [film] = [read_films(path, read_manifest(MODEL)).load(0)]

    truth = film.truth
    assert (truth.patient, truth.read_as, truth.groups) == ("00000007", "Normal", {"view AP", "age 40 to 59"})
    assert not truth.labels["pneumonia"] and truth.labels["no_finding"]
    assert truth.mined_normal is False, "as its report says"
    assert "lung_opacity" in truth.located and "support_devices" not in truth.located

    for age, group in (("39", "to 39"), ("40", "40 to 59"), ("59", "40 to 59"), ("60", "from 60")):
        path.write_text(json.dumps(line | {"age": age, "view": "LATERAL"}))
        truth = read_films(path, read_manifest(MODEL)).load(0).truth
        assert (truth.groups, truth.age, truth.view) == ({"view LATERAL", f"age {group}"}, int(age), "")

    del line["rsna"]
    path.write_text(json.dumps(line | {"truth": {"present": {"pneumonia": False}}, "located": ["fracture"]}))
    corrected = read_films(path, read_manifest(MODEL)).load(0).truth
    assert not corrected.labels["pneumonia"], "what a reader corrected goes before all"
    assert corrected.located == {"fracture"}
    path.write_text(json.dumps(line | {"nih_labels": ["No Finding"]}))
    [mined] = [read_films(path, read_manifest(MODEL)).load(0)]
    assert "pleural_effusion" in mined.truth.located
    assert "lung_opacity" not in mined.truth.located, "a mined label does not exclude an opacity"
    assert mined.truth.mined_normal is True

    path.write_text(json.dumps(line | {"labels": {"no_finding": False}}))
    assert read_films(path, read_manifest(MODEL)).load(0).truth.mined_normal is None, "labels go before mined ones"

    read = {"nih_labels": ["No Finding"], "labels": {"pneumonia": True, "edema": True}, "mined": ["edema"]}
    path.write_text(json.dumps(line | read))
    truth = read_films(path, read_manifest(MODEL)).load(0).truth
    assert not truth.labels["no_finding"] and not truth.is_normal and truth.located == frozenset()
    assert truth.mined_normal is True, "a reading of one finding does not make a mined label one that was read"

    path.write_text(json.dumps(line | {"rsna": "Fine"}))
    with pytest.raises(ModelError, match="rsna: 'Fine' is unknown; use 'Normal'"):
        read_films(path, read_manifest(MODEL))


KEY = "lung_opacity"
NUMBER = FINDINGS.index(KEY)
ONCE = Bootstrap(resamples=20)


def people(count: int, *, seed: int = 0) -> list[Truth]:
    """Films of which every other one has an opacity somewhere; two films a patient."""
    rng = np.random.default_rng(seed)
    return [
        Truth(
            boxes={KEY: np.array([[*rng.uniform(0.2, 0.8, 2), 0.2, 0.2]], dtype=np.float32)} if number % 2 else {},
            located=frozenset({KEY}),
            patient=f"patient {number // 2}",
        )
        for number in range(count)
    ]


def detection(box: FloatArray, score: float) -> Detections:
    return Detections(box, np.full(len(box), NUMBER, dtype=np.intp), np.full(len(box), score, dtype=np.float32))


def seen(truths: Sequence[Truth], *, scale: float) -> list[Detections]:
    """Boxes at the right places that are too small, and fit at scale 1.5."""
    factor = np.array([1, 1, scale / 1.5, scale / 1.5], dtype=np.float32)
    nothing = np.array([[0.5, 0.5, 0.1, 0.1]], dtype=np.float32)
    return [
        detection(truth.boxes[KEY] * factor, 0.9) if KEY in truth.boxes else detection(nothing, 0.1) for truth in truths
    ]


def test_the_scale_of_other_patients_is_found() -> None:
    truths = people(80)

    made = localization.measure(truths, lambda scale: seen(truths, scale=scale), ONCE)

    assert list(made) == [KEY]
    figures = made[KEY]
    assert isinstance(figures, dict)
    assert figures["films"] == 40
    assert figures["precision"] == pytest.approx(1.0)
    assert figures["two_constant_boxes"] < 0.2
    assert figures["gain"] == pytest.approx(figures["precision"] - figures["two_constant_boxes"])
    assert figures["two_constant_boxes"] < figures["two_constant_boxes_on_positives"] < 0.4, (
        "no other films to be wrong on"
    )
    low, high = figures["intervals"]["gain"]
    assert low < figures["gain"] < high or low == pytest.approx(high)


def test_neither_phantoms_nor_few_films_are_measured() -> None:
    asked: list[float] = []

    def scaled(scale: float) -> list[Detections]:
        asked.append(scale)
        return []

    assert localization.measure(people(28), scaled, ONCE) == {}
    assert localization.measure([replace(truth, patient="") for truth in people(80)], scaled, ONCE) == {}
    assert not asked


def test_a_fold_has_no_say_in_its_own_scale() -> None:
    """Scale 1 fits all films of one fold and is best on the whole; scale 1.5 fits a few films of the others."""
    truths = people(160)
    folds = folds_of(np.array([truth.patient for truth in truths]))
    fits, misses = seen(truths, scale=1.5), seen(truths, scale=0.3)
    few = np.flatnonzero(folds != 0)[:8]
    found = {
        scale: [
            Detections(film.boxes, film.classes * 0, film.scores)
            for film in (fits[number] if number in fitting else misses[number] for number in range(len(truths)))
        ]
        for scale, fitting in ((1.0, set(np.flatnonzero(folds == 0))), (1.5, set(few)))
    }

    chosen = localization.cross_fitted(truths, found, KEY, folds)

    by_scale = {scale: Precision(truths, some, classes=(KEY,)).per_class()[KEY] or 0.0 for scale, some in found.items()}
    assert by_scale[1.0] > by_scale[1.5]
    own = np.flatnonzero(folds == 0)
    assert len(own) > 8
    assert all(chosen[number] is found[1.5][number] for number in own)


def test_constant_boxes_are_one_a_half_and_from_other_patients() -> None:
    truths = people(80)
    folds = folds_of(np.array([truth.patient for truth in truths]))

    constant = localization.constant_boxes(truths, KEY, folds)

    assert all(box.boxes.shape == (2, 4) and box.boxes[0, 0] < 0.5 <= box.boxes[1, 0] for box in constant)
    moved = [
        replace(truth, boxes={key: some * np.float32(0.9) for key, some in truth.boxes.items()}) if fold == 2 else truth
        for truth, fold in zip(truths, folds, strict=True)
    ]
    again = localization.constant_boxes(moved, KEY, folds)
    place = int(np.flatnonzero(folds == 2)[0])
    assert np.array_equal(constant[place].boxes, again[place].boxes)
