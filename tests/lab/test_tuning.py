"""Decisions chosen on films: better on made-up ones, never on films for tests or on a patient's own films."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from models.decisions import LEFT_OUT, Band, Decisions, Measurement, Readout, sigmoid
from models.errors import ModelError
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed
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
from models.lab.training.split import folds_of
from models.manifest import DetectionRule, Manifest, read_manifest
from models.progress import quiet
from models.reading.decision import decide
from models.reading.tokenizers import VOCABULARIES

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


MANIFEST = replace(read_manifest(VOCABULARIES.parent), chosen_on=())
FILMS = 200
PATIENTS = np.array([f"patient {number}" for number in range(FILMS)])
OF_FIRST = np.flatnonzero(folds_of(PATIENTS) == 0)


def case(number: int, *, there: bool) -> EvaluationCase:
    labels = {"edema": there, "lung_opacity": there, "no_finding": not there}
    gray = np.full((2, 2), number / FILMS, dtype=np.float32)
    return EvaluationCase(name=str(number), gray=gray, truth=Truth(labels=labels, patient=str(PATIENTS[number])))


@dataclass
class ListedFilms:
    """Films that are there already."""

    cases: list[EvaluationCase]

    def __len__(self) -> int:
        return len(self.cases)

    def load(self, index: int) -> EvaluationCase:
        return self.cases[index]


@dataclass
class Weighing:
    """A model that tells films apart as their gray values say."""

    manifest: Manifest

    def weigh(self, case: EvaluationCase) -> Weighed:
        score = float(case.gray[0, 0]) - 0.5
        return Weighed(differences={"edema": score, "lung_opacity": score, "no_finding": -score}, positiveness={})

    def deciding_by(self, manifest: Manifest) -> Weighing:
        return Weighing(manifest)


def source(there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> CaseSource:
    return cast(CaseSource, ListedFilms([case(number, there=bool(there[number])) for number in range(FILMS)]))


def chosen_for(films: CaseSource, manifest: Manifest = MANIFEST) -> list[EvaluatedModel]:
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
    own = replace(MANIFEST.decisions, readout={}, phantoms={}, measurements={}, thresholds={"edema": LEFT_OUT})
    chosen = chosen_for(source(there), replace(MANIFEST, decisions=own))
    assert {key for film in chosen for key in film.manifest.decisions.left_out} == {"edema"}


def test_films_that_chose_are_counted_and_refused() -> None:
    films = source(np.arange(FILMS) >= FILMS // 2)
    chose = replace(MANIFEST, chosen_on=tuple(digest(films.load(number).gray) for number in (3, 8)))

    require_others(MANIFEST, films, quiet)
    with pytest.raises(ModelError, match=r"2 of 200 films chose the thresholds of this model.*--folds"):
        require_others(chose, films, quiet)
