"""Questions about films over the interface for programs: by a prompt, by a box, or by both together.

A question that is none, or a box that is empty, gets 422; one that does not fit the film in question gets 409.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Path
from pydantic import BaseModel, BeforeValidator, Field
from starlette.requests import Request

from models.contract import Box, Question
from node.character_sets import visible
from node.dicom.marked_question import LONGEST_PROMPT
from node.errors import InputError, RetryLater
from node.jobs import answer_steps
from node.jobs.executor import Client
from node.jobs.question_answerer import questions_of
from node.net.http_connections import has_left
from node.outputs import wording
from node.outputs.asked_question import AskedQuestion, answer_to_json, question_from_json
from node.read.model import OpenModel
from node.store import database
from node.store import questions as kept
from node.store.ledger import is_away
from node.store.received import Instance
from node.store.spool import Spool
from node.web.api import AddressedFilm, add_film_route
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.users import audit, host_of, name_of

router = APIRouter(prefix="/api/v1", tags=["questions"])

_NO_MODEL = "this process has no model, or is still opening it; ask one that reads films"
_STORED = "the request is stored, but the database does not answer; the next start of the node follows it"

_MOST_QUESTIONS: Final = 20
_Edge = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_EDGES: Final = "left, top, right, bottom, in pixels of the stored film"

Edges: TypeAlias = Annotated[
    tuple[_Edge, _Edge, _Edge, _Edge] | None,
    BeforeValidator(lambda given: given.edges if isinstance(given, Box) else given),
    Field(description=_EDGES),
]
"""A box by its edges; a `Box` is turned into them."""
QuestionId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="id of a question")]


class NewQuestion(BaseModel):
    """A question: a prompt, a box, or both together as one question."""

    prompt: str | None = Field(default=None, max_length=LONGEST_PROMPT, description="words to search for")
    box: Edges = None


class NewQuestions(BaseModel):
    """Questions about one film, each answered on its own."""

    questions: Annotated[list[NewQuestion], Field(min_length=1, max_length=_MOST_QUESTIONS)]

    def checked(self) -> list[Question]:
        """Return the questions. Raises Problem if one asks nothing, or its box is empty."""
        return [_question(question) for question in self.questions]


class NewLookWords(BaseModel):
    """A question in words, or a prompt; box: one on the film that it is about."""

    text: Annotated[str, Field(max_length=LONGEST_PROMPT, pattern=r"\S")]
    box: Edges = None

    def as_prompt(self) -> Question:
        """Return the words as a prompt. Raises Problem for an empty box."""
        return Question(prompt=" ".join(visible(self.text).split()), box=box_of(self.box))


def box_of(edges: tuple[float, float, float, float] | None) -> Box | None:
    """Return a box by its edges. Raises Problem for an empty one."""
    if edges is None:
        return None
    left, top, right, bottom = edges
    try:
        return Box(left=left, top=top, right=right, bottom=bottom)
    except ValueError as error:
        raise Problem(422, str(error)) from error


def _question(new: NewQuestion) -> Question:
    prompt = visible(new.prompt or "").strip() or None
    if prompt is None and new.box is None:
        raise Problem(422, "nothing was asked; give a prompt, a box, or both")
    return Question(prompt=prompt, box=box_of(new.box))


class AnsweredQuestions(BaseModel):
    """Questions about a film with their answers.

    Each has the keys of an entry of `node ask`. About a film of a study it also has `id`, `asked_at` (UTC), `asked_by`,
    `source`; `model`, `engine` and `prompts`, which answered; and `sent`: whether somebody sent the answer to the
    archives. If it could not be sent, `not_sent` says why.
    """

    film: str
    questions: list[dict[str, object]]


class KnownPrompt(BaseModel):
    """A prompt that films are read with; phrase: its words."""

    key: str
    kind: str
    phrase: str


class KnownPrompts(BaseModel):
    """The prompts that films are read with. Others may be asked, too.

    suggestions: texts for a field to ask in: their phrases, and findings of paired organs with each side
    """

    prompts: list[KnownPrompt]
    suggestions: list[str]


@add_film_route(router, "GET", "/questions", responses=responses(404, 409, 422))
def list_questions(parts: Parts, request: Request, film: AddressedFilm) -> AnsweredQuestions:
    """List what was asked about a film, oldest first."""
    audit(request, "questions.viewed", study=film.study_uid, sop_instance_uid=film.sop_instance_uid)
    made = [_entry(question, parts.spool) for question in questions_of(parts.spool, film)]
    return AnsweredQuestions(film=film.sop_instance_uid, questions=made)


@add_film_route(router, "POST", "/questions", status_code=201, responses=responses(404, 409, 422, 429, 503))
def ask(parts: Parts, request: Request, film: AddressedFilm, new: NewQuestions) -> AnsweredQuestions:
    """Ask about a film. The answers come at once, before films that wait to be read, and stay with the film."""
    questions = new.checked()
    limit(parts, request, len(questions))
    made = ask_network(parts, request, film, questions)
    audit(request, "question.asked", study=film.study_uid, sop_instance_uid=film.sop_instance_uid)
    return AnsweredQuestions(film=film.sop_instance_uid, questions=made)


def limit(parts: WebParts, request: Request, count: int = 1) -> None:
    """Count the questions of a request, on any film. Raises Problem if their user asks too many."""
    if seconds := parts.rate.take((name_of(request), host_of(request)), count):
        wait = str(math.ceil(seconds))
        raise Problem(429, f"too many questions from here; ask again in {wait} s", headers={"Retry-After": wait})


def model_of(parts: WebParts) -> OpenModel:
    """Return the model of this process. Raises Problem if it has none yet."""
    if (model := parts.model()) is None:
        raise Problem(503, _NO_MODEL, headers={"Retry-After": "5"})
    return model


def ask_network(
    parts: WebParts, request: Request, film: Instance, questions: Sequence[Question]
) -> list[dict[str, object]]:
    """Ask about a film, and return the entries of the answers. Raises Problem."""
    if (answerer := parts.answerer()) is None:
        raise Problem(503, _NO_MODEL, headers={"Retry-After": "5"})
    source = "page" if request.headers.get("X-Requested-From") == "page" else "api"
    try:
        made = answerer.ask(
            film, questions, by=name_of(request), source=source, is_gone=lambda: has_left(request.scope)
        )
    except InputError as error:
        raise Problem(409, str(error)) from error
    except RetryLater as error:
        raise Problem(503, str(error), headers={"Retry-After": "2"}) from error
    return [_entry(question, parts.spool) for question in made]


@router.post("/questions/{question_id}/send", status_code=202, responses=responses(404, 409, 422, 503))
def send(parts: Parts, request: Request, question_id: QuestionId) -> None:
    """Send the answer to a question to the archives, as SR and GSPS. Sent twice, it arrives once."""
    try:
        study_uid = kept.study_of(parts.spool, question_id)
    except InputError as error:
        raise Problem(404, str(error)) from error
    try:
        with closing(Client(database.open_executor_database(parts.settings.storage))) as client:
            question = answer_steps.stored_question(parts.spool, study_uid, question_id)
            answer_steps.take(parts.spool, question, destinations=parts.settings.destinations)
            client.run_answer(study_uid, question_id)
    except InputError as error:
        raise Problem(409, str(error)) from error
    except Exception as error:
        if is_away(error):
            audit(request, "question.sent", study=study_uid, outcome="failed")
            raise Problem(503, _STORED) from error
        raise
    audit(request, "question.sent", study=study_uid)


@router.delete("/questions/{question_id}", status_code=204, responses=responses(404, 409, 422, 503))
def remove(parts: Parts, request: Request, question_id: QuestionId) -> None:
    """Remove a question that the model refused, because it never learned its words. Others stay with their film."""
    try:
        study_uid = kept.study_of(parts.spool, question_id)
        asked = question_from_json(kept.question(parts.spool, study_uid, question_id))
    except InputError as error:
        raise Problem(404, str(error)) from error
    if not asked.answer.never_learned or kept.find_answer(parts.spool, study_uid, question_id) is not None:
        raise Problem(409, "this question was answered, so it stays with its film")
    parts.spool.drop_document(study_uid, "questions", question_id)
    audit(request, "question.removed", study=study_uid, sop_instance_uid=asked.film)


@router.get("/prompts")
def list_prompts(parts: Parts) -> KnownPrompts:
    """List the prompts that films are read with."""
    prompts = parts.prompts().prompts
    paired = [wording.uncapitalized(prompt.phrases[0]) for prompt in prompts if prompt.paired]
    return KnownPrompts(
        prompts=[KnownPrompt(key=prompt.key, kind=prompt.kind, phrase=prompt.phrases[0]) for prompt in prompts],
        suggestions=[
            *(prompt.phrases[0] for prompt in prompts),
            *(f"{side} {phrase}" for phrase in paired for side in ("Left", "Right")),
        ],
    )


def _entry(question: AskedQuestion, spool: Spool) -> dict[str, object]:
    return {
        **answer_to_json(question.answer),
        "id": question.id,
        "asked_at": question.asked_at.isoformat(),
        "asked_by": question.asked_by,
        "source": question.source,
        "model": question.model,
        "engine": question.engine,
        "prompts": question.prompts,
        **_sent(question, spool),
    }


def _sent(question: AskedQuestion, spool: Spool) -> dict[str, object]:
    sent = kept.find_answer(spool, question.study_uid, question.id)
    if sent is None or not sent.reason:
        return {"sent": sent is not None}
    return {"sent": False, "not_sent": sent.reason}
