"""The sweep over corrections: nothing to object to on films that are corrected, and that it finds what is planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

import pytest

from models.contract import Box, FindingState
from node.domain import Film
from node.outputs.corrected_film import SideOf, correct
from node.prompt_set import PromptSet
from node.store.correction import Correction, CorrectionKind
from tests.drills.sweep import corrections
from tests.node.outputs.test_corrections import SET, sentence, side_of
from tests.node.outputs.test_corrections import film as graded

pytestmark = pytest.mark.drill(part="sweep")

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


def objections(number: int) -> Iterator[str]:
    return corrections.objections(film(), SET, side_of, regions=REGIONS, number=number)


def test_a_correction_that_is_followed_has_no_objection() -> None:
    for number in range(6):
        assert {new.kind for new in corrections.chosen(film(), number, SET)} == {*CorrectionKind} - {
            CorrectionKind.WITHDRAW
        }
    assert list(objections(1)) == []


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


def another_wording(found: Film) -> Film:
    return replace(found, sentences=tuple(replace(each, text=f"{each.text} It is so.") for each in found.sentences))


def a_contradiction(found: Film) -> Film:
    return replace(found, findings=tuple(replace(each, contradiction="other_side") for each in found.findings))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (another_probability, "edema changed, too"),
        (another_probability, "observations changed, too"),
        (another_state, "is absent"),
        (another_wording, "has not the words of the reader"),
        (a_contradiction, "is contradicted by the network"),
        (one_sentence_more, "said anew: The left lung is clear."),
        (another_sentence, "lost: The right lung is clear."),
        (a_denial, "edema says: No pneumothorax or edema."),
    ],
)
def test_what_changes_beside_a_correction_is_found(change: Change, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def badly(found: Film, made: Iterable[Correction], *, prompts: PromptSet, side_of: SideOf) -> Film:
        return change(correct(found, made, prompts=prompts, side_of=side_of))

    monkeypatch.setattr(corrections, "correct", badly)

    missing = {words, "taken back, the answer is another"}
    found = []
    for fault in chain(objections(0), objections(1)):
        found.append(fault)
        missing -= {text for text in missing if text in fault}
        if not missing:
            break

    assert not missing, found


@pytest.mark.parametrize("kind", ["sr", "sr3d"])
def test_what_one_form_of_a_report_changes_is_found(kind: str) -> None:
    before = corrections.written(film())

    def differing(**changes: object) -> list[str]:
        reports = {**before.reports, kind: replace(before.reports[kind], **changes)}  # type: ignore[arg-type]
        return list(corrections.differences(before, replace(before, reports=reports), ["pleural effusion"]))

    assert differing() == []
    assert [fault.partition(": ")[0] for fault in differing(groups=Counter())] == [
        f"groups of {kind} changed, too",
        f"groups of {kind} changed, too",  # of consolidation and cardiomegaly; the effusion was corrected
    ]
    assert len(differing(evaluations=Counter())) == 4


def alone(*sentences: str) -> Film:
    """A film that reports an effusion alone, with those of its sentences that have these prompts."""
    answer = film()
    silent = (replace(each, sentence=None) for each in answer.findings)
    return replace(
        answer,
        findings=tuple(each for each in silent if each.prompt in ("pleural_effusion", "pneumothorax", "edema")),
        sentences=tuple(each for each in answer.sentences if each.prompt in sentences),
    )


def test_a_text_alone_says_what_the_evaluations_said() -> None:
    rejected = next(new for new in corrections.chosen(alone("right_lung"), 0, SET) if new.kind is CorrectionKind.REJECT)
    before = corrections.written(alone("right_lung"))
    without, complete = (
        corrections.written(correct(alone(*said), [rejected], prompts=SET, side_of=side_of))
        for said in ((), ("right_lung",))
    )

    assert complete.reports["sr"].text
    assert not complete.reports["sr"].evaluations
    assert list(corrections.differences(before, complete, ["pleural effusion"])) == []
    found = list(corrections.differences(before, without, ["pleural effusion"]))
    assert [fault.partition(" does not say: ")[0] for fault in found] == ["sr of text alone", "sr3d of text alone"]
    assert all("The right lung is clear." in fault for fault in found)
