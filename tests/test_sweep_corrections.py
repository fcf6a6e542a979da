"""The sweep over corrections: nothing to object to on films that are corrected, and that it finds what is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from models import progress
from node.domain import Box, Film, FindingState
from node.outputs.corrected_film import SideOf, correct
from node.outputs.correction import Correction, CorrectionKind
from node.prompt_set import PromptSet
from tests.sweep import corrections
from tests.sweep.__main__ import FIRST_SEED, run
from tests.sweep.films import of_phantoms
from tests.test_corrections import SET, sentence, side_of
from tests.test_corrections import film as graded

Change = Callable[[Film], Film]
REGIONS = {
    "right_lung": Box(left=0, top=100, right=500, bottom=1100),
    "left_lung": Box(left=500, top=100, right=1000, bottom=1100),
}


def film() -> Film:
    """A film whose sentences each speak of one finding or region, in its box."""
    answer = graded()
    sentences = list(answer.sentences)
    sentences[2] = sentence("There is cardiomegaly.", "cardiomegaly")
    sentences[4] = sentence("The right lung is clear.", "right_lung", box=REGIONS["right_lung"])
    return replace(answer, sentences=tuple(sentences))


def objections(number: int) -> list[str]:
    return list(corrections.objections(film(), SET, side_of, regions=REGIONS, number=number))


@pytest.mark.parametrize("number", range(8))
def test_a_correction_that_is_followed_has_no_objection(number: int) -> None:
    assert [new.kind for new in corrections.chosen(film(), number)] == [
        CorrectionKind.REJECT,
        CorrectionKind.MOVE,
        CorrectionKind.ADD,
    ]
    assert objections(number) == []


def another_probability(found: Film) -> Film:
    return replace(found, findings=(*found.findings[:-1], replace(found.findings[-1], probability=0.42)))


def another_state(found: Film) -> Film:
    return replace(found, findings=tuple(replace(each, state=FindingState.ABSENT) for each in found.findings))


def one_sentence_more(found: Film) -> Film:
    return replace(found, sentences=(*found.sentences, sentence("The left lung is clear.", "left_lung")))


def another_sentence(found: Film) -> Film:
    return replace(
        found,
        sentences=tuple(
            replace(each, text="The heart is normal.") if each.prompt == "right_lung" else each
            for each in found.sentences
        ),
    )


def a_denial(found: Film) -> Film:
    return replace(found, sentences=(*found.sentences, sentence("No pneumothorax or edema.", "edema")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (another_probability, "edema changed, too"),
        (another_probability, "observations changed, too"),
        (another_state, "pleural_effusion changed, too"),
        (one_sentence_more, "said anew: The left lung is clear."),
        (another_sentence, "lost: The right lung is clear."),
        (a_denial, "edema says: No pneumothorax or edema."),
    ],
)
def test_what_changes_beside_a_correction_is_found(change: Change, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def badly(found: Film, made: Iterable[Correction], *, prompts: PromptSet, side_of: SideOf) -> Film:
        return change(correct(found, made, prompts=prompts, side_of=side_of))

    monkeypatch.setattr(corrections, "correct", badly)

    found = [*objections(0), *objections(1)]

    assert any(words in fault for fault in found), found
    assert any("taken back, the answer is another" in fault for fault in found)


def test_findings_of_phantoms_are_corrected(phantom_model: Path) -> None:
    taken = of_phantoms(FIRST_SEED, 5)

    found = run(phantom_model, "phantoms", taken, name="films", say=progress.quiet, corrects=True)

    assert (found.films, found.faults) == (5, [])
