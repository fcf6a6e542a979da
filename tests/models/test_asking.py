"""Questions to the small network itself, on both engines: each answered on its own."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from models.contract import FindingState, PromptKind, Question, ReaderPrompt, Trusted
from models.engines import ENGINES
from models.errors import ModelError
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.request import DEFAULT
from models.lab.phantoms import phantom as draw
from models.reading.decided_film import Look
from models.reading.reader import ChexReader, open_reader
from tests.support.scripted_engine import EDEMA, LEFT, NORMAL, box, centers_of, scores_of


def reader_prompts() -> tuple[ReaderPrompt, ...]:
    """The prompts of the node's own set."""
    return read_questions(DEFAULT).prompts


@pytest.fixture(scope="module", params=ENGINES)
def phantom(request: pytest.FixtureRequest, phantom_model: Path) -> ChexReader:
    return open_reader(phantom_model, engine=request.param, threads=1)


@pytest.fixture(scope="module")
def look(phantom: ChexReader) -> Look:
    return phantom.look(np.random.default_rng(0).random((300, 260), dtype=np.float32))


def test_an_answer_does_not_depend_on_what_else_is_asked(phantom: ChexReader, look: Look) -> None:
    drawn = box(0.25, 0.5, 0.55, 0.7)
    questions = [
        Question(prompt="Pleural effusion"),
        Question(box=drawn),
        Question(prompt="Pneumothorax"),
        Question(prompt="Pleural effusion", box=drawn),
    ]

    together = phantom.ask(look, questions, reference=[EDEMA, NORMAL])

    for question, answer in zip(questions, together, strict=True):
        (alone,) = phantom.ask(look, [question], reference=[EDEMA, NORMAL])
        assert answer.sentence == alone.sentence
        assert answer.score == pytest.approx(alone.score, abs=1e-5)
        assert centers_of(answer.boxes) == pytest.approx(centers_of(alone.boxes), abs=1e-5)
    assert len({answer.score for answer in together}) == len(questions)


@pytest.mark.parametrize("trusted", get_args(Trusted))
def test_a_question_of_the_set_is_answered_as_the_report_does(phantom_model: Path, trusted: Trusted) -> None:
    reader = open_reader(phantom_model, engine="onnx", threads=1, trusted=trusted)
    asked = reader_prompts()
    judged = [prompt for prompt in asked if prompt.kind is not PromptKind.REGION]

    for seed in range(2000000, 2000003):
        film = reader.look(draw(seed, side=224).pixels.astype(np.float32) / np.float32(255))
        reported = {prompt.key: prompt for prompt in reader.report(film, asked).prompts}
        answers = reader.ask(
            film, [Question(prompt=f" {prompt.phrases[0].upper()} ") for prompt in judged], reference=asked
        )
        for prompt, answer in zip(judged, answers, strict=True):
            assert answer.state == reported[prompt.key].state
            assert answer.score == reported[prompt.key].probability
            assert answer.boxes == reported[prompt.key].boxes


@pytest.mark.parametrize("trusted", ["real", "any"])
def test_what_is_left_out_is_neither_found_nor_denied(phantom_model: Path, trusted: Trusted) -> None:
    reader = open_reader(phantom_model, engine="onnx", threads=1, trusted=trusted, sentences="checked")
    film = reader.look(draw(2000000, side=224).pixels.astype(np.float32) / np.float32(255))
    asked = [
        Question(prompt="Pneumonia in the left lung"),
        Question(prompt="Pneumonia", box=box(0.3, 0.3, 0.7, 0.7)),
    ]

    answers = reader.ask(film, asked, reference=reader_prompts())

    assert [(answer.state, answer.sentence) for answer in answers] == [(FindingState.LEFT_OUT, "")] * 2


def test_words_never_learned_are_named_and_get_no_box(phantom: ChexReader, look: Look) -> None:
    asked = [
        Question(prompt="Banana in the left lung, or tuberculosis"),
        Question(prompt="Cat", box=box(0.4, 0.4, 0.6, 0.6)),
        Question(prompt="Edema"),
    ]

    unknown, boxed, known = phantom.ask(look, asked, reference=[EDEMA])

    assert unknown.never_learned == ("banana", "tuberculosis")
    assert boxed.never_learned == ("cat",)
    assert [(answer.sentence, answer.score, answer.state, len(answer.boxes)) for answer in (unknown, boxed)] == [
        ("", None, None, 0)
    ] * 2
    assert known.score is not None


def test_a_prompt_set_with_words_never_learned_is_refused(phantom: ChexReader) -> None:
    strange = ReaderPrompt(
        key="tb", kind=PromptKind.PATHOLOGY, phrases=("Tuberculosis",), negatives=("No tuberculosis",)
    )

    with pytest.raises(ModelError, match="prompt tb: this model never learned: tuberculosis; use other words"):
        phantom.check([*reader_prompts(), strange])


def test_the_answer_to_a_box_is_that_box_with_its_score(phantom: ChexReader, look: Look) -> None:
    (answer,) = phantom.ask(look, [Question(box=box(0.25, 0.5, 0.55, 0.7))], reference=[EDEMA])

    assert centers_of(answer.boxes) == pytest.approx(np.array([[0.4, 0.6, 0.3, 0.2]]))
    assert scores_of(answer.boxes) == pytest.approx([answer.score])
    assert answer.state in (FindingState.UNCALIBRATED, FindingState.ABSENT)  # no threshold is ever measured for a box
    assert not answer.positive


def test_a_box_alone_needs_something_to_be_compared_with(phantom: ChexReader, look: Look) -> None:
    with pytest.raises(ValueError, match="reference"):
        phantom.ask(look, [Question(box=box(0.4, 0.4, 0.6, 0.6))], reference=[LEFT])
