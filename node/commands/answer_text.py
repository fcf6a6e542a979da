"""The answer of `ask` in words, for the person at the terminal; `--json` prints the document itself (design §8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from node.domain import FindingState, Json, JsonObject, Note
from node.outputs import wording


def in_words(document: JsonObject) -> str:
    """Return what was asked of a film, and the answers, as lines."""
    lines = [f"{document['film']}"]
    if text := document.get("text"):
        lines.append(str(text))
    for question in cast(list[JsonObject], document["questions"]):
        lines += ["", *_answer(question)]
    return "\n".join([*lines, "", "For research use; not for diagnosis."])


def _answer(question: JsonObject) -> Iterator[str]:
    said = [text for text in (_state(question), _probability(question)) if text]
    yield f"{_asked(question)}{': ' if said else ''}{', '.join(said)}"
    for key in ("sentence", "reason"):
        if question[key]:
            yield f"    {question[key]}"
    for place in cast(list[JsonObject], question["boxes"]):
        score = "" if place["score"] is None else f", score {place['score']:.2f}"
        yield f"    at {_edges(place['box'])}{score}"
    for note in cast(list[str], question["notes"]):
        yield f"    Note: {wording.NOTES[Note(note)]}."


def _asked(question: JsonObject) -> str:
    prompt, box = question["prompt"], question["box"]
    where = "" if box is None else f"the box {_edges(box)}"
    return " in ".join(str(part) for part in (prompt, where) if part)


def _state(question: JsonObject) -> str:
    if "message" in question:
        return str(question["message"])
    if question["state"] is None:
        return ""
    state = FindingState(str(question["state"]))
    names = {
        FindingState.PRESENT: "present",
        FindingState.ABSENT: wording.HEADINGS[FindingState.ABSENT].lower(),
        FindingState.LEFT_OUT: "not assessed",
    }
    return names.get(state) or wording.MARKS[state]


def _probability(question: JsonObject) -> str:
    score = question["score"]
    return f"AI probability {wording.percent(score)}" if isinstance(score, float) else ""


def _edges(box: Json) -> str:
    """Return left, top, right and bottom in whole pixels of the stored film."""
    return ", ".join(f"{edge:.0f}" for edge in cast(list[float], box))
