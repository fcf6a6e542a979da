"""A question about a film that was asked and answered.

The question and its answer are stored beside the film's readings, shown on its page, and sent as DICOM objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from models.documents import decode
from node.character_sets import visible
from node.domain import Json, ObjectReference
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


def from_json(document: Mapping[str, Json]) -> AskedQuestion:
    """Return the question that `documents.encode` wrote. Raises ValueError for any other document."""
    asked = decode(AskedQuestion, document)
    question = asked.answer.question
    prompt = None if question.prompt is None else visible(question.prompt)
    return replace(asked, answer=replace(asked.answer, question=replace(question, prompt=prompt)))
