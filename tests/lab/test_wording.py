"""How decisions are put into words, chosen on films: what is said best, as short as nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from language.labels import RuleLabeler
from models.contract import FilmReading, FindingState, PromptKind, PromptReading, Sentence
from models.lab.evaluation.cases import Truth, truth_of_phantom
from models.lab.evaluation.wording import best_wording, contradicted, wrongly_removed
from models.lab.phantoms import phantom
from models.manifest import ReportRule

LABELER = RuleLabeler()


def reading(*texts: str, standing: Sequence[int] | None = None) -> FilmReading:
    """A film of which something is said; standing: the sentence of each prompt."""
    return FilmReading(
        sentences=tuple(Sentence(text=text, prompt="", score=1.0, boxes=()) for text in texts),
        prompts=tuple(
            PromptReading(key="", kind=PromptKind.REGION, sentence=place) for place in standing or range(len(texts))
        ),
    )


def film(*, edema: bool) -> Truth:
    truth = truth_of_phantom(phantom(1_000_000, side=64))
    return replace(truth, labels={"edema": edema, "pneumothorax": False})


def test_the_emphasis_is_that_which_finds_best() -> None:
    def read(rule: ReportRule) -> list[FilmReading]:
        return [reading("There is edema." if rule.emphasis >= 0.3 else "No edema.")]

    assert best_wording(ReportRule(), read, [film(edema=True)], LABELER).emphasis == 0.3


def decided(text: str, state: FindingState) -> FilmReading:
    """A film of which edema was decided, and put into words."""
    (prompt,) = reading(text).prompts
    return replace(reading(text), prompts=(replace(prompt, key="edema", kind=PromptKind.PATHOLOGY, state=state),))


@pytest.mark.parametrize(
    ("text", "state", "share"),
    [
        ("No edema.", FindingState.PRESENT, 1.0),
        ("There is edema.", FindingState.PRESENT, 0.0),
        ("There is edema.", FindingState.ABSENT, 1.0),
        ("No edema.", FindingState.ABSENT, 0.0),
        ("No edema.", FindingState.INDETERMINATE, 0.0),
        ("The left lung is clear.", FindingState.PRESENT, 0.0),
    ],
)
def test_a_sentence_contradicts_a_decision_by_its_opposite(text: str, state: FindingState, share: float) -> None:
    assert contradicted([decided(text, state)], LABELER) == share


def test_words_that_contradict_decisions_are_never_chosen() -> None:
    def read(rule: ReportRule) -> list[FilmReading]:
        return [decided("No edema." if rule.emphasis < 0.2 else "There is edema.", FindingState.PRESENT)]

    assert best_wording(ReportRule(), read, [film(edema=False)], LABELER).emphasis == 0.2


def test_where_emphasis_changes_nothing_the_published_way_stays() -> None:
    assert best_wording(ReportRule(), lambda _rule: [reading("No edema.")], [film(edema=True)], LABELER).emphasis == 0


def test_a_report_is_shortened_without_losing_a_needed_denial() -> None:
    def read(rule: ReportRule) -> list[FilmReading]:
        if rule.remove_above < 0.98:
            return [reading("No edema.", standing=[0, 0, 0])]
        if rule.remove_above < 0.995:
            return [reading("No edema.", "No pneumothorax.", standing=[0, 0, 1])]
        return [reading("No edema.", "There is no edema.", "No pneumothorax.")]

    chosen = best_wording(ReportRule(), read, [film(edema=False)], LABELER)

    assert (chosen.remove_above, chosen.soft_remove_above) == (0.98, 0.98)


def test_where_every_removal_loses_something_nothing_is_removed() -> None:
    def read(rule: ReportRule) -> list[FilmReading]:
        if rule.remove_above < 1:
            return [reading("No edema.", standing=[0, 0])]
        return [reading("No edema.", "No pneumothorax.")]

    assert best_wording(ReportRule(), read, [film(edema=False)], LABELER).remove_above == 1


def test_a_removed_sentence_replaced_by_another_meaning_is_wrong() -> None:
    whole = [reading("No edema.", "There is no edema.", "There is edema.")]

    assert wrongly_removed(whole, [reading("No edema.", standing=[0, 0, 0])], LABELER) == 0.5
    assert wrongly_removed(whole, whole, LABELER) == 0
