"""Routes on one film, by its address: its study and SOP Instance UID, or that UID alone if one study has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from node.errors import Undecodable
from node.read.grayscale import Window
from node.store.received import Instance
from node.store.study_facts import film_in, films_of
from node.web import pictures
from node.web.api import PNG, FilmUid, StudyUid
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.users import audit, host_of, name_of

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])


def film_of(parts: WebParts, uid: str, *, study: str | None) -> Instance:
    """Return a received film. Raises Problem if there is none, or if no study is named and several have its UID."""
    if study is not None:
        if (found := film_in(parts.spool, study, uid)) is None:
            raise Problem(404, "this node has no such film in this study")
        return found
    films = films_of(parts.spool, uid)
    if len(films) > 1:
        studies = " and ".join(film.study_uid for film in films)
        raise Problem(
            409,
            f"{len(films)} studies have a film with this SOP Instance UID: {studies}; "
            "say which is meant by /api/v1/studies/{study}/films/{uid}/...",
        )
    if not films:
        raise Problem(404, "this node has no such film")
    return films[0]


def _in_study(parts: Parts, request: Request, study: StudyUid, uid: FilmUid) -> None:
    request.state.film = film_of(parts, uid, study=study)


def _by_uid(parts: Parts, request: Request, uid: FilmUid) -> None:
    request.state.film = film_of(parts, uid, study=None)


def _found(request: Request) -> Instance:
    return cast(Instance, getattr(request.state, "film", None))  # without one the address was refused


AddressedFilm: TypeAlias = Annotated[Instance, Depends(_found)]
"""The parameter of a route of `FilmRoutes` that gets the film."""


class FilmRoutes:
    """Routes on one film, each under both addresses of it."""

    def __init__(self, *, tag: str) -> None:
        self.routers = tuple(
            APIRouter(prefix=f"/api/v1/{path}", tags=[tag], dependencies=[Depends(find)])
            for path, find in (("studies/{study}/films/{uid}", _in_study), ("films/{uid}", _by_uid))
        )

    def add(self, method: Literal["GET", "POST"], path: str, **described: Any) -> Callable[[_Endpoint], _Endpoint]:  # noqa: ANN401  # as APIRouter.api_route
        """Serve a function under both addresses; described: see `APIRouter.api_route`."""

        def added(endpoint: _Endpoint) -> _Endpoint:
            for router in self.routers:
                router.add_api_route(path, endpoint, methods=[method], **described)
            return endpoint

        return added


routes = FilmRoutes(tag="films")


@routes.add("GET", "/picture", response_class=Response, responses={**PNG, **responses(404, 409, 422)})
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
