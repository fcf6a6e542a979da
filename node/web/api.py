"""The interface for programs, `/api/v1`: worklist, studies, outputs, retry, what changes, and routes on one film.

A film is addressed by its study and SOP Instance UID, or by that UID alone if one study has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from node.errors import InputError, NodeError, Undecodable
from node.jobs import study_actions
from node.output_kinds import MESSAGES
from node.read.grayscale import Window
from node.store import ledger_queries
from node.store.received import Instance
from node.store.study_facts import film_in, films_of
from node.store.worklist import WorklistFilter
from node.web import pictures, studies
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.studies import StudyDetail, Worklist
from node.web.study_outputs import find_output
from node.web.users import audit, host_of, name_of

UID_PATTERN: Final = r"^[0-9]+(\.[0-9]+)*$"

StudyUid = Annotated[str, Path(pattern=UID_PATTERN, max_length=64, description="Study Instance UID")]
FilmUid = Annotated[str, Path(pattern=UID_PATTERN, max_length=64, description="SOP Instance UID of a received film")]
FilmStudy = Annotated[str, Field(pattern=UID_PATTERN, max_length=64, description="Study Instance UID of the film")]
OutputUid = Annotated[str, Path(pattern=UID_PATTERN, max_length=64, description="SOP Instance UID of an output")]
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])
State = Literal["", "receiving", "reading", "finished", "not_delivered", "parked"]

_MOST_LISTED: Final = 200
_POLL_SECONDS: Final = 1.0
_ASKED: Final = ("questions", "sent")
_ALIVE_POLLS: Final = 2
"""Interval of keep-alives on a stream: only a failed write shows that its page was closed."""
PNG: Final[dict[int | str, dict[str, object]]] = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}, "description": "the picture"}
}
_OBJECT: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("application/dicom", *(message.media_type for message in MESSAGES.values()))
        },
        "description": "the bytes that were written",
    }
}
_STREAM: Final[dict[int | str, dict[str, object]]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "server-sent events"}
}


class Queued(BaseModel):
    """How many pieces of parked work were queued again."""

    queued: int


router = APIRouter(prefix="/api/v1", tags=["studies"])


@router.get("/studies", responses=responses(422, 503))
def list_studies(
    parts: Parts,
    state: State = "",
    q: Annotated[str, Query(pattern=r"^[0-9.]*$", max_length=64, description="digits of the UID")] = "",
    finding: Annotated[str, Query(pattern=r"^[a-z0-9_]*$", max_length=64, description="key of a prompt")] = "",
    destination: Annotated[str, Query(max_length=200, description="destination with deliveries of the study")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Worklist:
    """List studies, the one that changed last first. `parked`: of which the study or a delivery is parked.

    finding: that is reported on it; with a destination, `parked` and `not_delivered` are about its deliveries alone.
    """
    wanted = WorklistFilter(state=state, uid=q, finding=finding, destination=destination)
    return studies.worklist(parts, wanted, limit=limit, offset=offset)


@router.get("/studies/{uid}", responses=responses(404, 422, 503))
def show_study(parts: Parts, request: Request, uid: StudyUid) -> StudyDetail:
    """Return everything that is known of a study."""
    known = studies.study(parts, uid)
    if known is None:
        raise Problem(404, "this node knows no such study")
    audit(request, "study.viewed", study=uid)
    return known[0]


@router.post("/studies/{uid}/retry", status_code=202, responses=responses(403, 404, 422, 503))
def retry_study(parts: Parts, request: Request, uid: StudyUid) -> Queued:
    """Queue the parked work of a study again."""
    try:
        count = study_actions.retry(parts.settings, [uid])[uid]
    except InputError as error:
        raise Problem(404, "this node has no such study") from error
    audit(request, "study.retried", study=uid)
    return Queued(queued=count)


@router.get("/outputs/{uid}", response_class=Response, responses={**_OBJECT, **responses(404, 410, 422)})
def show_output(parts: Parts, request: Request, uid: OutputUid) -> Response:
    """Return an output, byte for byte as it was written."""
    found = find_output(parts.spool, uid)
    if found is None:
        raise Problem(404, "this node knows no such output")
    output, content = found
    if content is None:
        raise Problem(410, "this output is removed or damaged on disk; the archive may have it")
    audit(request, "output.downloaded", study=output.study_uid, sop_instance_uid=uid)
    message = MESSAGES.get(output.kind)
    name = f"{uid}.{message.ending if message else f'{output.kind}.dcm'}"
    return Response(
        content,
        media_type=message.media_type if message else "application/dicom",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def _place(parts: Parts) -> AsyncIterator[None]:
    """Take one of the places of clients that watch, until the client goes. Raises Problem if none is free."""
    try:
        parts.streams.acquire_nowait()
    except anyio.WouldBlock as error:
        detail = "too many pages watch the worklist; close one"
        raise Problem(503, detail, headers={"Retry-After": "5"}) from error
    try:
        yield
    finally:
        parts.streams.release()


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={**_STREAM, **responses(422, 503)},
    dependencies=[Depends(_place)],
)
async def watch(
    parts: Parts,
    request: Request,
    study: Annotated[str | None, Query(pattern=UID_PATTERN, max_length=64, description="whose questions")] = None,
) -> Response:
    """Send the event `studies` whenever the worklist has changed, or something was asked about a study."""
    return StreamingResponse(_changes(parts, request, study), media_type="text/event-stream")


async def _changes(parts: WebParts, request: Request, study: str | None) -> AsyncIterator[str]:
    """Yield an event when something has changed, and a comment now and then, so that a lost client is noticed."""
    known, polls = None, 0
    while not await request.is_disconnected():
        try:
            found: str | None = await anyio.to_thread.run_sync(_fingerprint, parts, study)
        except NodeError:  # the page goes on when the database is back
            found = known
        if found != known:
            known = found
            yield "event: studies\ndata: changed\n\n"
        elif polls % _ALIVE_POLLS == 0:
            yield ": alive\n\n"
        polls += 1
        await asyncio.sleep(_POLL_SECONDS)


def _fingerprint(parts: WebParts, study: str | None) -> str:
    known = ledger_queries.fingerprint(parts.settings.storage)
    return known if study is None else f"{known} {parts.spool.stamp(study, _ASKED)}"


def film_of(parts: Parts, uid: FilmUid, study: FilmStudy = "") -> Instance:
    """Return a received film. Raises Problem if there is none, or if no study is named and several have its UID."""
    if study:
        if (found := film_in(parts.spool, study, uid)) is None:
            raise Problem(404, "this node has no such film in this study")
        return found
    films = films_of(parts.spool, uid)
    if len(films) > 1:
        named = " and ".join(film.study_uid for film in films)
        raise Problem(
            409,
            f"{len(films)} studies have a film with this SOP Instance UID: {named}; "
            "say which is meant by /api/v1/studies/{study}/films/{uid}/...",
        )
    if not films:
        raise Problem(404, "this node has no such film")
    return films[0]


AddressedFilm: TypeAlias = Annotated[Instance, Depends(film_of)]
"""The parameter of a route of `add_film_route` that gets the film."""


def add_film_route(
    router: APIRouter,
    method: Literal["GET", "POST"],
    path: str,
    **described: Any,  # noqa: ANN401  # as APIRouter.api_route
) -> Callable[[_Endpoint], _Endpoint]:
    """Serve a function under both addresses of a film; described: see `APIRouter.api_route`."""

    def added(endpoint: _Endpoint) -> _Endpoint:
        for film in ("/studies/{study}/films/{uid}", "/films/{uid}"):
            router.add_api_route(f"{film}{path}", endpoint, methods=[method], **described)
        return endpoint

    return added


@add_film_route(router, "GET", "/picture", response_class=Response, responses={**PNG, **responses(404, 409, 422)})
def show_film(
    parts: Parts,
    request: Request,
    film: AddressedFilm,
    center: Annotated[float | None, Query(ge=-1e9, le=1e9, description="window center, in modality values")] = None,
    width: Annotated[float | None, Query(gt=0, le=1e9, description="window width, in modality values")] = None,
    invert: bool = False,
    size: Annotated[int | None, Query(ge=pictures.SMALLEST, le=pictures.LARGEST, description="longer side")] = None,
) -> Response:
    """Draw a film in stored orientation. Without `size` it has the columns and rows of the stored film."""
    if (center is None) != (width is None):
        raise Problem(422, "center and width make a window together; give both or neither")
    window = None if center is None or width is None else Window(center=center, width=width)
    try:
        shown = parts.pictures.draw(film, window=window, is_inverted=invert, longest=size)
    except Undecodable as error:
        raise Problem(409, "this film cannot be shown; its report says why") from error
    uids = (film.study_uid, film.sop_instance_uid)
    if window is None or not parts.moved.take((name_of(request), host_of(request), *uids)):
        audit(request, "film.viewed", study=film.study_uid, sop_instance_uid=film.sop_instance_uid)
    return Response(shown.png, media_type="image/png", headers=_window_headers(shown))


def _window_headers(shown: pictures.ShownPicture) -> dict[str, str]:
    """Return the window, the range of values and which of them are dark: for a page that moves the window."""
    low, high = shown.values
    return {
        "X-Window": f"{shown.window.center:.9g} {shown.window.width:.9g}",
        "X-Values": f"{low:.9g} {high:.9g}",
        "X-Dark": "high" if shown.is_dark_high else "low",
    }
