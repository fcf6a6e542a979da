"""The pages for a film that is in no study: one to choose a file, one that shows it as the page of a study would."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from node.read import open_film
from node.web import look_files, looks, shown, words
from node.web.bodies import MIB
from node.web.look_files import LookFile
from node.web.pages import about_header, refuse, render
from node.web.parts import Parts
from node.web.studies import header_of
from node.web.users import audit

router = APIRouter(include_in_schema=False)

_MINUTES: Final = round(look_files.SECONDS / 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookFilm:
    """A film that is looked at, where the page of a study has a `StudyFilm`."""

    uid: str
    status: str


@router.get("/upload")
def show_upload(parts: Parts, request: Request) -> Response:
    """Show the page on which a file is chosen."""
    about = {"minutes": _MINUTES, "most_films": look_files.MOST, "most_mib": looks.MOST_BYTES // MIB}
    return render(parts, request, "upload.html", about)


@router.get("/upload/{look_id}")
def show_look(parts: Parts, request: Request, look_id: str) -> Response:
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
        "shown": {film.uid: shown.show(look.film)},
        "words": words,
        "until": datetime.now(UTC) + timedelta(seconds=look.until - time.monotonic()),
        "most_films": look_files.MOST,
        **_drawn(look),
    }
    return render(parts, request, "look.html", about)


def _drawn(look: LookFile) -> dict[str, object]:
    """Return how the film is drawn; a picture has no header."""
    return about_header(None if open_film.is_picture(look.path) else header_of(look.path))
