"""What the network itself says against a finding: each rule with an engine that answers from a script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
import pytest

from models.contract import (
    Contradiction,
    FindingState,
    PromptKind,
    PromptReading,
    Question,
    ReaderPrompt,
    Side,
)
from models.engines import FloatArray, IntArray, Patches, Regions
from models.reading.contradictions import found_on_other_side
from models.reading.reader import ChexReader
from node.domain import Note
from node.outputs import report_json, report_txt, wording
from node.outputs.sr.findings import measurements
from node.read import views
from tests.support import samples
from tests.support.scripted_engine import (
    EDEMA,
    FRACTURE,
    LEFT,
    NORMAL,
    PROMPTS,
    SENTENCES,
    ScriptedEngine,
    reader_of,
)

DEVICES = ReaderPrompt(
    key="support_devices", kind=PromptKind.PATHOLOGY, phrases=("Support devices",), negatives=("No support devices",)
)
RIGHT_BASE = (0.25, 0.75, 0.2, 0.2)
LEFT_BASE = (0.75, 0.75, 0.2, 0.2)


def side_of(x: float, _width: float) -> Side:
    return Side.RIGHT if x < 0.5 else Side.LEFT


def look(reader: ChexReader, *prompts: ReaderPrompt, knows_sides: bool = False) -> tuple[PromptReading, ...]:
    """Read a film; all that stands in the reading must stand in the answer to each prompt too."""
    film = reader.look(np.zeros((300, 300), dtype=np.float32))
    sides = side_of if knows_sides else None
    readings = reader.report(film, prompts, side_of=sides).prompts
    answers = reader.ask(film, [Question(prompt=p.phrases[0]) for p in prompts], reference=prompts, side_of=sides)
    assert [(a.state, a.contradiction) for a in answers] == [(r.state, r.contradiction) for r in readings]
    return readings


@pytest.mark.parametrize(("likely", "state"), [(0.8, FindingState.PRESENT), (0.55, FindingState.INDETERMINATE)])
def test_a_film_called_normal_contradicts_no_finding(likely: float, state: FindingState) -> None:
    """The film has a note instead (`node.read.film`)."""
    edema, normal = look(reader_of(ScriptedEngine([0.8, likely], ["Edema.", ""])), EDEMA, NORMAL)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)
    assert normal.state is state


def test_what_its_best_box_alone_says_is_not_asked() -> None:
    """On films of people it spoke against as many right findings as wrong ones."""
    engine = ScriptedEngine([0.8], ["Edema."], in_boxes=(0.2,))

    (edema,) = look(reader_of(engine), EDEMA)

    assert (edema.state, edema.contradiction, list(engine.described)) == (FindingState.PRESENT, None, [])


@dataclass
class SidedEngine(ScriptedEngine):
    """Finds what it is asked for at the right base, but a question that names a side at a place of its own."""

    sided: tuple[float, float, float, float] = RIGHT_BASE

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        films, count = prompts.shape[:2]
        found = ScriptedEngine.find(self, patches, prompts)
        place = RIGHT_BASE if count == len(self.probabilities) else self.sided
        return replace(
            found,
            boxes=np.tile(np.array(place, dtype=np.float32), (films, count, 3, 1)),
            scores=np.repeat(found.scores, films, axis=0),
        )


@pytest.mark.parametrize(
    ("sided", "knows_sides", "state"),
    [
        (LEFT_BASE, True, FindingState.INDETERMINATE),
        (RIGHT_BASE, True, FindingState.PRESENT),
        (LEFT_BASE, False, FindingState.PRESENT),
    ],
)
def test_the_other_side_contradicts_a_box(
    sided: tuple[float, float, float, float], knows_sides: bool, state: str
) -> None:
    engine = SidedEngine([0.8, 0.3], ["Edema.", ""], sided=sided)

    edema, _ = look(reader_of(engine), EDEMA, FRACTURE, knows_sides=knows_sides)

    assert (edema.state, edema.contradiction) == (state, "other_side" if state is FindingState.INDETERMINATE else None)


def test_a_finding_whose_name_has_a_side_is_not_asked_on_another() -> None:
    sided = ReaderPrompt(key="edema", kind=PromptKind.PATHOLOGY, phrases=("Left edema",), negatives=("No edema",))

    edema, _ = look(reader_of(SidedEngine([0.8, 0.3], ["", ""], sided=LEFT_BASE)), sided, FRACTURE, knows_sides=True)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)


def test_an_answer_across_the_middle_is_on_no_other_side() -> None:
    boxes = np.array([LEFT_BASE, (0.5, 0.5, 0.9, 0.2), RIGHT_BASE], dtype=np.float32)

    found = found_on_other_side(
        [(index, Side.RIGHT) for index in range(3)],
        boxes,
        lambda x, width: None if width > 0.5 else Side.RIGHT if x < 0.5 else Side.LEFT,
    )

    assert found == {0}


def test_sides_are_not_asked_for_in_words_never_learned() -> None:
    reader = reader_of(SidedEngine([0.8, 0.3], ["Edema.", ""], sided=LEFT_BASE))
    words = ("edema", "no", "fracture")
    taught = ChexReader(replace(reader.manifest, vocabulary=words), reader._engine, PROMPTS, SENTENCES, trusted="any")

    edema, _ = look(taught, EDEMA, FRACTURE, knows_sides=True)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)


@dataclass
class ReconsideringEngine(ScriptedEngine):
    """Says one thing first, and another when it is asked again."""

    first: str = "No edema."

    def says(self, feature: FloatArray) -> str:
        return super().says(feature) if self.heard else self.first


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("second", "state", "contradiction"),
    [("No edema.", FindingState.INDETERMINATE, "sentence_denies"), ("There is edema.", FindingState.PRESENT, None)],
)
def test_a_sentence_that_denies_twice_contradicts(
    second: str, state: str, contradiction: str | None, *, checked: bool
) -> None:
    reader = reader_of(ReconsideringEngine([0.8], [second]))
    reader.rule = "checked" if checked else "raw"

    reading = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA])

    (edema,) = reading.prompts
    assert (edema.state, edema.contradiction) == (state, contradiction)
    if checked:
        said = "Edema is possible; please review." if contradiction else second
        assert [sentence.text for sentence in reading.sentences] == [said]


@dataclass
class CountingEngine(ScriptedEngine):
    """Counts the sentences that are generated together."""

    batches: list[int] = field(default_factory=list)

    def write(self, features: FloatArray) -> IntArray:
        self.batches.append(len(features))
        return super().write(features)


@pytest.mark.parametrize(
    ("checked", "prompts", "batches"),
    [
        (True, (EDEMA,), [2]),
        (False, (EDEMA,), [1]),
        (True, (EDEMA, FRACTURE, NORMAL, LEFT), [6]),
        (True, (EDEMA, FRACTURE, NORMAL, LEFT, DEVICES), [5, 3]),
    ],
)
def test_only_few_sentences_are_generated_with_their_second_try(
    prompts: tuple[ReaderPrompt, ...], batches: list[int], *, checked: bool
) -> None:
    engine = CountingEngine([0.8] * len(prompts), ["Words."] * len(prompts))
    reader = reader_of(engine)
    reader.rule = "checked" if checked else "raw"

    reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), prompts)

    assert engine.batches == batches
    if batches == [2]:  # the second try is moved further toward the decision
        first, second = engine.heard
        assert second[0] > first[0]


def test_no_sentence_contradicts_that_a_film_is_normal() -> None:
    (normal,) = look(reader_of(ScriptedEngine([0.8], ["Abnormal."])), NORMAL)

    assert (normal.state, normal.contradiction) == (FindingState.PRESENT, None)


def test_every_contradiction_has_its_words() -> None:
    assert set(wording.CONTRADICTIONS) == set(get_args(Contradiction))
    assert all(text.endswith(".") for text in wording.CONTRADICTIONS.values())


@pytest.mark.parametrize("contradiction", wording.CONTRADICTIONS)
def test_report_and_group_say_why_a_finding_is_in_doubt(contradiction: Contradiction) -> None:
    effusion = replace(samples.finding(), contradiction=contradiction)
    report = samples.report(samples.film(findings=(effusion,)))
    words = wording.CONTRADICTIONS[contradiction]

    [[group]] = measurements(report, report.films[0], samples.cr(), zone=samples.BERLIN)

    texts = [str(item.TextValue) for item in group.ContentSequence if "TextValue" in item]
    assert f'"Small right pleural effusion." {words}' in texts
    assert (words in report_txt.render(report)) is (contradiction not in wording.OF_FILM)
    assert f'"reason": "{words}"' in json.dumps(report_json.report_to_json(report, []))


def test_what_speaks_against_a_film_stands_in_its_impression() -> None:
    assert {note for note in Note if views.is_doubt(note)} <= set(wording.CAUTIONS)


def test_a_finding_without_a_sentence_still_says_why() -> None:
    bare = replace(samples.finding(sentence=None), contradiction="other_side")

    assert (
        wording.about_box(samples.film(findings=(bare,)), bare, bare.boxes[0]) == wording.CONTRADICTIONS["other_side"]
    )
    silent = samples.finding(sentence=None)
    assert wording.about_box(samples.film(), silent, silent.boxes[0]) is None
