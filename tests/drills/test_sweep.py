"""The sweep in short: phantoms and croppings of a real film, and that it finds what is planted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models import progress
from models.contract import Box, By, Contradiction, FindingState, Trusted
from models.lab.evaluation.evaluated_model import side_of
from models.lab.training.split import HeldOut
from node.cardiothoracic_ratio import Incomparable, MeasuredLine
from node.domain import Film, Finding, FindingBox, GroundedSentence
from node.read import decoding, prompts
from node.read.model import Reading, open_reader
from tests.drills.sweep import said as words
from tests.drills.sweep.__main__ import FIRST_SEED, main, run
from tests.drills.sweep.checks import Sweep, Swept, by_labeler, incomplete, measured_on
from tests.drills.sweep.films import Films, of_file, of_phantoms, of_picture
from tests.drills.sweep.patterns import NAMES, contradictions_of
from tests.drills.sweep.said import Words
from tests.support import decoded, films, samples

pytestmark = pytest.mark.drill(part="sweep")

RIGHT = Box(left=150, top=900, right=700, bottom=1700)
BASE = {"right_lower_lung_zone": RIGHT, "left_lower_lung_zone": Box(left=1100, top=900, right=1700, bottom=1700)}


def said(text: str, *, prompt: str = "pleural_effusion", state: FindingState = FindingState.PRESENT) -> Film:
    """A film with an effusion on the right in that state, no pneumothorax, and one sentence."""
    boxes = () if not state.is_reported else (RIGHT,)
    return replace(
        samples.film(findings=(samples.finding(state=state, boxes=boxes), samples.absent())),
        sentences=(GroundedSentence(text=text, prompt=prompt, score=0.5, boxes=()),),
    )


def objections(film: Film) -> tuple[list[str], list[str]]:
    """What each of the two readers of sentences objects to."""
    reading = Reading(sentences=film.sentences, prompts=samples.regions(BASE))
    return list(by_labeler(film, reading)), contradictions_of(film, BASE)


def swept(model: Path, trusted: Trusted, taken: Films) -> Swept:
    return run(model, trusted, taken, name="films", say=progress.quiet)


def test_nothing_contradicts_itself_on_a_real_film(phantom_model: Path) -> None:
    found = swept(phantom_model, "any", of_picture(decoded.picture_of(films.thumbnail()), count=3))

    assert found.faults == []
    assert found.passed
    assert found.sentences >= found.reported > 0
    assert found.words.withheld["denial"] > 10


@pytest.mark.parametrize(
    ("text", "prompt", "state"),
    [
        ("There is a right pleural effusion.", "pleural_effusion", FindingState.PRESENT),
        ("A right pleural effusion is possible; please review.", "pleural_effusion", FindingState.INDETERMINATE),
        ("No pneumothorax is seen.", "pneumothorax", FindingState.PRESENT),
        ("No pleural effusion.", "pleural_effusion", FindingState.ABSENT),
        ("The left lower lung zone is clear.", "left_lower_lung_zone", FindingState.PRESENT),
        ("The right lower lung zone is clear.", "right_lower_lung_zone", FindingState.ABSENT),
    ],
)
def test_what_fits_is_not_objected_to(text: str, prompt: str, state: FindingState) -> None:
    assert objections(said(text, prompt=prompt, state=state)) == ([], [])


@pytest.mark.parametrize(
    ("text", "prompt", "state"),
    [
        ("No pleural effusion is seen.", "pleural_effusion", FindingState.PRESENT),
        ("No pleural effusion is seen.", "left_lower_lung_zone", FindingState.INDETERMINATE),
        ("There is a pleural effusion.", "right_lower_lung_zone", FindingState.ABSENT),
        ("There is a right pneumothorax.", "pleural_effusion", FindingState.PRESENT),
        ("There is a left pleural effusion.", "pleural_effusion", FindingState.PRESENT),
        ("There are bilateral pleural effusions.", "pleural_effusion", FindingState.UNCALIBRATED),
        ("The right lower lung zone is normal.", "right_lower_lung_zone", FindingState.PRESENT),
    ],
)
def test_both_readers_find_what_is_planted(text: str, prompt: str, state: FindingState) -> None:
    by_first, by_second = objections(said(text, prompt=prompt, state=state))

    assert by_first
    assert by_second


def words_of(film: Film, lowest: Mapping[str, float] | None = None) -> list[str]:
    return list(words.objections(film, lowest or {}, Words()))


@pytest.mark.parametrize(
    ("text", "state", "by", "fault"),
    [
        ("There is a right pleural effusion.", FindingState.PRESENT, "network", None),
        ("Possible, please review: There is a right pleural effusion.", FindingState.INDETERMINATE, "network", None),
        ("There is a right pleural effusion in the lower zone.", FindingState.PRESENT, "rule", None),
        ("There is a right pleural effusion.", FindingState.INDETERMINATE, "network", "does not say so"),
        ("There is a right pleural effusion.", FindingState.PRESENT, "rule", "another zone than in the impression"),
        ("There is an effusion in the upper zone.", FindingState.PRESENT, "rule", "another zone than its evidence"),
        ("There is a large right pleural effusion.", FindingState.PRESENT, "network", "nothing measured that (large)"),
        ("Effusion, and no pneumothorax.", FindingState.PRESENT, "network", "a denial leaves (no)"),
        ("No effusion.", FindingState.ABSENT, "network", "absent, and it is said"),
    ],
)
def test_words_that_go_too_far_are_found(text: str, state: FindingState, by: By, fault: str | None) -> None:
    film = said(text, state=state)
    spoken = replace(film.findings[0], sentence=0)
    film = replace(film, findings=(spoken, film.findings[1]), sentences=(replace(film.sentences[0], by=by),))

    found = words_of(film)

    assert bool(found) == (fault is not None)
    assert fault is None or any(fault in objection for objection in found)


@pytest.mark.parametrize(
    ("near", "probability", "is_wrong"),
    [(False, 0.04, False), (True, 0.46, False), (False, 0.46, True), (True, 0.04, True)],
)
def test_near_is_compared_with_the_numbers(near: bool, probability: float, is_wrong: bool) -> None:
    film = samples.film(findings=(replace(samples.absent(), near=near, probability=probability),), sentences=False)

    assert bool(words_of(film, {"pneumothorax": 0.5})) is is_wrong


def test_wide_hearts_are_counted_by_objection() -> None:
    counted = Words()
    wide = MeasuredLine(start=(500.0, 900.0), end=(1420.0, 900.0))
    for objection in (None, Incomparable.VIEW_AP):
        ratio = replace(samples.ratio(objection=objection), heart=wide)
        film = replace(samples.film(findings=(samples.absent(),), sentences=False), ratio=ratio)
        assert list(words.objections(film, {}, counted)) == []

    assert counted.wide_hearts == {"comparable": 1, "view_ap": 1}
    assert counted.unsaid == {"view_ap": 1}


def test_a_zone_without_a_box_is_found() -> None:
    elsewhere = {**BASE, "right_upper_lung_zone": Box(left=150, top=100, right=700, bottom=500)}

    def found(text: str) -> list[str]:
        return contradictions_of(said(text), elsewhere)

    assert found("There is a pleural effusion in the right lower lung zone.") == []
    assert len(found("There is a pleural effusion in the right upper lung zone.")) == 1


def test_the_patterns_know_every_finding() -> None:
    asked = prompts.load("chexpert14").prompts

    assert set(NAMES) == {prompt.key for prompt in asked if prompt.finding is not None}


def without(*, box: bool = True, sentence: bool = True, contradiction: Contradiction | None = None) -> Finding:
    where = (FindingBox(box=RIGHT, score=0.5, tracking_uid="1.2"),) if box else ()
    return replace(samples.finding(sentence=0 if sentence else None), boxes=where, contradiction=contradiction)


@pytest.mark.parametrize(
    ("finding", "fault"),
    [
        (without(), None),
        (without(box=False), "without box"),
        (without(sentence=False), "without box or sentence"),
        (without(contradiction="other_side"), "contradicted"),
        (replace(without(), prompt="pneumonia"), "not measured"),
        (replace(without(), state=FindingState.ABSENT), "absent and has a box"),
    ],
)
def test_a_finding_that_lacks_something_is_found(finding: Finding, fault: str | None) -> None:
    found = list(incomplete(samples.film(findings=(finding,)), frozenset({"pleural_effusion"})))

    assert bool(found) == (fault is not None)
    assert fault is None or fault in found[0]


def test_what_was_measured_is_read_from_the_manifest(phantom_model: Path) -> None:
    asked = prompts.load("chexpert14")

    phantoms, real, everything = (measured_on(phantom_model, name, asked) for name in ("phantoms", "real", "any"))

    assert "pneumothorax" in phantoms
    assert "pneumonia" not in phantoms
    assert "lung_opacity" in real
    assert "pneumothorax" not in real
    assert phantoms < everything


def test_what_is_present_unmeasured_is_found(phantom_model: Path) -> None:
    asked = prompts.load("chexpert14")
    reader = open_reader(phantom_model, prompts=asked, engine="onnx", threads=1, trusted="any")
    found = Swept()

    for name, image in of_phantoms(FIRST_SEED, 1).images(reader):
        Sweep(reader=reader, prompts=asked, measured=frozenset(), lowest={}).look(name, image, found)

    assert not found.passed
    assert all("its threshold was not measured" in fault for fault in found.faults)


def test_sides_are_those_of_the_node() -> None:
    for x, width, middle in np.random.default_rng(0).random((200, 3)):
        expected = decoding.side_of_square(float(x), float(width), middle=float(middle))
        assert side_of(float(x), float(width), middle=float(middle)) == (None if expected is None else str(expected))


def test_a_sweep_of_nothing_has_not_passed() -> None:
    assert not Swept().passed
    assert not replace(Swept(films=1), questions=2, agreed=1).passed


def test_a_list_of_films_is_read_in_steps(tmp_path: Path, phantom_model: Path) -> None:
    lines = [json.dumps({"file": f"{number}.png"}) for number in range(5)]
    (tmp_path / "films.jsonl").write_text("\n".join(lines) + "\n")
    for number in range(5):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((40, 60), 30 * number, dtype=np.uint8))
    reader = open_reader(phantom_model, prompts=prompts.load("chexpert14"), engine="onnx")

    images = dict(of_file(tmp_path / "films.jsonl", every=2).images(reader))

    assert {name: (image.framing.columns, round(255 * float(image.gray[0, 0]))) for name, image in images.items()} == {
        "0.png": (60, 0),
        "2.png": (60, 60),
        "4.png": (60, 120),
    }
    validation = HeldOut(named=frozenset({"1", "3"}))
    assert [name for name, _ in of_file(tmp_path / "films.jsonl", held_out=[validation]).pictures()] == [
        "1.png",
        "3.png",
    ]
    (tmp_path / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.png is no picture"):
        list(of_file(tmp_path / "films.jsonl", every=2).pictures())


def test_the_last_line_of_the_command_is_its_figures(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--phantoms", "1", "--corrections", "--model", str(phantom_model)]) == 0

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["passed"]
    assert figures.keys() == {"passed", "phantoms, phantoms", "phantoms, any"}
    assert figures["phantoms, any"]["films"] == 1
    assert main(["--phantoms", "0"]) == 1
