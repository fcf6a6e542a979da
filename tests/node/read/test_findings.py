"""Findings from answers: which prompts may make one, and where its sides come from."""

from __future__ import annotations

import pytest

from models.contract import Box, FilmReading, FindingState, PromptKind, PromptReading, ScoredBox, Side
from node.domain import Code, Finding, GroundedSentence
from node.prompt_set import Prompt, PromptSet
from node.read import findings
from node.read.framing import Framing
from tests.support import samples

RIGHT = Box(left=10, top=10, right=40, bottom=90)
LEFT = Box(left=60, top=10, right=90, bottom=90)
WIDE = Box(left=20, top=10, right=80, bottom=90)
FRAMING = Framing(columns=100, rows=100, square=Box(left=0, top=0, right=100, bottom=100))


def prompt(*, side: Side | None = None, paired: bool = True, kind: PromptKind = PromptKind.PATHOLOGY) -> Prompt:
    code = Code(value="60046008", scheme="SCT", meaning="Pleural effusion")
    return Prompt(key="effusion", kind=kind, phrases=("a",), negatives=("b",), finding=code, side=side, paired=paired)


def found(of: Prompt, *boxes: Box, sides_known: bool = True, state: FindingState = FindingState.PRESENT) -> Finding:
    """Make the finding of one prompt, with these boxes."""
    answer = PromptReading(
        key=of.key,
        probability=0.7,
        state=state,
        boxes=tuple(ScoredBox(box=box, score=0.5) for box in boxes),
        sentence=None,
    )
    [finding] = findings.find(
        FilmReading(prompts=(answer,)),
        PromptSet(name="set", version="1", sha256="ab" * 32, prompts=(of,)),
        source="1.2.3",
        framing=FRAMING,
        model=samples.MODEL,
        sides_known=sides_known,
    )
    return finding


@pytest.mark.parametrize(
    ("boxes", "side"),
    [
        ((RIGHT,), Side.RIGHT),
        ((LEFT,), Side.LEFT),
        ((RIGHT, LEFT), Side.BILATERAL),
        ((WIDE,), None),
        ((RIGHT, WIDE), None),
        ((RIGHT, WIDE, LEFT), Side.BILATERAL),
        ((), None),
    ],
)
def test_the_side_of_a_finding_follows_from_its_boxes(boxes: tuple[Box, ...], side: Side | None) -> None:
    assert found(prompt(), *boxes).side == side


def test_a_film_that_does_not_tell_its_sides_gives_none() -> None:
    assert found(prompt(), RIGHT, sides_known=False).side is None


def test_a_site_that_is_not_paired_has_no_side() -> None:
    assert found(prompt(paired=False), RIGHT).side is None


@pytest.mark.parametrize("sides_known", [True, False])
def test_a_phrase_that_names_a_side_gives_it_on_any_film(sides_known: bool) -> None:
    finding = found(prompt(side=Side.LEFT), RIGHT, sides_known=sides_known)

    assert (finding.side, finding.boxes[0].side) == (Side.LEFT, Side.LEFT)


@pytest.mark.parametrize("state", FindingState)
def test_only_what_is_not_reported_has_no_box(state: FindingState) -> None:
    finding = found(prompt(), RIGHT, LEFT, state=state)

    assert (len(finding.boxes), finding.side) == ((2, Side.BILATERAL) if state.is_reported else (0, None))


def test_an_absent_finding_keeps_the_side_of_its_prompt() -> None:
    assert found(prompt(side=Side.LEFT), RIGHT, state=FindingState.ABSENT).side is Side.LEFT


def test_only_the_sentence_of_an_absent_finding_loses_its_boxes() -> None:
    states = {"edema": FindingState.ABSENT, "fracture": FindingState.INDETERMINATE}
    where = (ScoredBox(box=RIGHT, score=0.5),)
    reading = FilmReading(
        sentences=tuple(
            GroundedSentence(text="Words.", prompt=key, score=0.5, boxes=where)
            for key in ("edema", "fracture", "left_lung")
        ),
        prompts=tuple(
            PromptReading(key=key, probability=0.5, state=state, boxes=where, sentence=0)
            for key, state in states.items()
        ),
    )

    assert [sentence.boxes for sentence in findings.ground(reading)] == [(), where, where]


@pytest.mark.parametrize("kind", [PromptKind.REGION, PromptKind.NO_FINDING])
def test_no_other_prompt_makes_a_finding(kind: PromptKind) -> None:
    with pytest.raises(ValueError, match="pathology"):
        found(prompt(kind=kind), RIGHT)


def test_a_box_is_tracked_by_film_prompt_model_and_place() -> None:
    first, again, moved = found(prompt(), RIGHT), found(prompt(), RIGHT), found(prompt(), LEFT)

    assert first.boxes[0].tracking_uid == again.boxes[0].tracking_uid != moved.boxes[0].tracking_uid
