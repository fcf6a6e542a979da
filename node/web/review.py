"""The page of the review queue, its place in the interface for programs, and the way to the next film."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from node.dicom.dates import patient_age
from node.outputs import patient
from node.web import pages
from node.web.parts import Parts, WebParts
from node.web.patients import readable, sees_patients
from node.web.problems import responses
from node.web.review_queue import ReviewQueue, next_film, queue
from node.web.studies import header_of
from node.web.users import audit_list

MOST_LISTED: Final = 200
"""The most films that a page or an answer lists; the others follow as these are judged."""

api = APIRouter(prefix="/api/v1", tags=["studies"])
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmPatient:
    """The patient of a film by its header: name, ID, age at the time of the film, and that time; blank if not stated.

    Only the page shows it, to users who may see patients.
    """

    name: str
    patient_id: str
    age: str
    taken: str


@api.get("/review", responses=responses(422, 503))
def list_films_to_review(parts: Parts, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50) -> ReviewQueue:
    """List films with uncertain or contradicted findings, the most urgent first."""
    return queue(parts, limit=limit)


@router.get("/review")
def show_review(parts: Parts, request: Request) -> Response:
    """Show the review queue."""
    found = queue(parts, limit=MOST_LISTED, with_finished=True)
    sees = sees_patients(request, parts.settings.http)
    studies = {film.study for film in found.films}
    if sees:
        audit_list(request, "worklist.viewed", studies=len(studies))
    patients = {uid: _patients(parts, uid) for uid in studies} if sees else {}
    return pages.render(parts, request, "review.html", {"queue": found, "sees_patients": sees, "patients": patients})


@router.get("/review/next")
def show_next(
    parts: Parts,
    request: Request,
    study: Annotated[str, Query(max_length=64)] = "",
    film: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Redirect to the next film to review after a given one, or to the list if no other waits."""
    found = next_film(parts, after=(study, film))
    place = "/review" if found is None else f"/studies/{found.study}?film={found.film}"
    return RedirectResponse(place, status_code=303)


def _patients(parts: WebParts, study_uid: str) -> dict[str, FilmPatient]:
    """Return the patient of each film of a study, by SOP Instance UID, from its own header, because they may differ."""
    found = {}
    for instance in parts.spool.instances(study_uid):
        if (header := header_of(instance.path, character_set=parts.spool.character_set)) is not None:
            name, years = patient.whole_text(header, "PatientName"), patient_age(header).years
            taken = parts.patients.time_of(instance)
            found[instance.sop_instance_uid] = FilmPatient(
                name=readable(name, "PatientName"),
                patient_id=patient.whole_text(header, "PatientID"),
                age="" if years is None else f"{years} y",
                taken="" if taken is None else f"{taken:%Y-%m-%d %H:%M}",
            )
    return found
