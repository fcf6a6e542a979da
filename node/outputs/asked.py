"""A question about a film that was asked and answered, as JSON values and back, losslessly.

The question and its answer are stored beside the film's readings, shown on its page, and sent as DICOM objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import cast

from node.character_sets import visible
from node.domain import Box, FindingState, Json, JsonObject, Note, ObjectReference, ScoredBox
from node.metrics import QUESTION_SOURCES
from node.read.model import FilmAnswer, FilmQuestion


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

    @property
    def question_id(self) -> str:
        """The id of the question: the same however often the object comes."""
        said = f"{self.reference.sop_instance_uid} {self.number}"
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
    prompts: name and version of the prompt set; like engine "" if an older version of the program stored the question
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
        "left_out": answer.left_out,
        "never_learned": list(answer.never_learned),
        "notes": list(answer.notes),
        "origin": None if asked.origin is None else cast(JsonObject, asdict(asked.origin)),
    }


def from_json(document: Mapping[str, Json]) -> AskedQuestion:
    """Return the question that `to_json` wrote. Raises KeyError, TypeError or ValueError for any other document."""
    box, score, state = document["box"], document["score"], document["state"]
    prompt, contradiction = document["prompt"], document["contradiction"]
    boxes = cast(list[JsonObject], document["boxes"])
    return AskedQuestion(
        id=str(document["id"]),
        study_uid=str(document["study"]),
        film=str(document["film"]),
        asked_at=datetime.fromisoformat(str(document["asked_at"])),
        asked_by=str(document["asked_by"]),
        source=str(document["source"]),
        model=str(document["model"]),
        weights_sha256=str(document["weights_sha256"]),
        engine=str(document.get("engine", "")),
        prompts=str(document.get("prompts", "")),
        answer=FilmAnswer(
            question=FilmQuestion(prompt=None if prompt is None else visible(str(prompt)), box=_box(box)),
            sentence=str(document["sentence"]),
            score=None if score is None else float(cast(float, score)),
            state=None if state is None else FindingState(str(state)),
            boxes=tuple(
                ScoredBox(box=cast(Box, _box(scored["box"])), score=float(cast(float, scored["score"])))
                for scored in boxes
            ),
            by=str(document["by"]),
            contradiction=None if contradiction is None else str(contradiction),
            left_out=document.get("left_out") is True,  # an older version stored none
            never_learned=tuple(str(word) for word in cast(list[str], document["never_learned"])),
            notes=tuple(Note(note) for note in cast(list[str], document.get("notes", []))),  # an older version: none
        ),
        origin=_origin(document.get("origin")),  # an older version stored none
    )


def _origin(value: Json) -> Origin | None:
    if value is None:
        return None
    content = cast(JsonObject, value)
    named, uid = cast(list[str], content["tracking"])
    return Origin(
        reference=ObjectReference(**cast(dict[str, str], content["reference"])),
        number=int(cast(int, content["number"])),
        instance_number=int(cast(int, content["instance_number"])),
        is_report=bool(content["is_report"]),
        tracking=(str(named), str(uid)),
    )


def _box(value: Json) -> Box | None:
    if value is None:
        return None
    left, top, right, bottom = (float(edge) for edge in cast(list[float], value))
    return Box(left=left, top=top, right=right, bottom=bottom)
