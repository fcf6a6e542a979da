"""Boxes on films of people: scale and constant boxes come from other patients, and boxes that do not move are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.located import constant_boxes, cross_fitted, measure
from models.lab.evaluation.statistics import Bootstrap
from models.lab.phantoms import FINDINGS
from models.lab.training.split import folds_of

KEY = "lung_opacity"
NUMBER = FINDINGS.index(KEY)
ONCE = Bootstrap(resamples=20)


def films(count: int, *, seed: int = 0) -> list[Truth]:
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
    truths = films(80)

    made = measure(truths, lambda scale: seen(truths, scale=scale), ONCE)

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
    assert figures["spread"] == pytest.approx(1.0)
    low, high = figures["intervals"]["gain"]
    assert low < figures["gain"] < high or low == pytest.approx(high)


def test_neither_phantoms_nor_few_films_are_measured() -> None:
    asked: list[float] = []

    def scaled(scale: float) -> list[Detections]:
        asked.append(scale)
        return []

    assert measure(films(28), scaled, ONCE) == {}
    assert measure([replace(truth, patient="") for truth in films(80)], scaled, ONCE) == {}
    assert not asked


def test_a_fold_has_no_say_in_its_own_scale() -> None:
    """Scale 1 fits all films of one fold and is best on the whole; scale 1.5 fits a few films of the others."""
    truths = films(160)
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

    chosen = cross_fitted(truths, found, KEY, folds)

    by_scale = {scale: Precision(truths, some, classes=(KEY,)).per_class()[KEY] or 0.0 for scale, some in found.items()}
    assert by_scale[1.0] > by_scale[1.5]
    own = np.flatnonzero(folds == 0)
    assert len(own) > 8
    assert all(chosen[number] is found[1.5][number] for number in own)


def test_constant_boxes_are_one_a_half_and_from_other_patients() -> None:
    truths = films(80)
    folds = folds_of(np.array([truth.patient for truth in truths]))

    constant = constant_boxes(truths, KEY, folds)

    assert all(box.boxes.shape == (2, 4) and box.boxes[0, 0] < 0.5 <= box.boxes[1, 0] for box in constant)
    moved = [
        replace(truth, boxes={key: some * np.float32(0.9) for key, some in truth.boxes.items()}) if fold == 2 else truth
        for truth, fold in zip(truths, folds, strict=True)
    ]
    again = constant_boxes(moved, KEY, folds)
    place = int(np.flatnonzero(folds == 2)[0])
    assert np.array_equal(constant[place].boxes, again[place].boxes)
