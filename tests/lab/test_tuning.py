"""Decisions chosen on films: better on made-up ones, never on films for tests or on a patient's own films."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from models.decisions import LEFT_OUT, Band, Decisions, Measurement, PhantomThreshold, Readout, sigmoid
from models.errors import ModelError
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed
from models.lab.evaluation.statistics import Marks, Scores, calibration_error
from models.lab.evaluation.thresholds import (
    Aim,
    Labelled,
    best_threshold,
    calibrate,
    choose,
    expected,
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
    tune,
    without_often_shown,
)
from models.lab.evaluation.tuning import labelled as labelled_films
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
NOTED = (np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True]))


@pytest.mark.parametrize(
    ("first", "is_tunable"), [(999_990, False), (1_000_000, True), (1_999_990, True), (2_000_000, False)]
)
def test_films_of_validation_are_taken_and_no_others(first: int, is_tunable: bool) -> None:
    films = parse_set(f"phantoms:{first}:10")

    with nullcontext() if is_tunable else pytest.raises(ModelError, match="seeds 1000000 to 1999999 only"):
        check_tunable(films)


def labelled(differences: Scores, there: Marks, normal: Scores | None = None) -> Labelled:
    return Labelled(differences=differences, there=there, normal=np.zeros(0) if normal is None else normal)


def test_decisions_become_better_on_films_that_can_be_told_apart() -> None:
    rng = np.random.default_rng(1)
    chance = rng.random(2000)
    # What a network with temperature 0.1 would say of findings that are there at these odds, a bit too seldom.
    edema = labelled(0.1 * np.log(chance / (1 - chance)), rng.random(2000) < chance)

    chosen = best_decisions(START, {"edema": edema}, noted=NOTED, population="phantoms", aim=Aim())

    def error(temperature: float) -> float:
        return calibration_error(sigmoid(edema.differences / temperature), edema.there)

    assert chosen.temperature == pytest.approx(0.1, rel=0.15)
    assert error(chosen.temperature) < 0.03 < error(START.temperature)
    assert 0.25 < chosen.thresholds["edema"] < 0.5
    assert chosen.region_threshold == pytest.approx(0.25, abs=1e-6)
    # Nothing was learned of pneumonia: it is present at the same difference of cosines as before.
    same = sigmoid(np.array(np.log(0.6 / 0.4) / chosen.temperature))
    assert chosen.thresholds["pneumonia"] == pytest.approx(same, abs=1e-5)
    said, threshold = edema.at(chosen.temperature), chosen.thresholds["edema"]
    assert chosen.measurements == {
        "edema": Measurement(
            measured_on="phantoms",
            positives=int(edema.there.sum()),
            negatives=int((~edema.there).sum()),
            band=measured_band(said.differences, edema.there, threshold=threshold, normal=said.normal),
        )
    }
    assert chosen.default_threshold == same_point(0.7, 1.0, chosen.temperature)
    assert chosen.default_threshold - chosen.review_band == pytest.approx(same_point(0.6, 1.0, chosen.temperature))
    moved = ("temperature", "thresholds", "measurements", "default_threshold", "review_band", "region_threshold")
    assert replace(chosen, **{name: getattr(START, name) for name in moved}) == START


def test_a_band_keeps_its_place_at_another_temperature() -> None:
    edema = drawn(3.0, seed=3)
    first = best_decisions(START, {"edema": edema}, noted=NOTED, population="phantoms", aim=Aim())
    other = best_decisions(first, {"fracture": drawn(5.0, seed=4)}, noted=NOTED, population="phantoms", aim=Aim())

    before, after = first.measurements["edema"].band, other.measurements["edema"].band
    assert other.temperature != first.temperature and before is not None and after is not None
    assert after == replace(before, lower=same_point(before.lower, first.temperature, other.temperature))


def drawn(strength: float, *, seed: int, films: int = 400) -> Labelled:
    """Probabilities of a finding that half of the films have, the others being without any finding."""
    rng = np.random.default_rng(seed)
    there = np.arange(films) % 2 == 0
    said = sigmoid(rng.normal(size=films) + strength * there)
    return labelled(said, there, said[~there])


def test_what_phantoms_do_not_tell_is_left_out_on_real_films() -> None:
    vague, clear = {"fracture": drawn(0.1, seed=2)}, {"fracture": drawn(2.0, seed=2)}

    def tuned(start: Decisions, films: dict[str, Labelled], population: str) -> Decisions:
        return best_decisions(start, films, noted=NOTED, population=population, aim=Aim(sensitivity=0.5))

    first = tuned(START, vague, "phantoms")
    moved = tuned(first, {"edema": drawn(5.0, seed=3)}, "phantoms")
    real = tuned(first, vague, "hospital")

    assert decide(first, "fracture", 0.999, trusted="real") == "left_out"
    assert decide(moved, "fracture", 0.999, trusted="any") == "left_out"
    assert decide(first.on_phantoms(), "fracture", 0.999, trusted="phantoms") == "present"
    assert moved.temperature != first.temperature and moved.threshold("fracture") == 1.0
    assert real.on_phantoms().measurements == first.on_phantoms().measurements and real.threshold("fracture") < 1
    assert tuned(real, vague, "phantoms").threshold("fracture") == real.threshold("fracture")
    assert tuned(first, clear, "phantoms").phantoms == {}


@pytest.mark.parametrize(("shown", "is_left_out"), [(11, True), (10, False)])
def test_what_nobody_measured_is_left_out_if_shown_often(shown: int, *, is_left_out: bool) -> None:
    """Of 100 films of people. A finding with a threshold for them stays, and so do one that is not asked and normal."""
    drawn_first = Measurement(measured_on="phantoms", positives=30, negatives=70)
    start = replace(
        START,
        thresholds=dict.fromkeys(("support_devices", "edema", "no_finding", "fracture"), 0.5),
        measurements={
            "support_devices": drawn_first,
            "edema": replace(drawn_first, measured_on="hospital"),
            "no_finding": drawn_first,
            "fracture": drawn_first,
        },
    )
    # The band of 0.1 begins at a probability of 0.4, which is a difference of -0.41.
    values = [-0.4 if film < shown else -0.42 for film in range(100)]
    films = [weighed({key: value for key in ("support_devices", "edema", "no_finding")}) for value in values]

    decisions = without_often_shown(start, films)

    assert decisions.left_out == (("support_devices",) if is_left_out else ())
    assert decisions.on_phantoms().thresholds == start.thresholds


@pytest.mark.parametrize(("population", "is_left_out"), [("hospital", True), ("phantoms", False)])
def test_tuning_on_real_films_leaves_out_what_is_shown_often(
    untrained_weights: Path, population: str, *, is_left_out: bool
) -> None:
    own = Measurement(measured_on="phantoms", positives=30, negatives=70)
    decisions = replace(START, thresholds={"fracture": 0.5}, measurements={"fracture": own})
    manifest = replace(read_manifest(untrained_weights), decisions=decisions)
    truths = [Truth(labels={"edema": bool(film % 2), "no_finding": not film % 2}) for film in range(40)]
    films = [weighed({"edema": float(film % 2), "fracture": 1.0, "no_finding": 0.0}) for film in range(40)]

    tuned = tune(manifest, truths, films, population=population, aim=Aim(sensitivity=0.9))

    assert tuned.decisions.leaves_out("fracture") is is_left_out


def test_a_mined_label_alone_says_nothing_of_normal_films(untrained_weights: Path) -> None:
    """Of 40 films 20 are normal, by their reports; of half of these a radiologist says so, too."""
    read = [
        Truth(
            labels={"edema": bool(number % 2), "no_finding": not number % 2},
            mined_normal=not number % 2,
            read_as="Normal" if number % 4 == 0 else "",
            region_findings={"left lung": frozenset({"edema"} if number % 2 else ())},
        )
        for number in range(40)
    ]
    said = [
        Weighed(
            differences={"edema": number / 40, "no_finding": 0.5 - number / 40},
            positiveness={"left_lung": 0.8 if number % 2 else 0.2, "right_lung": 0.9},
        )
        for number in range(40)
    ]

    films = labelled_films(read, said)
    tuned = tune(
        replace(read_manifest(untrained_weights), decisions=START), read, said, population="phantoms", aim=Aim()
    )

    assert films["no_finding"].there.tolist() == [True] * 10, "where somebody read the film"
    assert (len(films["edema"].there), films["edema"].normal.tolist()) == (40, [n / 40 for n in range(0, 40, 4)])
    assert tuned.decisions.region_threshold == pytest.approx(0.5, abs=1e-6)


def weighed(differences: dict[str, float]) -> Weighed:
    """Return what decisions are made from, without boxes and regions."""
    return Weighed(differences=differences, positiveness={})


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
    films = {
        key: labelled(some.differences, some.there)
        for key, some in {"edema": drawn(3.0, seed=1), "fracture": drawn(4.0, seed=2)}.items()
    }
    noted = np.zeros(0), np.zeros(0, dtype=np.bool_)
    drawn_first = best_decisions(START, films, noted=noted, population="phantoms", aim=Aim())
    real = {"edema": labelled(3 * films["edema"].differences + 1, films["edema"].there)}

    both = best_decisions(drawn_first, real, noted=noted, population="hospital", aim=Aim(sensitivity=0.8))
    again = best_decisions(both, films, noted=noted, population="phantoms", aim=Aim())

    assert both.on_phantoms() == drawn_first, "films of people leave what phantoms chose, the temperature too"
    assert [both.measurements[key].measured_on for key in ("edema", "fracture")] == ["hospital", "phantoms"]
    assert both.phantoms.keys() == both.readout.keys() == {"edema"}
    assert both.threshold("edema") != drawn_first.threshold("edema")
    assert again.readout == both.readout and again.threshold("edema") == both.threshold("edema")
    assert again.measurements["edema"] == both.measurements["edema"]


def test_probabilities_of_a_readout_are_those_of_films_of_people_alone() -> None:
    own = Measurement(measured_on="hospital", positives=20, negatives=80)
    decisions = replace(
        START,
        thresholds={"edema": 0.6},
        measurements={"edema": own},
        readout={"edema": Readout(slope=2.0, offset=-1.0)},
    )
    difference = np.array(0.5)

    assert decisions.probability("edema", difference) == pytest.approx(0.5)
    for plain in (decisions.probability(None, difference), decisions.on_phantoms().probability("edema", difference)):
        assert plain == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert decisions.measured("edema", 0.6, own).readout == {}, "a threshold is of the readout that it was chosen with"
    moved = best_decisions(decisions, {"fracture": drawn(5.0, seed=4)}, noted=NOTED, population="phantoms", aim=Aim())
    assert moved.temperature != decisions.temperature
    assert (moved.threshold("edema"), moved.readout) == (0.6, decisions.readout), (
        "no temperature divides its difference"
    )
    band = Band(lower=0.3, below=9, missed=1, within=9, shown=1)
    phantom_threshold = PhantomThreshold(threshold=0.4, positives=9, negatives=9, band=band)
    both = replace(decisions, phantoms={"edema": phantom_threshold})
    moved = best_decisions(both, {"fracture": drawn(5.0, seed=4)}, noted=NOTED, population="phantoms", aim=Aim())
    assert moved.phantoms["edema"] == replace(
        phantom_threshold,
        threshold=same_point(0.4, 1.0, moved.temperature),
        band=replace(band, lower=same_point(0.3, 1.0, moved.temperature)),
    )
    by_hand = replace(decisions, readout={}).set_by_hand("edema", 0.4)
    again = best_decisions(by_hand, {"fracture": drawn(5.0, seed=4)}, noted=NOTED, population="phantoms", aim=Aim())
    assert again.measurements["edema"].threshold == same_point(0.6, 1.0, again.temperature)
    with pytest.raises(ValueError, match=r"readout\.edema needs measurements\.edema on films of people"):
        replace(decisions, measurements={"edema": replace(own, measured_on="phantoms")})


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_what_normal_films_show_is_expected_from_their_upper_half(share: float) -> None:
    """21 films say how many of 100,000 others are called: on average about as many as allowed."""
    rng = np.random.default_rng(5)
    others = sigmoid(rng.exponential(1.0, size=100_000) - 3)
    called = []
    for _ in range(200):
        normal = sigmoid(rng.exponential(1.0, size=21) - 3)
        called.append(float((others >= expected(normal, share)).mean()))

    assert share / 2 < np.mean(called) < 2 * share


def test_opacity_has_half_of_the_false_findings() -> None:
    rng = np.random.default_rng(6)
    there = np.arange(400) % 2 == 0
    scores = rng.normal(size=400) + 2.0 * there
    some = labelled(scores, there, scores[~there])

    points = choose({key: some for key in ("lung_opacity", "edema", "fracture")}, Aim(false_findings=0.1))

    opacity, edema, fracture = (points[key].threshold for key in ("lung_opacity", "edema", "fracture"))
    assert opacity == expected(some.read_out(points["lung_opacity"].readout).normal, 0.05)
    assert edema == fracture == expected(some.read_out(points["edema"].readout).normal, 0.025)
    rare = replace(some, there=there & (np.arange(400) % 40 == 0))
    [point] = choose({"edema": rare}, Aim(false_findings=0.4)).values()
    said = rare.read_out(point.readout)
    assert point.threshold == half_right(said) > expected(said.normal, 0.2), "half of the films called must show it"


def test_what_tells_the_opposite_is_not_turned_round() -> None:
    there = np.arange(40) % 4 == 0

    readout = fitted(np.where(there, -1.0, 1.0), there)

    assert sigmoid(readout.slope * np.array([-1.0, 1.0]) + readout.offset) == pytest.approx(0.25, abs=0.03)


def test_a_threshold_never_becomes_one_that_leaves_out() -> None:
    assert same_point(0.999, 1.0, 0.1) < LEFT_OUT
    assert same_point(LEFT_OUT, 1.0, 2.0) == LEFT_OUT


def test_half_of_the_films_called_show_the_finding() -> None:
    said = np.linspace(0.01, 0.99, 50)
    there = np.zeros(50, dtype=np.bool_)
    there[[49, 48, 46, 44, 40, 10]] = True

    threshold = half_right(labelled(said, there))

    called = said >= threshold
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


def test_a_threshold_is_reached_by_the_film_that_set_it() -> None:
    for lowest in (0.1234567, 1 / 3, 1e-9):
        threshold = best_threshold(np.array([lowest, 0.9]), np.array([True, True]) & np.array([True, False]))

        assert threshold is not None
        assert lowest >= threshold


@pytest.mark.parametrize("best", [0.1, 0.35])
def test_the_best_rule_is_found_one_choice_after_the_other(best: float) -> None:
    def precision(some: DetectionSettings) -> dict[str, float | None]:
        right = 0.1 * (not some.by_weights) + 0.1 * (some.temperature == 0.2) + 0.1 * (some.overlap == best)
        heart = 0.5 - abs(some.scales[FINDINGS.index("cardiomegaly")] - 1.3)
        return dict.fromkeys(FINDINGS, right) | {"cardiomegaly": heart + right, "fracture": None}

    chosen = best_rule(DetectionRule(overlap=0.35), precision)

    assert chosen == DetectionRule(scored_by="prompts", temperature=0.2, scales={"cardiomegaly": 1.3}, overlap=best)


NOBODY = np.zeros(0)


def test_a_band_begins_where_half_of_what_it_shows_is_there() -> None:
    said = np.arange(1, 100) / 100
    there = (said >= 0.3) & (np.arange(99) % 4 > 0)  # three of four from 0.3 on

    band = measured_band(said, there, threshold=0.5, normal=said[said < 0.2])

    assert band is not None
    assert 2 * band.shown >= band.within > 0
    assert band.lower == pytest.approx(0.2, abs=0.03), "15 of 20 from 0.3 on, and 10 more below"
    assert (band.below, band.missed) == ((said < band.lower).sum(), there[said < band.lower].sum())


@pytest.mark.parametrize(
    ("threshold", "lower"), [pytest.param(0.4, 0.4, id="none"), pytest.param(0.8, 0.5, id="as likely as not")]
)
def test_where_less_is_there_only_what_is_likely_is_to_be_reviewed(threshold: float, lower: float) -> None:
    said = np.arange(1, 100) / 100

    band = measured_band(said, said >= threshold, threshold=threshold, normal=NOBODY)

    assert band is not None and (band.lower, band.shown) == (lower, 0)
    assert band.within == ((said >= lower) & (said < threshold)).sum()


def test_a_finding_that_is_never_present_has_no_band() -> None:
    assert measured_band(np.array([0.2]), np.array([True]), threshold=1.0, normal=NOBODY) is None


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


def chosen_for(films: CaseSource) -> list[EvaluatedModel]:
    model = cast(EvaluatedModel, Weighing(MANIFEST))
    return for_each_film(model, films, population="hospital", most_false=0.1, report=quiet)


def test_a_patient_has_no_say_in_the_decisions_for_their_films() -> None:
    there = np.arange(FILMS) >= FILMS // 2
    otherwise = there.copy()
    otherwise[OF_FIRST] = ~there[OF_FIRST]

    before, after = chosen_for(source(there)), chosen_for(source(otherwise))

    rest = np.setdiff1d(np.arange(FILMS), OF_FIRST)
    assert all(before[film].manifest == after[film].manifest for film in OF_FIRST)
    assert all(before[film].manifest != after[film].manifest for film in rest)
    assert before[OF_FIRST[0]].manifest.decisions.measurements["edema"].measured_on == "hospital"
    own = replace(MANIFEST.decisions, readout={}, phantoms={}, measurements={}, thresholds={"edema": LEFT_OUT})
    left_out = cast(EvaluatedModel, Weighing(replace(MANIFEST, decisions=own)))
    chosen = for_each_film(left_out, source(there), population="hospital", most_false=0.1, report=quiet)
    assert {key for film in chosen for key in film.manifest.decisions.left_out} == {"edema"}


def test_films_that_chose_are_counted_and_refused() -> None:
    films = source(np.arange(FILMS) >= FILMS // 2)
    chose = replace(MANIFEST, chosen_on=tuple(digest(films.load(number).gray) for number in (3, 8)))

    require_others(MANIFEST, films, quiet)
    with pytest.raises(ModelError, match=r"2 of 200 films chose the thresholds of this model.*--folds"):
        require_others(chose, films, quiet)
