"""Looking at a film without a PACS: a DICOM file, PNG or JPEG is read, shown and asked about, and then forgotten.

Its two pages, one to choose a file and one that shows it as the page of a study would, use the interface.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path as FilePath
from typing import Annotated, BinaryIO, Final

import anyio.to_thread
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from models.contract import Question
from node.answers.questions import Topic, is_plain_prompt, understand
from node.answers.replies import Reply, answer, for_network
from node.domain import Film, derive_uid
from node.errors import InputError, Undecodable
from node.net.http_connections import has_left
from node.outputs import report_json
from node.outputs.asked_question import answer_to_json
from node.read import decoding, open_film
from node.read.film import answer_film, answer_picture
from node.read.model import OpenModel, while_wanted
from node.web import look_files, pictures, request_body, shown_film, words
from node.web.api import PNG
from node.web.dependencies import Parts, WebParts
from node.web.look_files import LookFile
from node.web.page import refuse, render
from node.web.problems import Problem, responses
from node.web.questions import AnsweredQuestions, NewLookWords, NewQuestions, box_of, limit, model_of
from node.web.replies import WordedReply, worded
from node.web.studies import header_of
from node.web.study_page import about_header
from node.web.users import audit

MOST_BYTES: Final = 256 * request_body.MIB
_SUFFIXES: Final = {"application/dicom": ".dcm", "image/png": ".png", "image/jpeg": ".jpg"}
_BODY: Final[dict[str, object]] = {
    "requestBody": {
        "required": True,
        "description": f"one file, at most {MOST_BYTES // request_body.MIB} MiB",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _SUFFIXES},
    }
}
_NOT_OF_LOOKS: Final = {
    Topic.COMPARE: "A film that is in no study is compared with no other film.",
    Topic.CORRECT: "Nothing is corrected on a film that is in no study.",
}

LookId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="id from POST /api/v1/looks")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookFilm:
    """A film that is looked at, where the page of a study has a `StudyFilm`."""

    uid: str
    status: str


class LookAnswer(BaseModel):
    """The answer to a film that is looked at.

    film: an entry of `films` in report.json
    """

    id: str
    seconds: int = Field(description="time until the node forgets the film; newer films may replace it earlier")
    film: dict[str, object]
    model: dict[str, str]


api = APIRouter(prefix="/api/v1/looks", tags=["looks"])
router = APIRouter(include_in_schema=False)


@api.post("", status_code=201, openapi_extra=_BODY, responses=responses(415, 422, 503))
async def look_at(parts: Parts, request: Request) -> LookAnswer:
    """Read one film that is in no study. Nothing of it is sent; the node forgets it after some minutes."""
    model = model_of(parts)
    suffix = _SUFFIXES.get(request.headers.get("content-type", "").partition(";")[0].strip().lower())
    if suffix is None:
        raise Problem(415, f"send one of {', '.join(_SUFFIXES)}")
    try:
        file, path = parts.looks.create(suffix)
    except OSError as error:
        raise Problem(503, "the file cannot be written; check the disk") from error
    try:
        with file:
            await request_body.take(request, lambda part: _write(parts, file, part))
        film = await anyio.to_thread.run_sync(_read, parts, path, model)
    except BaseException:  # also of a request that is cancelled
        path.unlink(missing_ok=True)
        raise
    look = parts.looks.add(path, film)
    audit(request, "film.viewed", study=None, sop_instance_uid=film.source)
    identity = model.reader.identity
    return LookAnswer(
        id=look.id,
        seconds=int(look_files.SECONDS),
        film=dict(report_json.film_for_programs(film)),
        model={"name": identity.name, "version": identity.version, "engine": identity.engine},
    )


@api.get("/{look_id}/picture", response_class=Response, responses={**PNG, **responses(404, 409, 422)})
def show_look(parts: Parts, request: Request, look_id: LookId) -> Response:
    """Draw the film in stored orientation, with its columns and rows."""
    look = _find(parts, look_id)
    path = look.path
    try:
        picture = open_film.show_picture(path) if open_film.is_picture(path) else decoding.stored_picture(path).shown()
        png = pictures.to_png(picture)
    except (Undecodable, InputError) as error:
        raise Problem(409, "this film cannot be shown; its report says why") from error
    except FileNotFoundError as error:
        raise _forgotten() from error
    audit(request, "film.viewed", study=None, sop_instance_uid=look.film.source)
    return Response(png, media_type="image/png")


@api.post("/{look_id}/questions", responses=responses(404, 409, 422, 429, 503))
def ask_look(parts: Parts, request: Request, look_id: LookId, new: NewQuestions) -> AnsweredQuestions:
    """Ask about the film. Neither questions nor answers are kept."""
    look, model, questions = _find_read(parts, look_id), model_of(parts), new.checked()
    limit(parts, request, len(questions))
    answers = _asked(parts, request, look, model, questions)
    audit(request, "question.asked", study=None, sop_instance_uid=look.film.source)
    return AnsweredQuestions(film=look.film.source, questions=answers)


@api.post("/{look_id}/replies", responses=responses(404, 409, 422, 429, 503))
def reply_to_look(parts: Parts, request: Request, look_id: LookId, new: NewLookWords) -> WordedReply:
    """Answer a question in words by rule from the report; ask the network what the report does not say."""
    look, model, box = _find_read(parts, look_id), model_of(parts), box_of(new.box)
    limit(parts, request)
    query = understand(new.text, model.prompts)
    question: Question | None
    if is_plain_prompt(new.text, query, model.prompts):
        made, question = WordedReply(film=look.film.source), new.as_prompt()
    elif query.topic in _NOT_OF_LOOKS:
        made, question = worded(look.film.source, Reply(text=_NOT_OF_LOOKS[query.topic])), None
    else:
        said = answer(query, look.film, box=box)
        made, question = worded(look.film.source, said), for_network(query, said, model.prompts, box=box)
    if question is not None:
        made.questions = _asked(parts, request, look, model, [question])
    audit(request, "question.asked", study=None, sop_instance_uid=look.film.source)
    return made


@router.get("/upload")
def show_upload(parts: Parts, request: Request) -> Response:
    """Show the page on which a file is chosen."""
    about = {
        "minutes": round(look_files.SECONDS / 60),
        "most_films": look_files.MOST,
        "most_mib": MOST_BYTES // request_body.MIB,
    }
    return render(parts, request, "upload.html", about)


@router.get("/upload/{look_id}")
def show_look_page(parts: Parts, request: Request, look_id: str) -> Response:
    """Show a film that is looked at, until it is removed."""
    look = parts.looks.find(look_id)
    if look is None:
        text = "The node has removed this film, or never had it. Choose its file again."
        return refuse(parts, request, 404, text, back="/upload")
    audit(request, "film.viewed", study=None, sop_instance_uid=look.film.source)
    film = _LookFilm(uid=look.id, status="read" if look.film.is_read else "not_processed")
    about = {
        "film": film,
        "films": (film,),
        "path": f"/api/v1/looks/{look.id}",
        "corrections": None,
        "forms": words.LOOK_FORMS,
        "shown": {film.uid: shown_film.show(look.film)},
        "words": words,
        "caution": shown_film.glossary().caution,
        "until": datetime.now(UTC) + timedelta(seconds=look.until - time.monotonic()),
        "most_films": look_files.MOST,
        **about_header(None if open_film.is_picture(look.path) else header_of(look.path)),
    }
    return render(parts, request, "look.html", about)


def _asked(
    parts: WebParts, request: Request, look: LookFile, model: OpenModel, questions: list[Question]
) -> list[dict[str, object]]:
    """Ask the network. Raises Problem."""
    try:
        with parts.looks.turn(), while_wanted(lambda: has_left(request.scope)):
            answers = open_film.ask(look.path, questions, reader=model.reader, prompts=model.prompts)
    except InputError as error:
        raise Problem(409, _without_path(error, look.path)) from error
    except FileNotFoundError as error:
        raise _forgotten() from error
    return [dict(answer_to_json(each)) for each in answers]


def _find(parts: WebParts, look_id: str) -> LookFile:
    look = parts.looks.find(look_id)
    if look is None:
        raise _forgotten()
    return look


def _find_read(parts: WebParts, look_id: str) -> LookFile:
    look = _find(parts, look_id)
    if not look.film.is_read:
        raise Problem(409, f"this film was not read ({look.film.reason})")
    return look


def _forgotten() -> Problem:
    return Problem(404, "the node does not know this film, or has forgotten it; send it again")


def _write(parts: WebParts, file: BinaryIO, part: bytes) -> None:
    """Write a part of the file. Raises Problem when the disk has no room."""
    try:
        if not parts.spool.has_room:
            raise Problem(503, "the disk is below its reserve; try again later")
        file.write(part)
    except OSError as error:
        raise Problem(503, "the file cannot be written; check the disk") from error


def _read(parts: WebParts, path: FilePath, model: OpenModel) -> Film:
    """Answer a file as a film. Raises Problem if it is none."""
    try:
        with parts.looks.turn():
            if open_film.is_picture(path):
                image = open_film.load(path, model.reader)
                return answer_picture(image, model.reader, model.prompts, source=derive_uid("look", path.stem))
            answered = answer_film(path, model.reader, model.prompts, character_set=parts.spool.character_set)
    except (InputError, Undecodable) as error:
        raise Problem(422, _without_path(error, path)) from error
    if answered.film is None:
        raise Problem(422, f"this object gets no answer ({answered.reason}); send a film")
    return answered.film


def _without_path(error: Exception, path: FilePath) -> str:
    return str(error).removeprefix(f"{path}: ")
