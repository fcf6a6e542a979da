"""The sweep in short: phantoms and croppings of a real film, and that it finds what is planted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import progress
from models.contract import Box, By, FindingState
from models.lab.evaluation.evaluated_model import side_of
from node.domain import Film, Finding, GroundedSentence
from node.read import decoding, prompts
from tests.drills.sweep import said as words
from tests.drills.sweep.__main__ import main, run
from tests.drills.sweep.checks import incomplete
from tests.drills.sweep.films import of_picture
from tests.drills.sweep.patterns import NAMES, contradictions_of
from tests.support import decoded, films, samples

pytestmark = pytest.mark.drill(part="sweep")

RIGHT = Box(left=150, top=900, right=700, bottom=1700)
REGIONS = {
    "right_lower_lung_zone": RIGHT,
    "left_lower_lung_zone": Box(left=1100, top=900, right=1700, bottom=1700),
    "right_upper_lung_zone": Box(left=150, top=100, right=700, bottom=500),
}
PRESENT, REVIEW, ABSENT = FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.ABSENT


def said(text: str, *, prompt: str = "pleural_effusion", state: FindingState = PRESENT) -> Film:
    """A film with an effusion on the right in that state, no pneumothorax, and one sentence."""
    boxes = () if not state.is_reported else (RIGHT,)
    return replace(
        samples.film(findings=(samples.finding(state=state, boxes=boxes), samples.absent())),
        sentences=(GroundedSentence(text=text, prompt=prompt, score=0.5, boxes=()),),
    )


def test_nothing_contradicts_itself_on_a_real_film(phantom_model: Path) -> None:
    asked = prompts.load("chexpert14").prompts
    assert set(NAMES) == {prompt.key for prompt in asked if prompt.finding is not None}
    taken = of_picture(decoded.picture_of(films.thumbnail()), count=3)

    found = run(phantom_model, "any", taken, name="films", say=progress.quiet)

    assert found.faults == []
    assert found.passed
    assert found.sentences >= found.reported > 0
    assert found.words["withheld, denial"] > 10


@pytest.mark.parametrize(
    ("text", "prompt", "state", "is_wrong"),
    [
        ("There is a right pleural effusion.", "pleural_effusion", PRESENT, False),
        ("A right pleural effusion is possible; please review.", "pleural_effusion", REVIEW, False),
        ("No pneumothorax is seen.", "pneumothorax", PRESENT, False),
        ("No pleural effusion.", "pleural_effusion", ABSENT, False),
        ("The left lower lung zone is clear.", "left_lower_lung_zone", PRESENT, False),
        ("The right lower lung zone is clear.", "right_lower_lung_zone", ABSENT, False),
        ("There is a pleural effusion in the right lower lung zone.", "pleural_effusion", PRESENT, False),
        ("No pleural effusion is seen.", "left_lower_lung_zone", REVIEW, True),
        ("There is a pleural effusion.", "right_lower_lung_zone", ABSENT, True),
        ("There is a right pneumothorax.", "pleural_effusion", PRESENT, True),
        ("There is a left pleural effusion.", "pleural_effusion", PRESENT, True),
        ("There are bilateral pleural effusions.", "pleural_effusion", FindingState.UNCALIBRATED, True),
        ("The right lower lung zone is normal.", "right_lower_lung_zone", PRESENT, True),
        ("There is a pleural effusion in the right upper lung zone.", "pleural_effusion", PRESENT, True),
    ],
)
def test_a_sentence_that_contradicts_state_or_box_is_found(
    text: str, prompt: str, state: FindingState, is_wrong: bool
) -> None:
    assert bool(contradictions_of(said(text, prompt=prompt, state=state), REGIONS)) is is_wrong


@pytest.mark.parametrize(
    ("text", "state", "by", "fault"),
    [
        ("There is a right pleural effusion.", PRESENT, "network", None),
        ("Possible, please review: There is a right pleural effusion.", REVIEW, "network", None),
        ("There is a right pleural effusion in the lower zone.", PRESENT, "rule", None),
        ("There is a right pleural effusion.", REVIEW, "network", "does not say so"),
        ("There is a right pleural effusion.", PRESENT, "rule", "another zone than in the impression"),
        ("There is an effusion in the upper zone.", PRESENT, "rule", "another zone than its evidence"),
        ("There is a large right pleural effusion.", PRESENT, "network", "nothing measured that (large)"),
        ("Effusion, and no pneumothorax.", PRESENT, "network", "a denial leaves (no)"),
        ("No effusion.", ABSENT, "network", "absent, and it is said"),
    ],
)
def test_words_that_go_too_far_are_found(text: str, state: FindingState, by: By, fault: str | None) -> None:
    film = said(text, state=state)
    spoken = replace(film.findings[0], sentence=0)
    film = replace(film, findings=(spoken, film.findings[1]), sentences=(replace(film.sentences[0], by=by),))

    found = list(words.objections(film, Counter()))

    assert bool(found) == (fault is not None)
    assert fault is None or any(fault in objection for objection in found)


@pytest.mark.parametrize(
    ("finding", "fault"),
    [
        (samples.finding(boxes=(RIGHT,)), None),
        (samples.finding(boxes=()), "without box"),
        (samples.finding(boxes=(RIGHT,), sentence=None), "without box or sentence"),
        (replace(samples.finding(boxes=(RIGHT,)), contradiction="other_side"), "contradicted"),
        (replace(samples.finding(boxes=(RIGHT,)), prompt="pneumonia"), "not measured"),
        (replace(samples.finding(boxes=(RIGHT,)), state=ABSENT), "absent and has a box"),
    ],
)
def test_a_finding_that_lacks_something_is_found(finding: Finding, fault: str | None) -> None:
    found = list(incomplete(samples.film(findings=(finding,)), frozenset({"pleural_effusion"})))

    assert bool(found) == (fault is not None)
    assert fault is None or fault in found[0]


def test_sides_are_those_of_the_node() -> None:
    for x, width, middle in np.random.default_rng(0).random((200, 3)):
        expected = decoding.side_of_square(float(x), float(width), middle=float(middle))
        assert side_of(float(x), float(width), middle=float(middle)) == (None if expected is None else str(expected))


def test_the_last_line_of_the_command_is_its_figures(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--phantoms", "1", "--model", str(phantom_model)]) == 0

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["passed"]
    assert figures.keys() == {"passed", "phantoms, phantoms", "phantoms, any"}
    assert figures["phantoms, any"]["films"] == 1
    assert main(["--phantoms", "0"]) == 1
