"""Figures of evaluations against cases that were counted by hand, each by the library that computes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from language.labels import RuleLabeler
from models.contract import (
    VIEWS,
    By,
    Contradiction,
    FilmReading,
    FindingState,
    PromptKind,
    PromptReading,
    Sentence,
    View,
    ViewReading,
    WithheldSentence,
)
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation import anatomy, regions, reports, run, side_questions, views
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import SideQuestion, Truth, truth_of_phantom
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.detection import measure as measure_detection
from models.lab.evaluation.document import tables
from models.lab.evaluation.reports import measure_sentences
from models.lab.evaluation.request import Request
from models.lab.evaluation.statistics import Bootstrap, area_under_curve, calibration_error, reliability
from models.lab.evaluation.views import Kind, SeenView
from models.lab.phantoms import FINDINGS, phantom
from models.manifest import read_manifest
from models.phantoms import main as make_phantoms
from models.progress import quiet
from models.reading.cardiothoracic import ChestWidths, Extent
from models.reading.tokenizers import VOCABULARIES

HEART = np.array([0.5, 0.6, 0.4, 0.3], dtype=np.float32)
AWAY = np.array([0.1, 0.1, 0.1, 0.1], dtype=np.float32)
NEVER = Bootstrap(resamples=0)
KEY = "cardiomegaly"
Figures = Mapping[str, float]
NUMBER = FINDINGS.index(KEY)
PLACES: dict[str, int] = {key: number for number, key in enumerate(FINDINGS)}


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
        # The first of two is wrong: where all is recalled, half of it is right.
        pytest.param([truth(HEART)], [found((AWAY, 0.9), (HEART, 0.8))], 0.5, id="wrong first"),
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


def test_the_constant_answer_to_detection_is_the_mean_box_on_every_film() -> None:
    figures = run._constant_detection([truth(HEART), truth(moved(HEART, 0.4)), truth(), truth()])

    # A box that is moved by a fifth shares 2 of 3 with its own: enough for six of seven.
    expected = {"map": 6 / 7, "large_four": 6 / 7, "consolidation_and_opacity": None}
    assert figures == pytest.approx(expected, abs=1e-6)


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


def test_regions_are_measured_by_their_pairs_and_by_finding() -> None:
    """Of the right lung every film is judged rightly, of the left one every film wrongly; edema is on few."""
    few = "edema"
    truths, scores = list[Truth](), list[NDArray[np.float32]]()
    for number in range(10):
        held = frozenset({KEY} if number < 5 else ())
        alone = held | {few} if number < 4 else held
        truths.append(Truth(region_findings={"right lung": held, "left lung": alone}, judged=frozenset({KEY, few})))
        said = np.full((2, len(FINDINGS)), 0.3, dtype=np.float32)
        said[:, NUMBER] = [0.9, 0.1] if number < 5 else [0.1, 0.9]
        said[:, PLACES[few]] = 0.95 if number < 4 else 0.5
        scores.append(said)

    figures = regions.measure(regions.judged_of(truths, scores), NEVER)

    # Pairs of one with and one without, in order or equal: of 5 at 0.9, of 5 at 0.1, and of 4 at 0.95 in the left lung.
    assert figures["auroc_pooled"] == pytest.approx((5 * (5 + 12 + 5 / 2) + 5 * (5 / 2) + 4 * (22 + 4 / 2)) / (14 * 26))
    assert figures["auroc_per_pair"] == 0.5
    assert figures["per_finding"] == dict.fromkeys(FINDINGS) | {KEY: 0.5}


def asked(*, taught: bool = True) -> SideQuestion:
    return SideQuestion(text="", boxes=HEART[np.newaxis], others=AWAY[np.newaxis], taught=taught)


def test_hints_are_followed_by_overlap_and_counted_by_whether_their_wording_was_taught() -> None:
    answers = [HEART, moved(HEART, 0.9), AWAY, np.array([0.9, 0.9, 0.1, 0.1], dtype=np.float32)]
    assert [side_questions.is_followed(asked(), box) for box in answers] == [True, True, False, False]

    truths = [Truth(hints=(asked(), asked(taught=False))), Truth()]
    figures = side_questions.measure(truths, [np.stack([HEART, AWAY]), HEART[:0].reshape(0, 4)], NEVER)

    assert figures == {"accuracy": 0.5, "accuracy_taught": 1.0, "accuracy_untaught": 0.0, "asked": 2, "deviations": {}}


class Drawn(Bootstrap):
    """Draws the first of two films twice, and gives its figures for deviations."""

    def deviations(
        self, measure: Callable[[NDArray[np.intp]], Mapping[str, float | None]], films: int
    ) -> dict[str, float]:
        assert films == 2
        return {name: value for name, value in measure(np.array([0, 0, 1])).items() if value is not None}


def test_a_film_that_is_drawn_twice_counts_twice() -> None:
    hints = [Truth(hints=(asked(),))] * 2
    pictures = [[seen_view("frontal", "PA")], [seen_view("frontal", "lateral")]]

    of_hints = side_questions.measure(hints, [HEART[np.newaxis], AWAY[np.newaxis]], Drawn())["deviations"]
    of_views = views.measure(pictures, Drawn())["deviations"]
    of_boxes = measure_detection([truth(HEART), truth(HEART)], [found((HEART, 0.9)), found()], Drawn())["deviations"]

    assert of_hints == pytest.approx({"accuracy": 2 / 3, "accuracy_taught": 2 / 3})
    assert cast("Figures", of_views)["kept"] == pytest.approx(2 / 3)
    # Two of three are found: precision 1 at the 67 recalls from 0 to 0.66, of 101.
    assert cast("Figures", of_boxes)["map"] == pytest.approx(67 / 101)


def test_reports_are_judged_by_the_classes_that_are_known() -> None:
    truths = [
        Truth(labels={"edema": True, "fracture": False, "pneumothorax": True}, report="There is edema."),
        Truth(labels={"edema": True}),
    ]
    texts = ["There is edema. A rib fracture is seen.", "There is no edema. There is a pneumothorax."]

    figures = reports.measure(truths, texts, RuleLabeler(), NEVER)

    # Edema: right, missed. Fracture: wrong. Pneumothorax: missed, and not known of the second film.
    expected = {"ce_micro_precision": 1 / 2, "ce_micro_recall": 1 / 3, "ce_micro_f1": 2 / 5, "findings_f1": 2 / 5}
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    by_class = cast("Figures", figures["per_class"])
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


def test_calibration_is_the_gap_of_probability_and_frequency() -> None:
    probabilities, there = np.array([0.9, 0.9, 0.1, 1.0]), np.array([True, False, False, True])

    # 0.9 twice with one there: 0.4; 0.1: 0.1; 1.0 with the bin of its own: 0. By their shares.
    assert calibration_error(probabilities, there) == pytest.approx((2 * 0.4 + 0.1) / 4)
    assert reliability(probabilities, there) == [
        (pytest.approx(0.1), 0.0, 1),
        (pytest.approx(0.9), 0.5, 2),
        (1.0, 1.0, 1),
    ]


def test_region_identity_is_the_share_of_films() -> None:
    def film(right: bool, left: bool) -> Truth:
        held = {"right lung": right, "left lung": left}
        return Truth(
            region_findings={name: frozenset({KEY} if there else ()) for name, there in held.items()},
            judged=frozenset({KEY}),
        )

    # The right lung gets 1, the left a half: of three regions with the finding one equals the one without it.
    assert run.identity([film(True, False), film(True, True)]) == {"auroc_pooled": pytest.approx(2.5 / 3)}


def test_an_area_is_that_of_scikit_learn_with_ties_and_without() -> None:
    for decimals in (0, 1, 9):
        rng = np.random.default_rng(decimals)
        there = rng.random(200) < 0.3
        scores = (rng.normal(size=200) + there).round(decimals)
        assert area_under_curve(there, scores) == pytest.approx(roc_auc_score(there, scores), abs=1e-12)
    for there in (np.ones(5, dtype=bool), np.zeros(5, dtype=bool), np.zeros(0, dtype=bool)):
        assert area_under_curve(there, np.arange(float(len(there)))) is None


def span(left: float, right: float) -> FloatArray:
    return np.array([(left + right) / 2, 0.5, right - left, 0.4], dtype=np.float32)


def chest_truth(*, known: float | None = None, heart: bool = True, begin: float = 0.1) -> Truth:
    """Return labels of a thorax from `begin` to 0.9, and of a heart half as wide as one from 0.1."""
    regions = {"right lung": span(begin, 0.4), "left lung": span(0.6, 0.9)}
    return Truth(
        regions=regions | ({"cardiac silhouette": span(0.3, 0.7)} if heart else {}), cardiothoracic_ratio=known
    )


def chest(heart: float, thorax: float = 0.8) -> ChestWidths:
    return ChestWidths(
        heart=Extent(left=0.5 - heart / 2, right=0.5 + heart / 2, height=0.6),
        thorax=Extent(left=0.5 - thorax / 2, right=0.5 + thorax / 2, height=0.8),
    )


def test_errors_of_a_ratio_are_measured_minus_true() -> None:
    # The true ratio is 0.5; those measured are 0.525, 0.475 and 0.55, and one film has none.
    made = anatomy.measure_ratio([chest_truth()] * 4, [chest(0.42), chest(0.38), None, chest(0.44)])

    spread = 1.96 * np.std([0.025, -0.025, 0.05], ddof=1)
    expected = {"films": 3, "share_measured": 0.75, "error_of_constant": 0, "mean_absolute_error": 1 / 30}
    expected |= {"bias": 0.05 / 3, "lower": 0.05 / 3 - spread, "upper": 0.05 / 3 + spread}
    assert made == pytest.approx(expected, abs=1e-6)
    unmeasured = anatomy.measure_ratio([chest_truth(known=known) for known in (0.4, 0.5, 0.7)], [None] * 3)
    assert unmeasured == pytest.approx({"films": 0, "share_measured": 0, "error_of_constant": 0.1}), (
        "that is the median"
    )
    known = anatomy.measure_ratio([chest_truth(known=0.45)] * 2, [chest(0.4)] * 2)
    assert known["bias"] == pytest.approx(0.05), "a known ratio goes before that of boxes"
    untold = [chest_truth(heart=False), chest_truth(begin=0.0), Truth()]
    assert anatomy.measure_ratio(untold, [chest(0.4)] * 3) == {}, "no heart, a thorax that is cut off, no box"


def test_a_line_of_a_file_tells_its_ratio_or_its_boxes_do(tmp_path: Path) -> None:
    assert make_phantoms(["phantoms:2910000:3", "--out", str(tmp_path), "--truth", "--side", "320"]) == 0
    path = tmp_path / "truth.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def read() -> list[Truth]:
        films = read_films(path, read_manifest(VOCABULARIES.parent))
        return [films.load(number).truth for number in range(3)]

    told = read()
    path.write_text("\n".join(json.dumps({**line, "cardiothoracic_ratio": None}) for line in lines))
    by_boxes = [anatomy.true_ratio(film) for film in read()]

    for number, film in enumerate(told):
        drawn = truth_of_phantom(phantom(2_910_000 + number, side=320))
        asked = {hint.text: hint for hint in drawn.hints if hint.taught}
        assert {hint.text for hint in film.hints} == asked.keys() and all(hint.taught for hint in film.hints)
        for hint in film.hints:
            for own, expected in ((hint.boxes, asked[hint.text].boxes), (hint.others, asked[hint.text].others)):
                assert sorted(own.tolist()) == pytest.approx(np.array(sorted(expected.tolist())), abs=0.002)
    known = [anatomy.true_ratio(film) for film in told]
    assert known == [line["cardiothoracic_ratio"] for line in lines]
    whole = [(exact, value) for exact, value in zip(known, by_boxes, strict=True) if value is not None]
    assert whole and all(value == pytest.approx(exact, abs=0.03) for exact, value in whole)


def prompt(
    key: str,
    state: FindingState | None,
    *,
    generated: str = "Words.",
    sentence: int | None = None,
    contradiction: Contradiction | None = None,
) -> PromptReading:
    return PromptReading(
        key=key,
        kind=PromptKind.REGION if state is None else PromptKind.PATHOLOGY,
        probability=None if state is None else 0.9,
        state=state,
        sentence=sentence,
        generated=generated,
        contradiction=contradiction,
    )


def said_film(*prompts: PromptReading, said: tuple[By, ...] = (), withheld: tuple[str, ...] = ()) -> FilmReading:
    return FilmReading(
        sentences=tuple(Sentence(text="S.", prompt="", score=1.0, boxes=(), by=by) for by in said),
        prompts=prompts,
        withheld=tuple(WithheldSentence(text="W.", prompt=key, reason="denied") for key in withheld),
    )


ONE = said_film(
    prompt("edema", FindingState.PRESENT, sentence=0),
    prompt("fracture", FindingState.PRESENT, sentence=1),
    prompt("pneumonia", FindingState.INDETERMINATE, sentence=2, contradiction="other_side"),
    prompt("pneumothorax", FindingState.ABSENT),
    prompt("left_lung", None),
    prompt("right_lung", None, generated=""),
    said=("network", "rule", "network"),
    withheld=("fracture", "pneumonia", "left_lung"),
)
"""Of two present findings one has its own sentence; the third one got another of the network."""


def measured(*readings: FilmReading, truth: Truth | None = None) -> dict[str, object]:
    return measure_sentences(readings, [truth or Truth()] * len(readings), NEVER)


def test_sentences_are_counted_by_what_became_of_them() -> None:
    figures = measured(ONE, said_film(prompt("edema", FindingState.ABSENT)))

    counted = {"generated": 6, "withheld": 3, "by_rule": 1, FindingState.PRESENT: 2, "reported": 3}
    shares = {"withheld_share": 3 / 6, "replaced_by_rule": 1 / 3, "own_present_share": 1 / 2}
    shares |= {"own_reported_share": 1 / 3, "by_network_share": 2 / 3}
    assert {name: figures[name] for name in counted} == counted
    assert {name: figures[name] for name in shares} == pytest.approx(shares)
    assert figures["per_reason"] == {"denied": 3}
    silent = measured(said_film(prompt("edema", FindingState.PRESENT, generated="")))
    assert (silent["own_present_share"], silent["withheld_share"]) == (0.0, None), "it was not generated"


@pytest.mark.parametrize(
    ("truth", "false", "found"),
    [
        (Truth(labels={"no_finding": True}), 2.0, None),
        (Truth(labels={"lung_opacity": True}, read_as="Lung Opacity"), None, 0.0),
        (Truth(labels={"edema": True}), None, None),
    ],
)
def test_what_is_present_is_false_on_a_normal_film(truth: Truth, false: float | None, found: float | None) -> None:
    figures = measured(ONE, truth=truth)

    assert (figures["false_findings"], figures["opacity_sensitivity"]) == (false, found)


def seen_view(kind: Kind, view: View, share: float = 1.0, *, mirrored: bool = False, rotated: bool = False) -> SeenView:
    rest = (1 - share) / (len(VIEWS) - 1)
    probabilities = {name: share if name == view else rest for name in VIEWS}
    reading = ViewReading(probabilities=probabilities, certain=0.9, mirrored=mirrored, rotated=rotated)
    return SeenView(kind=kind, view="PA", reading=reading)


def test_each_figure_is_measured_on_its_own_pictures() -> None:
    right = [
        seen_view("frontal", "PA"),
        seen_view("mirrored", "PA", mirrored=True),
        seen_view("rotated", "PA", rotated=True),
        seen_view("lateral", "lateral"),
        seen_view("other", "not_chest"),
    ]
    wrong = [
        seen_view("frontal", "lateral", mirrored=True),
        seen_view("mirrored", "PA"),
        seen_view("rotated", "PA"),
        seen_view("lateral", "lateral", 0.7),
        seen_view("other", "AP"),
    ]
    names = "kept unmarked projection mirrored rotated lateral other stopped".split()

    all_right, half = (views.measure(films, NEVER) for films in ([right], [right, wrong]))

    assert [all_right[name] for name in names] == [1.0] * len(names)
    assert [half[name] for name in names] == [0.5] * 5 + [1.0, 0.5, 0.75]
    assert (all_right["frontals"], half["frontals"]) == (1, 2)
    [(_, rows)] = tables(half)
    assert [row[0] for row in rows] == [*names, "frontals"]
    doubtful = views.measure([[seen_view("frontal", "lateral", 0.8)]], NEVER)
    assert (doubtful["kept"], doubtful["projection"], doubtful["stopped"]) == (0.0, 0.0, None)


@pytest.mark.drill(part="laboratory")
def test_a_model_without_a_head_cannot_be_asked(imported_model: Path) -> None:
    with pytest.raises(ModelError, match="no view head"):
        evaluate(Request(model=imported_model, data="phantoms:1000000:1", tasks=["views"]), quiet)
