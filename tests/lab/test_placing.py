"""The choice of the score from which a box is drawn, and of the certainty from which a side is told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from models.checkpoint.files import verify
from models.contract import FindingState
from models.decisions import Decisions, PlaceRule
from models.engines import FloatArray, Regions
from models.lab.evaluation import evaluated_model, placing
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, read_questions, side_of
from models.lab.evaluation.place_accuracy import PlacedFilm, Told, placed
from models.lab.evaluation.placing import (
    LEAST_TOLD,
    Films,
    Rules,
    by_folds,
    choose,
    cross,
    is_better,
    rules_of,
    with_rules,
)
from models.lab.evaluation.request import DEFAULT
from models.lab.training.split import Patients, folds_of
from models.manifest import MANIFEST, Manifest, read_manifest
from models.progress import ProgressReport
from models.reading.decided_film import DecidedFilm
from models.reading.phrasebook import PromptVectors
from models.reading.places import side_certainty
from models.reading.tokenizers import VOCABULARIES
from node.prompt_set import PromptSet

RIGHT, LEFT = (0.25, 0.7, 0.2, 0.2), (0.75, 0.7, 0.2, 0.2)
HIGHER = (0.25, 0.6, 0.2, 0.2)
"""Overlaps RIGHT by an IoU of a third, but lies in another zone."""
PATIENTS = [f"{number:08}" for number in range(100)]
DECISIONS = Decisions(temperature=1.0, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5)
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

    assert choose([*right, *wrong], 0.8) == pytest.approx(0.12)
    assert choose([*right, *wrong], 1.0) == 0.5
    assert choose(right[1:], 0.8) is None
    assert choose(right[:9], 0.8) is None and choose(right[:10], 0.8) == 0.5
    assert choose(wrong * 5, 0.8) is None


def test_a_rule_is_counted_on_patients_that_chose_nothing_and_must_reach_its_goal_there() -> None:
    made = [told(0.9, is_right=True, patient=patient) for patient in PATIENTS]
    of_fold = set(compress(PATIENTS, folds_of(np.array(PATIENTS)) == 0))
    misled = [replace(item, is_right=item.patient not in of_fold) for item in made]

    rule = cross(misled, 0.7, measured_on="hospital")

    assert rule == PlaceRule(measured_on="hospital", least=0.9, told=100, right=100 - len(of_fold))
    assert cross(made[:2], 0.7, measured_on="hospital") is None
    assert by_folds(made[:2], 0.7) == [math.inf] * 5
    assert choose(misled, 0.88) == 0.9
    assert cross(misled, 0.88, measured_on="hospital") is None, "87 of 100 are right on patients that chose nothing"
    lucky = [replace(item, number=0.1, is_right=False) for item in made[:10]] + made[10 : 10 + LEAST_TOLD]
    assert choose(lucky, 1.0) == 0.9
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
    with_both = with_rules(DECISIONS, {"edema": Rules(boxes=BOX, sides=BOX, limits=())})

    assert (with_both.boxes, with_both.sides) == ({"edema": BOX}, {"edema": BOX})
    again = with_rules(with_both, {"edema": Rules(boxes=replace(BOX, least=0.1), sides=None, limits=())})
    assert again.boxes["edema"].least == 0.1
    assert again.sides == {}, "a side was chosen for other boxes"
    assert with_rules(with_both, {}) == with_both


class Reader:
    weights_sha256, engine = "0" * 64, "onnx"


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that reads nothing."""

    manifest: Manifest
    reader: Reader = field(default_factory=Reader)


@dataclass(frozen=True, slots=True)
class Deciding:
    """A model that finds the same on every film, which shows the spine right of its middle."""

    manifest: Manifest
    questions: PromptSet
    found: DecidedFilm

    def decided(self, _case: EvaluationCase) -> tuple[DecidedFilm, float]:
        return self.found, 0.3


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
    model = cast("EvaluatedModel", Deciding(read_manifest(VOCABULARIES.parent), questions, found))
    truth = Truth(boxes={OPACITY: opacity[np.newaxis]}, patient="p")

    made = placed(model, EvaluationCase(name="film", gray=np.zeros((2, 2), np.float32), truth=truth))

    assert made.keys() == {OPACITY}
    assert made[OPACITY].drawn(0.0).tolist() == [opacity.tolist()]
    assert made[OPACITY].counts(0.0) == {"reported": 1, "both": 0, "both_right": 0} | dict.fromkeys(
        ("with_box", "boxes", "boxes_right", "sides", "sides_right", "zones", "zones_right"), 1
    )


def test_rules_that_are_better_are_written_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ignored = shutil.ignore_patterns("onnx", "parity.json")
    model = Path(shutil.copytree(VOCABULARIES.parent, tmp_path / "model", ignore=ignored))
    (tmp_path / "held_out.txt").write_text("p1\n", encoding="utf-8")
    (tmp_path / "normals.txt").write_text("p2\n", encoding="utf-8")
    reads: list[tuple[str, list[str]]] = []
    limits = {"edema": {"before": 0.5, "chosen": 0.3, "is_better": True}}

    def read(
        _model: EvaluatedModel,
        path: Path,
        patients: Patients | None,
        _report: ProgressReport,
        *,
        is_located: bool = True,
    ) -> Films:
        named = ["everybody"] if patients is None else [name for name in ("p1", "p2", "p3") if name in patients]
        reads.append((path.name, named))
        return Films(truths=[Truth()], places={})

    def judged(*_films: object, population: str, resamples: int) -> tuple[dict[str, object], dict[str, Rules]]:
        rule = replace(BOX, measured_on=population)
        return {"limits": limits}, {"edema": Rules(boxes=rule, sides=None, limits=())}

    monkeypatch.setattr(evaluated_model, "open_model", lambda *_parts, **_options: Opened(read_manifest(model)))
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

    assert (
        placing.main([*command, "--write", "--population", "clinic", "--set-aside", str(tmp_path / "normals.txt")]) == 0
    )

    assert reads[-1] == ("normals.jsonl", ["p2"])
    after = read_manifest(model)
    verify(model, after)
    assert after.decisions.boxes["edema"] == replace(BOX, measured_on="clinic")
