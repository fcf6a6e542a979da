"""A question about a film with its answer: values, words, boxes of its objects, and JSON.

Both are stored beside the film's readings, shown on its page, and sent as DICOM objects. No text says "normal" or
"absent". The JSON is the same for the command, the pages and the interface for programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from models.contract import Box, FindingState
from models.documents import decode
from node.character_sets import visible
from node.domain import Film, GroundedSentence, Json, JsonObject, Note, ObjectReference, derive_uid
from node.metrics import QUESTION_SOURCES
from node.outputs import wording
from node.outputs.gsps_graphics import Tracking
from node.outputs.patient import short_text
from node.outputs.vocabulary import MARKS, STATES, UNMEASURED
from node.read.model import FilmAnswer

_LONGEST_NAME = 48
_BOX_ALONE = "Anything abnormal in the box"
"""The subject of a box without words: its score compares the box's content with the negative prompts."""
_BOX_ALONE_IN_SHORT = "box"
_REGION = "The boxes show where the network locates it; a place is neither present nor not reported."
_LIMITS = "This answers one question and is no report on the film. Not looked for: all else."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The workstation's object that contained a question.

    number: number of the question in its object, from 1
    instance_number: Instance Number of the object, 0 if it has none
    tracking: tracking ID and UID of the graphic; either may be ""
    """

    reference: ObjectReference
    number: int
    instance_number: int
    is_report: bool
    tracking: tuple[str, str]

    def question_id(self, study_uid: str) -> str:
        """Return the id of the question, which does not depend on how often the object arrives in a study."""
        said = f"{study_uid} {self.reference.sop_instance_uid} {self.number}"
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    @property
    def version(self) -> int:
        """The version of the answer; the object with the question counts as version 1."""
        return self.number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """One question about one film with its answer; immutable once stored.

    id: 32 hexadecimal digits, random, or derived from its origin
    film: SOP Instance UID
    asked_at: aware UTC
    asked_by: the user's name on this node; "" without sign-in
    source: one of `metrics.QUESTION_SOURCES`
    model, weights_sha256, engine: of the network that answered, and its runtime
    prompts: name and version of the prompt set
    origin: the object that contained it; None for a question from a page, the interface for programs or a command
    """

    id: str
    study_uid: str
    film: str
    asked_at: datetime
    asked_by: str
    source: str
    model: str
    weights_sha256: str
    answer: FilmAnswer
    engine: str = ""
    prompts: str = ""
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.source not in QUESTION_SOURCES:
            raise ValueError(f"a question comes from one of {', '.join(QUESTION_SOURCES)}, got {self.source!r}")


def question_from_json(document: Mapping[str, Json]) -> AskedQuestion:
    """Return the question that `documents.encode` wrote. Raises ValueError for any other document."""
    asked = decode(AskedQuestion, document)
    question = asked.answer.question
    prompt = None if question.prompt is None else visible(question.prompt)
    return replace(asked, answer=replace(asked.answer, question=replace(question, prompt=prompt)))


def name(asked: AskedQuestion) -> str:
    """Return a short name of the question's subject."""
    return short_text(asked.answer.question.prompt or "", _LONGEST_NAME) or _BOX_ALONE


def title(asked: AskedQuestion) -> str:
    """Return the description of the answer's series."""
    return f"AI answer: {short_text(asked.answer.question.prompt or '') or _BOX_ALONE_IN_SHORT}"


def located(asked: AskedQuestion) -> list[tuple[Tracking, Box]]:
    """Return the located boxes with tracking ID and UID; none if the subject is not reported."""
    if asked.answer.state is not None and not asked.answer.state.is_reported:
        return []
    boxes, short = [scored.box for scored in asked.answer.boxes], name(asked)
    names = [short] if len(boxes) == 1 else [f"{short} {number}/{len(boxes)}" for number in range(1, len(boxes) + 1)]
    return [((named, tracking_uid(asked, box)), box) for named, box in zip(names, boxes, strict=True)]


def tracking_uid(asked: AskedQuestion, box: Box, *, role: str = "located") -> str:
    """Return the tracking UID of a box of an answer; role: located, or part of the question."""
    return derive_uid("tracking", asked.film, "answer", asked.id, role, *(f"{edge:.3f}" for edge in box.edges))


def question(asked: AskedQuestion) -> str:
    """Return the question as it was asked."""
    prompt, box = asked.answer.question.prompt, asked.answer.question.box
    what = "what does the network see" if prompt is None else " ".join(prompt.split())
    if box is None:
        return f"Asked about the film: {what}"
    return f"Asked about the box of {wording.edges(box)}: {what}"


def label(asked: AskedQuestion) -> str:
    """Return the label of a drawn box."""
    answer, short = asked.answer, name(asked)
    if answer.state is not None and not answer.state.is_reported:
        return f"{short}: {STATES[answer.state]}"
    if answer.score is None:
        return short
    if answer.state is None:
        return f"{short} (score {answer.score:.2f})"
    mark = f" ({MARKS[answer.state]})" if answer.state in MARKS else ""
    return f"{short} {wording.percent(answer.score)}{mark}"


def sentence(asked: AskedQuestion) -> str | None:
    """Return the sentence of an answer with notes on severity words and contradictions; None if there is none."""
    answer, said = asked.answer, _said(asked.answer)
    worded = wording.noted(Note.SEVERITY_WORDED) if Note.SEVERITY_WORDED in answer.notes else None
    return " ".join(filter(None, (said, worded, wording.reason_of(answer.contradiction)))) or None


def _said(answer: FilmAnswer) -> str:
    if not answer.sentence.strip():
        return ""
    return wording.said(GroundedSentence(text=answer.sentence, prompt="", score=0.0, boxes=(), by=answer.by))


def lines(asked: AskedQuestion, film: Film) -> list[str]:
    """Return question and answer, one text a line."""
    about = sentence(asked)
    said = () if about is None else (f"In words: {about}",)
    return [question(asked), f"Answer: {_state(asked)}", *said, *wording.cautions(film), _LIMITS]


def _state(asked: AskedQuestion) -> str:
    answer = asked.answer
    if answer.state is None:
        return _REGION if answer.boxes else "The network points to no place for what it was asked."
    what = f"{_BOX_ALONE}: " if answer.question.prompt is None else ""
    is_told = answer.score is not None and answer.state is not FindingState.LEFT_OUT
    probability = f", AI probability {wording.percent(answer.score or 0.0)}" if is_told else ""
    why = f", because {UNMEASURED}" if answer.state is FindingState.UNCALIBRATED else ""
    return f"{what}{STATES[answer.state].capitalize()}{probability}{why}."


def answer_to_json(answer: FilmAnswer) -> JsonObject:
    """Return an entry of `questions` in the result of `node ask` (design §8).

    by: as in report.json; null without a sentence
    said: the sentence as every output prints it, the network's own words in quotation marks
    A finding that the model leaves out has no number, as in every output: neither a score, nor one of its box.
    """
    said, question, is_assessed = _said(answer), answer.question, answer.state is not FindingState.LEFT_OUT
    content: JsonObject = {
        "prompt": question.prompt,
        "box": None if question.box is None else list(question.box.edges),
        "sentence": answer.sentence,
        "by": answer.by if said else None,
        "said": said,
        "score": answer.score,
        "state": answer.state,
        "positive": answer.positive,
        "reason": wording.reason_of(answer.contradiction, answer.state),
        "boxes": [
            {"box": list(scored.box.edges), "score": scored.score if is_assessed else None} for scored in answer.boxes
        ],
        "notes": list(answer.notes),
    }
    if answer.never_learned:
        content["error"] = "never_learned"
        content["words"] = list(answer.never_learned)
        content["message"] = f"this model never learned: {', '.join(answer.never_learned)}"
    return content
