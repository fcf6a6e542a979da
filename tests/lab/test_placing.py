"""The choice of the score from which a box is drawn, and of the certainty from which a side is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import compress

import numpy as np
import pytest

from models.contract import Side
from models.decisions import Decisions, PlaceRule
from models.lab.evaluation.evaluated_model import side_of
from models.lab.evaluation.placing import LEAST_TOLD, PlacedFilm, Told, choose, cross, rules_of, with_rules
from models.lab.training.split import folds_of
from models.reading.places import side_certainty

RIGHT, LEFT = (0.25, 0.7, 0.2, 0.2), (0.75, 0.7, 0.2, 0.2)
PATIENTS = [f"{number:08}" for number in range(100)]
DECISIONS = Decisions(temperature=1.0, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5)


def told(number: float, *, is_right: bool, patient: str = "p") -> Told:
    return Told(patient=patient, number=number, is_right=is_right)


def film(patient: str, *, score: float, true: tuple[float, ...] = RIGHT) -> PlacedFilm:
    """A film with one box on the right, and a weak one on the left that is not shown."""
    middle = partial(side_of, middle=0.5)
    found = np.array([RIGHT, LEFT]), np.array([score, 0.1])
    return PlacedFilm(
        patient=patient,
        true=np.array([true]),
        shown=(found[0][:1], found[1][:1]),
        certainties=side_certainty(*found, side_of=middle),
        side_of=middle,
    )


def test_the_lowest_number_that_reaches_its_goal_is_chosen() -> None:
    wrong = [told(0.1 + place / 100, is_right=False) for place in range(4)]
    right = [told(0.5 + place / 100, is_right=True) for place in range(LEAST_TOLD)]

    assert choose([*right, *wrong], 0.8) == pytest.approx(0.12)
    assert choose([*right, *wrong], 1.0) == 0.5
    assert choose(right[1:], 0.8) is None
    assert choose(wrong * 5, 0.8) is None


def test_a_rule_is_reported_on_patients_that_chose_nothing() -> None:
    made = [told(0.9, is_right=True, patient=patient) for patient in PATIENTS]
    of_fold = set(compress(PATIENTS, folds_of(np.array(PATIENTS)) == 0))
    misled = [replace(item, is_right=item.patient not in of_fold) for item in made]

    rule = cross(misled, 0.7, measured_on="hospital")

    assert rule == PlaceRule(measured_on="hospital", least=0.9, told=100, right=100 - len(of_fold))
    assert cross(made[:2], 0.7, measured_on="hospital") is None


@pytest.mark.parametrize(
    ("true", "hits"),
    [(RIGHT, True), (LEFT, False), ((0.25, 0.7, 0.02, 0.02), True), ((0.25, 0.9, 0.2, 0.2), False)],
)
def test_a_box_hits_by_overlap_or_by_its_center(true: tuple[float, ...], hits: bool) -> None:
    [box] = film("p", score=0.9, true=true).boxes()

    assert (box.number, box.is_right) == (0.9, hits)


@pytest.mark.parametrize(("true", "is_right"), [(RIGHT, True), (LEFT, False)])
def test_a_side_is_right_if_a_box_of_the_film_is_there(true: tuple[float, ...], is_right: bool) -> None:
    seen = film("p", score=0.9, true=true)

    assert seen.certainties[Side.RIGHT] == pytest.approx(0.9)
    assert seen.side(0.5) == told(seen.certainties[Side.RIGHT], is_right=is_right)
    assert seen.side(0.95) is None


def test_both_rules_go_into_the_decisions_or_leave_them() -> None:
    good = [film(patient, score=0.6 + number / 1000) for number, patient in enumerate(PATIENTS)]
    boxes, sides = rules_of(good, measured_on="hospital")
    assert boxes is not None
    assert sides is not None

    with_both = with_rules(DECISIONS, "lung_opacity", boxes, sides)

    assert (boxes.least, boxes.told, boxes.right) == (0.6, 99, 99)  # the lowest chose its own fold's rule
    assert (with_both.boxes, with_both.sides) == ({"lung_opacity": boxes}, {"lung_opacity": sides})
    assert with_rules(with_both, "lung_opacity", None, None) == DECISIONS
    assert rules_of(good[:3], measured_on="hospital") == (None, None)
