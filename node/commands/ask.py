"""Asks a model about one film by prompts and boxes, and prints the answers.

Questions in words, and about what changed, are asked of a running node: on its pages, or over its interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from models.contract import Box, FindingState, Question
from node.character_sets import visible
from node.domain import Json, JsonObject, Note
from node.errors import InputError
from node.outputs import wording
from node.outputs.vocabulary import STATES, UNMEASURED


def questions_of(phrases: Sequence[str], boxes: Sequence[Box]) -> list[Question]:
    """Make questions of phrases and boxes: one phrase with one box is one question, else each is its own question.

    Raises InputError when there is neither phrase nor box, or when several are combined.
    """
    phrases = [visible(phrase) for phrase in phrases]
    if not phrases and not boxes:
        raise InputError("nothing was asked; give --prompt TEXT or --box L,T,R,B")
    if len(phrases) == len(boxes) == 1:
        return [Question(prompt=phrases[0], box=boxes[0])]
    if phrases and boxes:
        raise InputError("several prompts and boxes do not pair up; ask one prompt with one box, or only one kind")
    return [Question(prompt=phrase) for phrase in phrases] + [Question(box=box) for box in boxes]


def in_words(document: JsonObject) -> str:
    """Return the questions about a film with their answers, as lines."""
    lines = [str(document["film"])]
    for question in cast(list[JsonObject], document["questions"]):
        lines += ["", *_answer(question)]
    return "\n".join([*lines, "", "For research use; not for diagnosis."])


def _answer(question: JsonObject) -> Iterator[str]:
    said = [text for text in (_state(question), _number(question), _why(question)) if text]
    yield f"{_asked(question)}{': ' if said else ''}{', '.join(said)}"
    for key in ("said", "reason"):
        if question[key]:
            yield f"    {question[key]}"
    for place in cast(list[JsonObject], question["boxes"]):
        score = "" if place["score"] is None else f", score {place['score']:.2f}"
        yield f"    at {_edges(place['box'])}{score}"
    for note in cast(list[str], question["notes"]):
        yield f"    {wording.noted(Note(note))}"


def _asked(question: JsonObject) -> str:
    prompt, box = question["prompt"], question["box"]
    where = "" if box is None else f"the box {_edges(box)}"
    return " in ".join(str(part) for part in (prompt, where) if part)


def _state(question: JsonObject) -> str:
    if "message" in question:
        return str(question["message"])
    if question["state"] is None:
        return ""
    return STATES[FindingState(str(question["state"]))]


def _number(question: JsonObject) -> str:
    """Return the probability of a finding; of a place, which has none, its score."""
    score = question["score"]
    if not isinstance(score, float):
        return ""
    return f"score {score:.2f}" if question["state"] is None else f"AI probability {wording.percent(score)}"


def _why(question: JsonObject) -> str:
    return f"because {UNMEASURED}" if question["state"] == FindingState.UNCALIBRATED else ""


def _edges(box: Json) -> str:
    """Return left, top, right and bottom in whole pixels of the stored film."""
    return ", ".join(f"{edge:.0f}" for edge in cast(list[float], box))
