"""Films over the interface for programs: their address, by study and SOP Instance UID, and their pictures."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from node.errors import Undecodable
from node.read.grayscale import Window
from node.store.received import Instance
from node.store.study_facts import film_in
from node.web import pictures
from node.web.api import PNG, FilmUid, StudyUid
from node.web.parts import Parts
from node.web.problems import Problem, responses
from node.web.users import audit, host_of, name_of

FILM: Final = "/studies/{study}/films/{uid}"
"""The address of a film below `/api/v1`: a UID alone may be that of films in several studies."""

router = APIRouter(prefix="/api/v1", tags=["films"])


def film_of(parts: Parts, study: StudyUid, uid: FilmUid) -> Instance:
    """Return a received film. Raises Problem if there is none."""
    if (found := film_in(parts.spool, study, uid)) is None:
        raise Problem(404, "this node has no such film in this study")
    return found


AddressedFilm: TypeAlias = Annotated[Instance, Depends(film_of)]
"""The parameter of a route below `FILM` that gets the film."""


@router.get(f"{FILM}/picture", response_class=Response, responses={**PNG, **responses(404, 409, 422)})
def show_film(
    parts: Parts,
    request: Request,
    film: AddressedFilm,
    center: Annotated[float | None, Query(ge=-1e9, le=1e9, description="of the window, in modality values")] = None,
    width: Annotated[float | None, Query(gt=0, le=1e9, description="of the window, in modality values")] = None,
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
        raise Problem(409, "this film cannot be decoded; its report says why") from error
    uids = (film.study_uid, film.sop_instance_uid)
    if window is None or not parts.moved.take((name_of(request), host_of(request), *uids)):
        audit(request, "film.viewed", study=film.study_uid, sop_instance_uid=film.sop_instance_uid)
    return Response(shown.png, media_type="image/png", headers=_window_headers(shown))


def _window_headers(shown: pictures.ShownPicture) -> dict[str, str]:
    """Return the window, the range of values and which of them are dark: what a page needs to move the window."""
    low, high = shown.values
    return {
        "X-Window": f"{shown.window.center:.9g} {shown.window.width:.9g}",
        "X-Values": f"{low:.9g} {high:.9g}",
        "X-Dark": "high" if shown.is_dark_high else "low",
    }
