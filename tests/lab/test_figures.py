"""Figures of evaluations: against cases counted by hand, whole ones as recorded, and in what patients have no say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from language.labels import NO_FINDING, RuleLabeler
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
from models.decisions import PHANTOMS, Band, Decisions, Measurement, PlaceRule, Readout
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation import anatomy, regions, reports, run, side_questions, views
from models.lab.evaluation.cases import SideQuestion, Truth
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.detection import measure as measure_detection
from models.lab.evaluation.document import tables
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed, side_of
from models.lab.evaluation.film_classification import cross_fitted, films_of
from models.lab.evaluation.film_classification import measure as measure_films
from models.lab.evaluation.localization import measure as measure_places
from models.lab.evaluation.place_accuracy import PlacedFilm
from models.lab.evaluation.placing import Films, Rules, judge
from models.lab.evaluation.reports import measure_sentences
from models.lab.evaluation.request import Request
from models.lab.evaluation.statistics import Bootstrap, area_under_curve
from models.lab.evaluation.thresholds import OPACITY, Aim
from models.lab.evaluation.tuning import tune
from models.lab.evaluation.views import Kind, SeenView
from models.lab.phantoms import FINDINGS
from models.lab.tasks.detection import DetectionSettings
from models.manifest import read_manifest
from models.network.detector import Detection
from models.progress import quiet
from models.reading.cardiothoracic import ChestWidths, Extent
from models.reading.places import side_certainty
from models.reading.tokenizers import VOCABULARIES
from tests.support import recorded

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


def with_heart(box: FloatArray) -> Truth:
    return Truth(boxes={KEY: box[np.newaxis]}, located=frozenset(FINDINGS))


def test_the_constant_answer_to_detection_is_the_mean_box_on_every_film() -> None:
    nothing = Truth(located=frozenset(FINDINGS))
    figures = run._constant_detection([with_heart(HEART), with_heart(moved(HEART, 0.4)), nothing, nothing])

    # A box that is moved by a fifth shares 2 of 3 with its own: enough for six of seven.
    expected = {"map": 6 / 7, "large_four": 6 / 7, "consolidation_and_opacity": None}
    assert figures == pytest.approx(expected, abs=1e-6)


def test_overlap_is_averaged_over_films_then_over_regions() -> None:
    regions = {"right lung": HEART, "left lung": HEART, "cardiac silhouette": AWAY}
    seen = {"right lung": HEART, "left lung": moved(HEART, 0.5), "cardiac silhouette": HEART}
    truths = [Truth(regions=regions), Truth(regions={"right lung": HEART})]

    figures = anatomy.measure(truths, [seen, {"right lung": moved(HEART, 0.5)}], NEVER)

    assert figures["per_region"] == pytest.approx({"right lung": 2 / 3, "left lung": 1 / 3, "cardiac silhouette": 0.0})
    assert figures["miou"] == figures["lungs_and_heart"] == pytest.approx(1 / 3)
    assert (figures["lungs"], figures["others"]) == (pytest.approx(1 / 2), None)


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
    found = Detections(HEART[np.newaxis], np.array([NUMBER]), np.array([0.9], dtype=np.float32))
    nothing = Detections(HEART[:0].reshape(0, 4), np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32))
    of_boxes = measure_detection([with_heart(HEART)] * 2, [found, nothing], Drawn())["deviations"]
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


def test_region_identity_is_the_share_of_films() -> None:
    held, not_held = frozenset({KEY}), frozenset[str]()
    films = [Truth(region_findings={"right lung": held, "left lung": left}, judged=held) for left in (not_held, held)]

    # The right lung gets 1, the left a half: of three regions with the finding one equals the one without it.
    assert run.identity(films) == {"auroc_pooled": pytest.approx(2.5 / 3)}


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

    spread = 1.96 * float(np.std([0.025, -0.025, 0.05], ddof=1))
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


def test_sentences_are_counted_by_what_became_of_them_and_what_is_present_is_false_on_a_normal_film() -> None:
    figures = measured(ONE, said_film(prompt("edema", FindingState.ABSENT)))

    counted = {"generated": 6, "withheld": 3, "by_rule": 1, FindingState.PRESENT: 2, "reported": 3}
    shares = {"withheld_share": 3 / 6, "replaced_by_rule": 1 / 3, "own_present_share": 1 / 2}
    shares |= {"own_reported_share": 1 / 3, "by_network_share": 2 / 3}
    assert {name: figures[name] for name in counted} == counted
    assert {name: figures[name] for name in shares} == pytest.approx(shares)
    assert figures["per_reason"] == {"denied": 3}
    silent = measured(said_film(prompt("edema", FindingState.PRESENT, generated="")))
    assert (silent["own_present_share"], silent["withheld_share"]) == (0.0, None), "it was not generated"
    normal, opacity = Truth(labels={"no_finding": True}), Truth(labels={"lung_opacity": True}, read_as="Lung Opacity")
    of_films = [measured(ONE, truth=truth) for truth in (normal, opacity, Truth(labels={"edema": True}))]
    false = [(own["false_findings"], own["opacity_sensitivity"]) for own in of_films]
    assert false == [(2.0, None), (None, 0.0), (None, None)]


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


# ---- whole figures, decisions and rules on made-up scores, as recorded


FILMS = 240
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
    few, many = (measure_films(made_up, NEVER, most_false=most)["false_findings"] for most in (0.02, 0.2))

    assert few < many  # type: ignore[operator] # numbers
    unread = replace(made_up, mined_known=np.ones(FILMS, dtype=np.bool_), read_as=np.full(FILMS, ""))
    assert measure_films(unread, NEVER)["false_findings"] is None, "a mined label alone makes no film normal"


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
    """Decisions of phantoms for all, one changed by hand; of people for an edema with its readout; no fractures.

    No film of these tests is asked for another abnormality of the pleura.
    """
    keys = [*scores[0], "pleural_other"]
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
        | dict.fromkeys(("edema", "support_devices", "pleural_other"), replace(drawn, band=band)),
    )
    own = Measurement(measured_on="clinic", positives=40, negatives=60)
    start = start.measured("edema", 0.4, own, readout=Readout(slope=9.0, offset=-1.0)).leaving_out("fracture")
    start = start.measured("pleural_other", 0.7, own)
    return start.set_by_hand("support_devices", 0.35)


def test_decisions_chosen_on_patient_films_and_on_phantoms_are_as_recorded() -> None:
    of_people = {"false findings": Aim(false_findings=0.3, least=12), "sensitivity": Aim(sensitivity=0.8, least=12)}
    of_people |= {"neither": Aim(least=12)}
    of_phantoms = {"f1": Aim(), "sensitivity": Aim(sensitivity=0.9)}
    for seed, population, left_out, aims, record in (
        (2, "hospital", ["cardiomegaly"], of_people, "decisions_of_patient_films"),
        (3, PHANTOMS, list[str](), of_phantoms, "decisions_of_phantoms"),
    ):
        truths, scores = films(seed)
        manifest = replace(read_manifest(VOCABULARIES.parent), decisions=decisions(scores))
        said = [Weighed(differences=own, positiveness={"left_lung": own["edema"], "spine": 1.0}) for own in scores]

        made = {
            name: tune(manifest, truths, said, population=population, aim=aim, left_out=left_out)
            for name, aim in aims.items()
        }

        assert all(replace(own, decisions=manifest.decisions) == manifest for own in made.values())
        recorded.check(record, {name: own.decisions for name, own in made.items()})


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
        assert measure_places(few, partial(scaled, found), NEVER) == {}, "too few films, or phantoms"


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

    def in_their_size(found: Detections, settings: DetectionSettings) -> Detections:
        scales = np.array([settings.scales[number] for number in found.classes]).reshape(-1, 1)
        return found._replace(boxes=found.boxes * np.concatenate([scales**0, scales**0, scales, scales], axis=1))

    model = SimpleNamespace(manifest=replace(manifest, decisions=before), detections=in_their_size)

    def judged(*films: Films) -> tuple[dict[str, object], dict[str, Rules]]:
        return judge(cast("EvaluatedModel", model), *films, population="hospital", resamples=3)

    def missed(films: Films) -> Films:
        boxes = [own._replace(boxes=own.boxes * 0) for own in cast("list[Detections]", films.located)]
        return replace(films, located=cast("list[Detection]", boxes))

    chosen_on, held_out, normal = set_of(10, 30), set_of(20, 20), set_of(30, 12, normal=True)
    made, better = judged(chosen_on, held_out, normal)

    recorded.check("rules_of_places", {"figures": made, "better": better})
    assert judged(chosen_on, held_out, set_of(30, 12))[1] == {}, "with boxes on most normal films no rule is better"
    assert judged(missed(chosen_on), held_out, normal)[1] == {}, "nor where constant boxes fit as well in the folds"
    assert judged(chosen_on, missed(held_out), normal)[1] == {}, "nor where they fit as well on held-out films"
