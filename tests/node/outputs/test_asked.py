"""A question that was asked is read back as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models.contract import Box, By, FindingState, Question, ScoredBox
from models.documents import encode
from node.commands import ask
from node.domain import JsonObject
from node.outputs import asked_question, wording
from node.outputs.asked_question import AskedQuestion, answer_to_json
from node.read.model import FilmAnswer
from tests.support import samples

BOX = Box(left=10.5, top=20, right=300, bottom=400)

QUESTION = AskedQuestion(
    id="0" * 32,
    study_uid="1.2.3",
    film="1.2.3.4",
    asked_at=datetime(2026, 11, 23, 12, 0, 0, 123456, tzinfo=UTC),
    asked_by="anna",
    source="page",
    model="chex-phantom 2",
    weights_sha256="ab" * 32,
    engine="onnx",
    prompts="chexpert14 1",
    answer=FilmAnswer(
        question=Question(prompt="pleural effusion", box=BOX),
        sentence="Small right pleural effusion.",
        score=0.1 + 0.2,
        state=FindingState.PRESENT,
        boxes=(ScoredBox(box=BOX, score=1 / 3),),
        by="rule",
        contradiction="other_side",
    ),
)
"""A question by prompt and box, whose numbers have no short decimal form."""

LEFT_OUT = replace(
    QUESTION,
    answer=replace(QUESTION.answer, sentence="", state=FindingState.LEFT_OUT, score=None, contradiction=None),
)
"""A question about a finding that the model leaves out."""

POSSIBLE = "Possible, please review: "


@pytest.mark.parametrize(
    "question",
    [
        QUESTION,
        LEFT_OUT,
        replace(
            QUESTION,
            answer=FilmAnswer(
                question=Question(prompt="zebra"),
                sentence="",
                score=None,
                state=None,
                boxes=(),
                never_learned=("zebra",),
            ),
        ),
    ],
    ids=["prompt and box", "left out", "never learned"],
)
def test_a_question_is_read_back_unchanged(question: AskedQuestion) -> None:
    assert asked_question.question_from_json(json.loads(json.dumps(encode(question)))) == question


@pytest.mark.parametrize(
    ("by", "sentence", "said"),
    [
        ("network", "There is edema.", '"There is edema."'),
        ("network_uncalibrated", f"{POSSIBLE}There is edema.", f'{POSSIBLE}"There is edema."'),
        ("rule", "There is edema.", "There is edema."),
        ("network", "", None),
    ],
)
def test_every_way_marks_the_own_words_of_the_network(by: By, sentence: str, said: str | None) -> None:
    asked = replace(QUESTION, answer=replace(QUESTION.answer, sentence=sentence, by=by, contradiction=None))

    told = answer_to_json(asked.answer)
    ways = {
        "interface and page": told["said"] or None,
        "command": next((line.strip() for line in lines_of(told) if "edema" in line), None),
        "structured report": asked_question.sentence(asked),
    }

    assert ways == dict.fromkeys(ways, said)
    assert (told["sentence"], told["by"]) == (sentence, by if said else None)


def lines_of(answer: JsonObject) -> list[str]:
    """The lines of `node ask` about an answer."""
    return ask.in_words({"film": "a.dcm", "questions": [answer]}).splitlines()


def test_an_answer_about_what_is_left_out_says_why() -> None:
    said = asked_question.lines(LEFT_OUT, samples.film())

    assert answer_to_json(LEFT_OUT.answer)["reason"] == f"{wording.NEVER}."
    assert "Answer: Not evaluated by this model." in said
    assert "probability" not in " ".join(said)


def test_a_question_from_anywhere_else_is_refused() -> None:
    with pytest.raises(ValueError, match="comes from one of"):
        replace(QUESTION, source="nowhere")
