"""A question about a film that was asked and answered, as JSON values and back, losslessly.

The question and its answer are stored beside the film's readings, shown on its page, and sent as DICOM objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from node.character_sets import visible
from node.codec import decode, encode, spelled_out
from node.domain import Json, JsonObject, ObjectReference
from node.metrics import QUESTION_SOURCES
from node.read.model import FilmAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The object of a workstation that asked a question.

    number: of the question in its object, from 1
    instance_number: of the object, 0 if it has none
    tracking: tracking ID and UID of the graphic; either may be ""
    """

    reference: ObjectReference
    number: int
    instance_number: int
    is_report: bool
    tracking: tuple[str, str]

    def question_id(self, study_uid: str) -> str:
        """Return the id of the question: the same however often the object comes into a study."""
        said = f"{study_uid} {self.reference.sop_instance_uid} {self.number}"
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    @property
    def version(self) -> int:
        """The version that the answer is, counting the object that asked as the first."""
        return self.number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """One question about one film with its answer; nothing of it changes once it is stored.

    id: 32 hexadecimal digits, drawn when it was asked, or of its origin
    film: SOP Instance UID
    asked_at: aware UTC
    asked_by: the user's name on this node; "" if the node does not ask for one
    source: one of `metrics.QUESTION_SOURCES`
    model, weights_sha256, engine: of the network that answered, and its runtime
    prompts: name and version of the prompt set
    origin: the object that asked it; None for a question over the page, the interface for programs or a command
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


def to_json(asked: AskedQuestion) -> JsonObject:
    """Return a question as JSON values, with every key that `from_json` needs."""
    answer = asked.answer
    return {
        "id": asked.id,
        "study": asked.study_uid,
        "film": asked.film,
        "asked_at": asked.asked_at.isoformat(),
        "asked_by": asked.asked_by,
        "source": asked.source,
        "model": asked.model,
        "weights_sha256": asked.weights_sha256,
        "engine": asked.engine,
        "prompts": asked.prompts,
        "prompt": answer.question.prompt,
        "box": None if answer.question.box is None else list(answer.question.box.edges),
        "sentence": answer.sentence,
        "score": answer.score,
        "state": answer.state,
        "boxes": [{"box": list(scored.box.edges), "score": scored.score} for scored in answer.boxes],
        "by": answer.by,
        "contradiction": answer.contradiction,
        "placed": answer.laterality,  # `laterality` is a side in all other documents
        "never_learned": list(answer.never_learned),
        "notes": list(answer.notes),
        "origin": None if asked.origin is None else encode(asked.origin),
    }


def from_json(document: Mapping[str, Json]) -> AskedQuestion:
    """Return the question that `to_json` wrote, now or before `placed` was kept. Raises ValueError for any other."""
    content = spelled_out(document)
    prompt = content.get("prompt")
    question = {"prompt": visible(prompt) if isinstance(prompt, str) else prompt, "box": content.get("box")}
    answer = decode(FilmAnswer, {**content, "question": question, "laterality": content.get("placed", "boxes")})
    return decode(AskedQuestion, {**content, "answer": answer})
