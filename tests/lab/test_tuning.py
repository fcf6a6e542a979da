"""Decisions and rules of places chosen on films: never on films for tests, nor on those of the patients they serve."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.checkpoint.files import verify
from models.contract import FindingState
from models.decisions import LEFT_OUT, Band, Decisions, Measurement, PlaceRule, Readout, sigmoid
from models.engines import FloatArray, Regions
from models.errors import ModelError
from models.lab.evaluation import evaluated_model, placing
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed, read_questions, side_of
from models.lab.evaluation.place_accuracy import PlacedFilm, Told, placed
from models.lab.evaluation.placing import (
    LEAST_TOLD,
    Rules,
    by_folds,
    cross,
    is_better,
    rules_of,
    with_rules,
)
from models.lab.evaluation.request import DEFAULT
from models.lab.evaluation.statistics import Marks, Scores
from models.lab.evaluation.thresholds import (
    Aim,
    Labelled,
    best_threshold,
    calibrate,
    choose,
    fitted,
    half_right,
    measured_band,
    same_point,
)
from models.lab.evaluation.tuning import (
    best_decisions,
    best_rule,
    check_tunable,
    digest,
    for_each_film,
    require_others,
    without_often_shown,
)
from models.lab.phantoms import FINDINGS, parse_set
from models.lab.tasks.detection import DetectionSettings
from models.lab.training.split import Patients, folds_of
from models.manifest import MANIFEST, DetectionRule, Manifest, read_manifest
from models.progress import quiet
from models.reading.decided_film import DecidedFilm
from models.reading.decision import decide
from models.reading.phrasebook import PromptVectors
from models.reading.places import side_certainty
from models.reading.tokenizers import VOCABULARIES
from tests.lab.datasets import Films

START = Decisions(
    temperature=1.0,
    default_threshold=0.7,
    thresholds={"pneumonia": 0.6},
    review_band=0.1,
    box_threshold=0.5,
    region_threshold=0.5,
)


@pytest.mark.parametrize(
    ("first", "is_tunable"), [(999_990, False), (1_000_000, True), (1_999_990, True), (2_000_000, False)]
)
def test_films_of_validation_are_taken_and_no_others(first: int, is_tunable: bool) -> None:
    films = parse_set(f"phantoms:{first}:10")

    with nullcontext() if is_tunable else pytest.raises(ModelError, match="seeds 1000000 to 1999999 only"):
        check_tunable(films)


def labelled(differences: Scores, there: Marks, normal: Scores | None = None) -> Labelled:
    return Labelled(differences=differences, there=there, normal=np.zeros(0) if normal is None else normal)


def drawn(strength: float, *, seed: int, films: int = 400) -> Labelled:
    """Probabilities of a finding that half of the films have, the others being without any finding."""
    rng = np.random.default_rng(seed)
    there = np.arange(films) % 2 == 0
    said = sigmoid(rng.normal(size=films) + strength * there)
    return labelled(said, there, said[~there])


def tuned(
    start: Decisions, films: dict[str, Labelled], population: str, *, sensitivity: float | None = None
) -> Decisions:
    noted = np.zeros(0), np.zeros(0, dtype=np.bool_)
    return best_decisions(start, films, noted=noted, population=population, aim=Aim(sensitivity=sensitivity))


def test_what_phantoms_do_not_tell_is_left_out_on_real_films() -> None:
    vague, clear = {"fracture": drawn(0.1, seed=2)}, {"fracture": drawn(2.0, seed=2)}

    first = tuned(START, vague, "phantoms")
    moved = tuned(first, {"edema": drawn(5.0, seed=3)}, "phantoms")
    real = tuned(first, vague, "hospital", sensitivity=0.5)

    assert decide(first, "fracture", 0.999, trusted="real") == "left_out"
    assert decide(moved, "fracture", 0.999, trusted="any") == "left_out"
    assert decide(first.on_phantoms(), "fracture", 0.999, trusted="phantoms") == "present"
    assert moved.temperature != first.temperature and moved.threshold("fracture") == 1.0
    assert real.on_phantoms().measurements == first.on_phantoms().measurements and real.threshold("fracture") < 1
    assert tuned(real, vague, "phantoms").threshold("fracture") == real.threshold("fracture")
    assert tuned(first, clear, "phantoms").phantoms == {}


@pytest.mark.parametrize(("shown", "left_out"), [(11, ("support_devices",)), (10, ())])
def test_what_nobody_measured_is_left_out_if_shown_often(shown: int, left_out: tuple[str, ...]) -> None:
    """Of 100 films of people. A finding with a threshold for them stays, and so do one that is not asked and normal."""
    drawn_first = Measurement(measured_on="phantoms", positives=30, negatives=70)
    keys = ("support_devices", "edema", "no_finding", "fracture")
    measurements = dict.fromkeys(keys, drawn_first) | {"edema": replace(drawn_first, measured_on="hospital")}
    start = replace(START, thresholds=dict.fromkeys(keys, 0.5), measurements=measurements)
    # The band of 0.1 begins at a probability of 0.4, which is a difference of -0.41.
    values = [-0.4 if film < shown else -0.42 for film in range(100)]
    films = [Weighed(differences=dict.fromkeys(keys[:3], value), positiveness={}) for value in values]

    decisions = without_often_shown(start, films)

    assert decisions.left_out == left_out
    assert decisions.on_phantoms().thresholds == start.thresholds


def test_a_finding_of_few_films_gets_no_threshold() -> None:
    some = drawn(1.0, seed=2, films=60)
    films = {
        "edema": drawn(1.0, seed=1, films=30),
        "fracture": drawn(1.0, seed=2, films=28),
        "atelectasis": replace(some, there=np.arange(60) < 46),  # on 46, and not on 14
    }

    assert calibrate(films, start=1.0, aim=Aim(least=15))[1].keys() == {"edema"}
    with pytest.raises(ModelError, match="is on 16 films and missing on 16"):
        calibrate(films, start=1.0, aim=Aim(least=16))


def test_real_films_leave_the_thresholds_of_phantoms() -> None:
    """One model is tuned on phantoms, then on real films, then on phantoms again."""
    films = {"edema": drawn(3.0, seed=1), "fracture": drawn(4.0, seed=2)}
    drawn_first = tuned(START, films, "phantoms")
    real = {"edema": labelled(3 * films["edema"].differences + 1, films["edema"].there)}

    both = tuned(drawn_first, real, "hospital", sensitivity=0.8)
    again = tuned(both, films, "phantoms")

    assert both.on_phantoms() == drawn_first, "films of people leave what phantoms chose, the temperature too"
    assert [both.measurements[key].measured_on for key in ("edema", "fracture")] == ["hospital", "phantoms"]
    assert both.phantoms.keys() == both.readout.keys() == {"edema"}
    assert both.threshold("edema") != drawn_first.threshold("edema")
    assert again.readout == both.readout and again.threshold("edema") == both.threshold("edema")
    assert again.measurements["edema"] == both.measurements["edema"]


def test_probabilities_of_a_readout_are_those_of_films_of_people_alone() -> None:
    own = Measurement(measured_on="hospital", positives=20, negatives=80)
    readout = {"edema": Readout(slope=2.0, offset=-1.0)}
    decisions = replace(START, thresholds={"edema": 0.6}, measurements={"edema": own}, readout=readout)
    difference = np.array(0.5)

    assert decisions.probability("edema", difference) == pytest.approx(0.5)
    for plain in (decisions.probability(None, difference), decisions.on_phantoms().probability("edema", difference)):
        assert plain == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert decisions.measured("edema", 0.6, own).readout == {}, "a threshold is of the readout that it was chosen with"
    with pytest.raises(ValueError, match=r"readout\.edema needs measurements\.edema on films of people"):
        replace(decisions, measurements={"edema": replace(own, measured_on="phantoms")})


def test_what_tells_the_opposite_is_not_turned_round() -> None:
    there = np.arange(40) % 4 == 0

    readout = fitted(np.where(there, -1.0, 1.0), there)

    assert sigmoid(readout.slope * np.array([-1.0, 1.0]) + readout.offset) == pytest.approx(0.25, abs=0.03)


def test_a_threshold_never_becomes_one_that_leaves_out() -> None:
    assert same_point(0.999, 1.0, 0.1) < LEFT_OUT == same_point(LEFT_OUT, 1.0, 2.0)


def test_half_of_the_films_called_show_the_finding() -> None:
    said = np.linspace(0.01, 0.99, 50)
    there = np.zeros(50, dtype=np.bool_)
    there[[49, 48, 46, 44, 40, 10]] = True

    called = said >= half_right(labelled(said, there))
    assert (called.sum(), there[called].sum()) == (7, 4), "10 called with 5 right would be half, but one more counts"
    assert half_right(labelled(said, said < 0.1)) == LEFT_OUT


def test_no_finding_is_called_if_normal_films_are_too_few() -> None:
    some = drawn(3.0, seed=1, films=60)
    few = replace(some, normal=some.normal[:14])

    assert choose({"edema": few}, Aim(false_findings=0.1, least=15))["edema"].threshold == LEFT_OUT
    assert choose({"edema": some}, Aim(false_findings=0.1, least=15))["edema"].threshold < LEFT_OUT


def test_a_threshold_lies_between_the_films_that_it_tells_apart() -> None:
    probabilities = np.array([0.1, 0.2, 0.6, 0.9])

    # From 0.6 on: one of one missed none, F1 1; in the middle of 0.2 and 0.6.
    assert best_threshold(probabilities, np.array([False, False, True, True])) == pytest.approx(0.4, abs=1e-6)
    there = np.array([False, True, False, True])
    for sensitivity, threshold in ((1.0, 0.15), (0.5, 0.75)):
        assert best_threshold(probabilities, there, sensitivity=sensitivity) == pytest.approx(threshold, abs=1e-6)
    for lowest in (0.1234567, 1 / 3, 1e-9):
        reached = best_threshold(np.array([lowest, 0.9]), np.array([True, False]))
        assert reached is not None and reached <= lowest, "by the film that set it"


@pytest.mark.parametrize("best", [0.1, 0.35])
def test_the_best_rule_is_found_one_choice_after_the_other(best: float) -> None:
    def precision(some: DetectionSettings) -> dict[str, float | None]:
        right = 0.1 * (not some.by_weights) + 0.1 * (some.temperature == 0.2) + 0.1 * (some.overlap == best)
        heart = 0.5 - abs(some.scales[FINDINGS.index("cardiomegaly")] - 1.3)
        return dict.fromkeys(FINDINGS, right) | {"cardiomegaly": heart + right, "fracture": None}

    chosen = best_rule(DetectionRule(overlap=0.35), precision)

    assert chosen == DetectionRule(scored_by="prompts", temperature=0.2, scales={"cardiomegaly": 1.3}, overlap=best)


SAID = np.arange(1, 100) / 100


def test_a_band_begins_where_half_of_what_it_shows_is_there() -> None:
    there = (SAID >= 0.3) & (np.arange(99) % 4 > 0)  # three of four from 0.3 on

    band = measured_band(SAID, there, threshold=0.5, normal=SAID[SAID < 0.2])

    assert band is not None
    assert 2 * band.shown >= band.within > 0
    assert band.lower == pytest.approx(0.2, abs=0.03), "15 of 20 from 0.3 on, and 10 more below"
    assert (band.below, band.missed) == ((band.lower > SAID).sum(), there[band.lower > SAID].sum())


@pytest.mark.parametrize(
    ("threshold", "band"),
    [
        pytest.param(0.4, Band(lower=0.4, below=39, missed=0, within=0, shown=0), id="none"),
        pytest.param(0.8, Band(lower=0.5, below=49, missed=0, within=30, shown=0), id="as likely as not"),
        pytest.param(1.0, None, id="never present"),
    ],
)
def test_where_less_is_there_only_what_is_likely_is_to_be_reviewed(threshold: float, band: Band | None) -> None:
    assert measured_band(SAID, threshold <= SAID, threshold=threshold, normal=np.zeros(0)) == band


SHIPPED = replace(read_manifest(VOCABULARIES.parent), chosen_on=())
FILMS = 200
NAMES = np.array([f"patient {number}" for number in range(FILMS)])
OF_FIRST = np.flatnonzero(folds_of(NAMES) == 0)


@dataclass
class Weighing:
    """A model that tells films apart as their gray values say."""

    manifest: Manifest

    def weigh(self, case: EvaluationCase) -> Weighed:
        score = float(case.gray[0, 0]) - 0.5
        return Weighed(differences={"edema": score, "lung_opacity": score, "no_finding": -score}, positiveness={})

    def deciding_by(self, manifest: Manifest) -> Weighing:
        return Weighing(manifest)


def source(shows: Marks) -> Films:
    """Films that do or do not show an edema, an opacity, and so something."""
    films = Films()
    for index, there in enumerate(shows.tolist()):
        labels = {"edema": there, "lung_opacity": there, "no_finding": not there}
        gray = np.full((2, 2), index / FILMS, dtype=np.float32)
        truth = Truth(labels=labels, patient=str(NAMES[index]))
        films.append(EvaluationCase(name=str(index), gray=gray, truth=truth))
    return films


def chosen_for(films: Films, manifest: Manifest = SHIPPED) -> list[EvaluatedModel]:
    model = cast(EvaluatedModel, Weighing(manifest))
    return for_each_film(model, films, population="hospital", most_false=0.1, report=quiet)


def test_a_patient_has_no_say_in_the_decisions_for_their_films() -> None:
    there = np.arange(FILMS) >= FILMS // 2
    otherwise = there.copy()
    otherwise[OF_FIRST] = ~there[OF_FIRST]

    before, after = chosen_for(source(there)), chosen_for(source(otherwise))

    same = {film for film in range(FILMS) if before[film].manifest == after[film].manifest}
    assert same == {*OF_FIRST}
    assert before[OF_FIRST[0]].manifest.decisions.measurements["edema"].measured_on == "hospital"
    own = replace(SHIPPED.decisions, readout={}, phantoms={}, measurements={}, thresholds={"edema": LEFT_OUT})
    chosen = chosen_for(source(there), replace(SHIPPED, decisions=own))
    assert {key for film in chosen for key in film.manifest.decisions.left_out} == {"edema"}


def test_films_that_chose_are_counted_and_refused() -> None:
    films = source(np.arange(FILMS) >= FILMS // 2)
    chose = replace(SHIPPED, chosen_on=tuple(digest(films.load(number).gray) for number in (3, 8)))

    require_others(SHIPPED, films, quiet)
    with pytest.raises(ModelError, match=r"2 of 200 films chose the thresholds of this model.*--folds"):
        require_others(chose, films, quiet)


# ---- the score from which a box is drawn, and the certainty from which a side is told


MODEL = VOCABULARIES.parent
RIGHT, LEFT = (0.25, 0.7, 0.2, 0.2), (0.75, 0.7, 0.2, 0.2)
HIGHER = (0.25, 0.6, 0.2, 0.2)
"""Overlaps RIGHT by an IoU of a third, but lies in another zone."""
PATIENTS = [f"{number:08}" for number in range(100)]
OPACITY = "lung_opacity"
BOX = PlaceRule(measured_on="hospital", least=0.3, told=20, right=12)


def told(number: float, *, is_right: bool, patient: str = "p") -> Told:
    return Told(patient=patient, number=number, is_right=is_right)


def zone_of(boxes: FloatArray) -> str:
    return "lower zone" if (boxes[:, 1] > 0.65).all() else "mid zone"


def film(
    patient: str = "p",
    *,
    score: float = 0.9,
    shown: tuple[tuple[float, ...], ...] = (RIGHT,),
    true: tuple[tuple[float, ...], ...] | None = (RIGHT,),
    is_reported: bool = True,
) -> PlacedFilm:
    """A film with boxes of one score, and a weak one on the left that is not shown."""
    middle = partial(side_of, middle=0.5)
    boxes = np.array(shown)
    return PlacedFilm(
        patient=patient,
        is_reported=is_reported,
        true=None if true is None else np.array(true).reshape(-1, 4),
        shown=(boxes, np.full(len(boxes), score)),
        certainties=side_certainty(np.array([RIGHT, LEFT]), np.array([score, 0.1]), side_of=middle),
        side_of=middle,
        zone_of=zone_of,
    )


def test_the_lowest_number_that_reaches_its_goal_is_chosen() -> None:
    wrong = [told(0.1 + place / 100, is_right=False) for place in range(4)]
    right = [told(0.5 + place / 100, is_right=True) for place in range(LEAST_TOLD)]

    assert placing.choose([*right, *wrong], 0.8) == pytest.approx(0.12)
    assert placing.choose([*right, *wrong], 1.0) == 0.5
    assert placing.choose(right[1:], 0.8) is None
    assert placing.choose(right[:9], 0.8) is None and placing.choose(right[:10], 0.8) == 0.5
    assert placing.choose(wrong * 5, 0.8) is None


def test_a_rule_is_counted_on_patients_that_chose_nothing_and_must_reach_its_goal_there() -> None:
    made = [told(0.9, is_right=True, patient=patient) for patient in PATIENTS]
    of_fold = set(compress(PATIENTS, folds_of(np.array(PATIENTS)) == 0))
    misled = [replace(item, is_right=item.patient not in of_fold) for item in made]

    rule = cross(misled, 0.7, measured_on="hospital")

    assert rule == PlaceRule(measured_on="hospital", least=0.9, told=100, right=100 - len(of_fold))
    assert cross(made[:2], 0.7, measured_on="hospital") is None
    assert by_folds(made[:2], 0.7) == [math.inf] * 5
    assert placing.choose(misled, 0.88) == 0.9
    assert cross(misled, 0.88, measured_on="hospital") is None, "87 of 100 are right on patients that chose nothing"
    lucky = [replace(item, number=0.1, is_right=False) for item in made[:10]] + made[10 : 10 + LEAST_TOLD]
    assert placing.choose(lucky, 1.0) == 0.9
    assert cross(lucky, 1.0, measured_on="hospital") is None, "fewer than ten of other patients were told"


ALL_RIGHT = "reported with_box boxes boxes_right sides sides_right zones zones_right"


@pytest.mark.parametrize(
    ("seen", "counted"),
    [
        (film(), ALL_RIGHT),
        (film(true=(HIGHER,)), "reported with_box boxes boxes_right sides sides_right zones"),
        (film(true=((0.25, 0.7, 0.2, 0.042),)), ALL_RIGHT),
        (film(true=((0.25, 0.7, 0.2, 0.038),)), "reported with_box boxes sides sides_right zones zones_right"),
        (film(true=(LEFT,)), "reported with_box boxes sides zones"),
        (film(true=()), "reported with_box boxes sides zones"),
        (film(shown=((0.5, 0.7, 0.4, 0.2),)), "reported with_box boxes"),
        (film(true=None), "reported with_box"),
        (film(is_reported=False), ""),
        (film(score=0.49), "reported"),
        (film(score=0.5), ALL_RIGHT),
    ],
    ids=[
        *("same", "IoU of a third", "IoU of 0.21", "IoU of 0.19", "other side", "no finding", "across the middle"),
        *("unknown", "not reported", "below the limit", "at the limit"),
    ],
)
def test_a_box_a_side_and_a_zone_are_right_where_a_true_box_lies(seen: PlacedFilm, counted: str) -> None:
    assert {name for name, count in seen.counts(0.5).items() if count} == {*counted.split()}


def test_both_sides_are_right_if_true_boxes_lie_on_both() -> None:
    on_both = {"reported": 1, "with_box": 1, "boxes": 2, "both": 1}
    nothing = dict.fromkeys(film().counts(0.5), 0)

    assert film(shown=(RIGHT, LEFT)).counts(0.5) == nothing | on_both | {"boxes_right": 1}
    right = film(shown=(RIGHT, LEFT), true=(RIGHT, LEFT))
    assert right.counts(0.5) == nothing | on_both | {"boxes_right": 2, "both_right": 1}


def test_a_side_is_chosen_with_the_zone_that_it_brings() -> None:
    good = [film(patient, score=0.6 + number / 1000) for number, patient in enumerate(PATIENTS)]
    other_zone = [replace(own, true=np.array([HIGHER])) for own in good]
    both = [replace(own, shown=(np.array([RIGHT, LEFT]), np.full(2, 0.9))) for own in good]
    right_on_both = [replace(own, true=np.array([RIGHT, LEFT])) for own in both]
    seldom = [replace(own, true=np.array([HIGHER])) if place % 8 == 0 else own for place, own in enumerate(good)]

    def has_sides(*films: PlacedFilm) -> bool:
        rules = rules_of(films, measured_on="hospital")
        assert rules.boxes is not None
        return rules.sides is not None

    assert rules_of(good, measured_on="hospital").boxes == replace(BOX, least=0.6, told=99, right=99)
    assert has_sides(*good) and has_sides(*good, *right_on_both)
    assert not has_sides(*other_zone)
    assert not has_sides(*good, *both), "the finding is on one of both sides"
    assert not has_sides(*other_zone, *right_on_both), "both do not count for one"
    assert not has_sides(*seldom), "fewer than nine of ten"
    assert rules_of(good[:3], measured_on="hospital") == Rules(boxes=None, sides=None, limits=[math.inf] * 5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"boxes_right": 9}, False),
        ({"with_box": 10}, False),
        ({"gain": -0.1}, False),
        ({"bound": -0.1}, False),
        ({"gain": None}, False),
    ],
    ids=["better", "fewer than half right", "no more boxes", "worse there", "by chance in the folds", "not measured"],
)
def test_a_limit_is_better_by_every_part_of_the_rule(change: Mapping[str, float], expected: bool) -> None:
    of: dict[str, Any] = {"boxes": 20, "boxes_right": 10, "with_box": 11, "gain": 0.1, "bound": 0.01, **change}
    gain, bound = of.pop("gain"), of.pop("bound")

    assert is_better({"with_box": 10}, of, gain=gain, least_in_folds=bound) is expected


def test_rules_that_are_better_replace_those_of_their_finding_alone() -> None:
    with_both = with_rules(START, {"edema": Rules(boxes=BOX, sides=BOX, limits=())})

    assert (with_both.boxes, with_both.sides) == ({"edema": BOX}, {"edema": BOX})
    again = with_rules(with_both, {"edema": Rules(boxes=replace(BOX, least=0.1), sides=None, limits=())})
    assert again.boxes["edema"].least == 0.1
    assert again.sides == {}, "a side was chosen for other boxes"
    assert with_rules(with_both, {}) == with_both


def test_boxes_in_the_lungs_have_a_place_beside_the_spine_of_the_film() -> None:
    """An opacity left of the spine, though in the right half of the film, and one outside the lungs."""
    questions = read_questions(DEFAULT)
    prompts = tuple(questions[key] for key in (OPACITY, "right_lower_lung_zone", "left_lower_lung_zone"))
    opacity, outside, right, left = np.array(
        [(0.42, 0.7, 0.1, 0.1), (0.9, 0.1, 0.1, 0.1), (0.2, 0.7, 0.1, 0.2), (0.42, 0.7, 0.2, 0.2)]
    )
    boxes, scores = np.array([[[opacity, outside], [right, right], [left, left]]]), np.full((1, 3, 2), 0.9)
    found = DecidedFilm(
        prompts=prompts,
        vectors=cast("PromptVectors", None),
        regions=Regions(boxes=boxes, scores=scores, aggregated_scores=scores.max(axis=2), features=scores),
        visible=list(zip(boxes[0], scores[0], strict=True)),
        probabilities={0: 0.9},
        states={0: FindingState.PRESENT},
        measured={0: True},
        side_of=None,
    )
    # The spine lies right of the middle of the picture.
    model = SimpleNamespace(manifest=read_manifest(MODEL), questions=questions, decided=lambda _case: (found, 0.3))
    truth = Truth(boxes={OPACITY: opacity[np.newaxis]}, patient="p")

    case = EvaluationCase(name="film", gray=np.zeros((2, 2), np.float32), truth=truth)
    [(key, made)] = placed(cast("EvaluatedModel", model), case).items()

    assert (key, made.drawn(0.0).tolist()) == (OPACITY, [opacity.tolist()])
    assert made.counts(0.0) == dict.fromkeys(ALL_RIGHT.split(), 1) | {"both": 0, "both_right": 0}


def test_rules_that_are_better_are_written_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("onnx", "parity.json")))
    (tmp_path / "held_out.txt").write_text("p1\n", encoding="utf-8")
    (tmp_path / "normals.txt").write_text("p2\n", encoding="utf-8")
    reads: list[tuple[str, list[str]]] = []
    limits = {"edema": {"before": 0.5, "chosen": 0.3, "is_better": True}}
    opened = SimpleNamespace(
        manifest=read_manifest(model), reader=SimpleNamespace(weights_sha256="0" * 64, engine="onnx")
    )

    def read(
        _model: object, path: Path, patients: Patients | None, *_more: object, **_options: object
    ) -> placing.Films:
        named = ["everybody"] if patients is None else [name for name in ("p1", "p2", "p3") if name in patients]
        reads.append((path.name, named))
        return placing.Films(truths=[Truth()], places={})

    def judged(*_films: object, population: str, resamples: int) -> tuple[dict[str, object], dict[str, Rules]]:
        rule = replace(BOX, measured_on=population)
        return {"limits": limits}, {"edema": Rules(boxes=rule, sides=None, limits=())}

    monkeypatch.setattr(evaluated_model, "open_model", lambda *_parts, **_options: opened)
    monkeypatch.setattr(placing, "_read", read)
    monkeypatch.setattr(placing, "judge", judged)
    command = ["films.jsonl", "--model", str(model), "--held-out", str(tmp_path / "held_out.txt")]
    command += ["--normals", "normals.jsonl", "--out", str(tmp_path / "places.json")]
    before = (model / MANIFEST).read_bytes()

    assert placing.main(command) == 0

    assert reads == [("films.jsonl", ["p2", "p3"]), ("films.jsonl", ["p1"]), ("normals.jsonl", ["everybody"])]
    assert json.loads(capsys.readouterr().out) == limits
    document = json.loads((tmp_path / "places.json").read_text(encoding="utf-8"))
    assert (document["data"], document["held_out"]) == ("boxes:films.jsonl", "held_out.txt")
    assert document["tasks"]["places"] == {"limits": limits}
    assert (model / MANIFEST).read_bytes() == before, "without --write"

    command += ["--write", "--population", "clinic", "--set-aside", str(tmp_path / "normals.txt")]
    assert placing.main(command) == 0

    assert reads[-1] == ("normals.jsonl", ["p2"])
    after = read_manifest(model)
    verify(model, after)
    assert after.decisions.boxes["edema"] == replace(BOX, measured_on="clinic")
