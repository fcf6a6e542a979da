"""Figures of evaluations against cases that were counted by hand, each by the library that computes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from language.labels import RuleLabeler
from models.engines import FloatArray
from models.lab.evaluation import anatomy, references, regions, reports, side_questions
from models.lab.evaluation.cases import SideQuestion, Truth
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.statistics import Bootstrap, calibration_error, reliability
from models.lab.phantoms import FINDINGS

HEART = np.array([0.5, 0.6, 0.4, 0.3], dtype=np.float32)
AWAY = np.array([0.1, 0.1, 0.1, 0.1], dtype=np.float32)
NEVER = Bootstrap(resamples=0)
KEY = "cardiomegaly"
NUMBER = FINDINGS.index(KEY)


def moved(box: FloatArray, share: float) -> FloatArray:
    """The same box, moved to the right by a share of its width."""
    return box + np.array([share * box[2], 0, 0, 0], dtype=np.float32)


def truth(*boxes: FloatArray, located: bool = True) -> Truth:
    there = {KEY: np.stack(boxes)} if boxes else {}
    return Truth(boxes=there, located=frozenset(FINDINGS) if located else frozenset())


def found(*pairs: tuple[FloatArray, float]) -> Detections:
    return Detections(
        np.array([box for box, _ in pairs], dtype=np.float32).reshape(-1, 4),
        np.full(len(pairs), NUMBER, dtype=np.intp),
        np.array([score for _, score in pairs], dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("truths", "said", "expected"),
    [
        pytest.param([truth(HEART)], [found((HEART, 0.9))], 1.0, id="found"),
        pytest.param([truth(HEART)], [found()], 0.0, id="not found"),
        # The first of two is wrong: where all is recalled, half of it is right.
        pytest.param([truth(HEART)], [found((AWAY, 0.9), (HEART, 0.8))], 0.5, id="wrong first"),
        pytest.param([truth(HEART)], [found((HEART, 0.9), (AWAY, 0.8))], 1.0, id="wrong last"),
        # Moved by half its width, a box shares a third with itself: enough for IoU 0.1, 0.2 and 0.3 of seven.
        pytest.param([truth(HEART)], [found((moved(HEART, 0.5), 0.9))], 3 / 7, id="moved"),
        # One of two is found: precision 1 at the 51 recalls from 0 to 0.5, of 101.
        pytest.param([truth(HEART), truth(HEART)], [found((HEART, 0.9)), found()], 51 / 101, id="one of two films"),
        pytest.param([truth(HEART), truth()], [found((HEART, 0.8)), found((HEART, 0.9))], 0.5, id="on a film without"),
        pytest.param(
            [truth(HEART), truth(located=False)], [found((HEART, 0.8)), found((HEART, 0.9))], 1.0, id="not known there"
        ),
        # Of two boxes around the same thing one is too many.
        pytest.param([truth(HEART, AWAY)], [found((HEART, 0.9), (HEART, 0.8), (AWAY, 0.7))], 0.834983, id="twice"),
    ],
)
def test_average_precision_is_as_counted(truths: list[Truth], said: list[Detections], expected: float) -> None:
    assert Precision(truths, said).per_class()[KEY] == pytest.approx(expected, abs=1e-6)


def test_films_drawn_anew_give_the_figures_of_these_films() -> None:
    truths, said = [truth(HEART), truth(HEART), truth()], [found((HEART, 0.9)), found(), found((HEART, 0.95))]
    drawn = np.array([0, 0, 1])

    expected = Precision([truths[i] for i in drawn], [said[i] for i in drawn]).per_class()

    assert Precision(truths, said).per_class(drawn) == pytest.approx(expected, nan_ok=True)


def test_overlap_is_averaged_over_films_then_over_regions() -> None:
    lung, heart = HEART, AWAY
    truths = [
        Truth(regions={"right lung": lung, "left lung": lung, "cardiac silhouette": heart}),
        Truth(regions={"right lung": lung}),
    ]
    boxes = {"right lung": lung, "left lung": moved(lung, 0.5), "cardiac silhouette": lung}

    figures = anatomy.measure(truths, [boxes, {"right lung": moved(lung, 0.5)}], NEVER)

    assert figures["per_region"] == pytest.approx({"right lung": 2 / 3, "left lung": 1 / 3, "cardiac silhouette": 0.0})
    assert figures["miou"] == figures["lungs_and_heart"] == pytest.approx(1 / 3)
    assert figures["lungs"] == pytest.approx(1 / 2)
    assert figures["others"] is None


def test_pairs_say_what_the_name_of_a_region_does_not() -> None:
    def film(*lungs_with: str) -> tuple[Truth, NDArray[np.float32]]:
        held = {name: frozenset({KEY} if name in lungs_with else ()) for name in ("right lung", "left lung")}
        scores = np.zeros((2, len(FINDINGS)), dtype=np.float32)
        scores[0] = 1  # The right lung is always said to hold everything.
        return Truth(region_findings=held, judged=frozenset({KEY})), scores

    films = [film("right lung")] * 3 + [film("right lung", "left lung")] + [film("left lung"), film()]

    judged = regions.judged_of([expected for expected, _ in films], [scores for _, scores in films])

    # 4 of 6 with, 2 of 6 without on the right; 2 and 4 on the left: 16 pairs in order, 8 + 8 equal, 4 reversed.
    assert regions.pooled(judged) == pytest.approx((16 + 0.5 * 16) / 36)
    assert regions.per_pair(judged, least=1) == {f"right lung / {KEY}": 0.5, f"left lung / {KEY}": 0.5}


@pytest.mark.parametrize(
    ("box", "followed"),
    [
        (HEART, True),
        (moved(HEART, 0.9), True),
        (AWAY, False),
        (np.array([0.9, 0.9, 0.1, 0.1], dtype=np.float32), False),
    ],
)
def test_a_hint_is_followed_if_the_box_overlaps_the_asked_side(box: FloatArray, followed: bool) -> None:
    asked = SideQuestion(text="", boxes=HEART[np.newaxis], others=AWAY[np.newaxis], taught=True)

    assert side_questions.is_followed(asked, box) is followed


def test_hints_are_counted_by_whether_their_wording_was_taught() -> None:
    asked = [
        SideQuestion(text="", boxes=HEART[np.newaxis], others=AWAY[np.newaxis], taught=taught)
        for taught in (True, False)
    ]

    figures = side_questions.measure(
        [Truth(hints=tuple(asked)), Truth()], [np.stack([HEART, AWAY]), HEART[:0].reshape(0, 4)], NEVER
    )

    assert figures == {"accuracy": 0.5, "accuracy_taught": 1.0, "accuracy_untaught": 0.0, "asked": 2, "deviations": {}}


def test_reports_are_judged_by_the_classes_that_are_known() -> None:
    truths = [
        Truth(labels={"edema": True, "fracture": False, "pneumothorax": True}, report="There is edema."),
        Truth(labels={"edema": True}),
    ]
    texts = ["There is edema. A rib fracture is seen.", "There is no edema. There is a pneumothorax."]

    figures = reports.measure(truths, texts, RuleLabeler(), NEVER)

    # Edema: right, missed. Fracture: wrong. Pneumothorax: missed, and not known of the second film.
    assert figures["ce_micro_precision"] == pytest.approx(1 / 2)
    assert figures["ce_micro_recall"] == pytest.approx(1 / 3)
    assert figures["ce_micro_f1"] == figures["findings_f1"] == pytest.approx(2 / 5)
    by_class = figures["per_class"]
    assert isinstance(by_class, Mapping)
    assert (by_class["edema"], by_class["fracture"], by_class["pneumonia"]) == (pytest.approx(2 / 3), 0.0, None)


def test_a_report_gives_the_labels_of_a_film_that_has_no_others() -> None:
    labeler = RuleLabeler()
    report = "There is edema. Possible pneumonia. No pneumothorax."
    truths = [Truth(report=report), Truth(report=report, labels={"edema": False}), Truth(report=" "), Truth()]

    own, *others = reports.with_labels_of_reports(truths, labeler)

    # What is uncertain counts as in generated reports, and what is not mentioned is absent.
    assert {key for key, there in own.labels.items() if there} == {"edema", "pneumonia"}
    assert own.labels.keys() == set(labeler.classes)
    assert [truth.labels for truth in others] == [{"edema": False}, {}, {}]


def test_words_are_compared_on_films_that_have_a_report() -> None:
    figures = reports.sentence_figures(["one two three four", "", "the lungs are clear"], ["one two six four", "x", ""])

    # Three of four words in order, and none of an empty report.
    assert figures["rouge_l"] == pytest.approx(0.75 / 2)
    assert reports.sentence_figures(["the heart is not enlarged"] * 2, ["the heart is not enlarged"] * 2) == {
        "bleu": pytest.approx(1.0),
        "rouge_l": pytest.approx(1.0),
    }
    assert reports.sentence_figures([""], ["x"]) == {}


def test_calibration_is_the_gap_of_probability_and_frequency() -> None:
    probabilities, there = np.array([0.9, 0.9, 0.1, 1.0]), np.array([True, False, False, True])

    # 0.9 twice with one there: 0.4; 0.1: 0.1; 1.0 with the bin of its own: 0. By their shares.
    assert calibration_error(probabilities, there) == pytest.approx((2 * 0.4 + 0.1) / 4)
    assert reliability(probabilities, there) == [
        (pytest.approx(0.1), 0.0, 1),
        (pytest.approx(0.9), 0.5, 2),
        (1.0, 1.0, 1),
    ]


def test_region_identity_is_the_share_of_training_films() -> None:
    def film(right: bool, left: bool) -> Truth:
        held = {"right lung": right, "left lung": left}
        return Truth(
            region_findings={name: frozenset({KEY} if there else ()) for name, there in held.items()},
            judged=frozenset({KEY}),
        )

    habits = references.habits_of([film(True, False), film(True, True)])

    assert habits.shares["right lung", KEY] == 1.0
    assert habits.shares["left lung", KEY] == 0.5
    assert references.identity([film(True, False)], habits) == {"auroc_pooled": 1.0}
    assert references.identity([film(False, True)], habits) == {"auroc_pooled": 0.0}
