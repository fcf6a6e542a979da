"""Reading a study again, and deleting one, by hand: with a reason out of a closed list, which the audit trail keeps.

A reason is chosen, not typed: a typed text may name a patient, and no log may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from node.domain import is_uid
from node.errors import InputError
from node.jobs import study_actions
from node.jobs.study_actions import ReadingReason, RemovalReason
from node.store.ledger import open_ledger
from node.store.worklist import patients_of
from node.web import page
from node.web.api import StudyUid
from node.web.dependencies import Parts
from node.web.patients import readable, sees_patients
from node.web.problems import Problem, responses
from node.web.users import audit

_REMOVAL: Final[Mapping[RemovalReason, str]] = {
    "wrong_patient": "the films are of another patient than they say",
    "sent_by_mistake": "the films were sent here by mistake",
    "test": "the films were a test",
    "patient_request": "the patient asked for it",
    "other": "another reason",
}
_READING: Final[Mapping[ReadingReason, str]] = {
    "wrong_result": "the result looks wrong",
    "other_model": "another model reads films now",
    "corrected_at_sender": "the films were corrected where they came from",
    "other": "another reason",
}

_Count = Annotated[int, Field(ge=0, le=1_000_000)]

api = APIRouter(prefix="/api/v1", tags=["studies"])
router = APIRouter(include_in_schema=False)


class Removal(BaseModel):
    """Why a study is deleted; films, undelivered: numbers of its films and open deliveries, as the page showed them."""

    reason: RemovalReason
    films: _Count
    undelivered: _Count


class NewReading(BaseModel):
    """Why a study is read again."""

    reason: ReadingReason


@router.get("/studies/{uid}/manage")
def show_choices(parts: Parts, request: Request, uid: str) -> Response:
    """Show the deliveries that deleting a study would end, and ask for the reason."""
    instances = parts.spool.instances(uid) if is_uid(uid) else ()
    if not instances:
        return page.refuse(parts, request, 404, "This node has no such study. It may have been removed.")
    with open_ledger(parts.settings.storage) as ledger:
        waiting = study_actions.waiting(ledger, uid)
    sees = sees_patients(request, parts.settings.http)
    patients = patients_of(parts.settings.storage, [uid]).get(uid, []) if sees else []
    audit(request, "study.viewed", study=uid)
    about = {
        "uid": uid,
        "films": len(instances),
        "undelivered": len(waiting),
        "by_destination": Counter(delivery.destination for delivery in waiting),
        "patient": next(iter(patients), None),
        "readable": readable,
        "removal": _REMOVAL,
        "reading": _READING,
    }
    return page.render(parts, request, "manage.html", about)


@api.post("/studies/{uid}/delete", status_code=204, responses=responses(409, 422, 503))
def delete(parts: Parts, request: Request, uid: StudyUid, removal: Removal) -> None:
    """Delete a study. Deliveries that are not done end with it, if you state their number."""
    try:
        study_actions.delete_study(
            parts.settings, parts.spool, uid, films=removal.films, undelivered=removal.undelivered
        )
    except InputError as error:
        audit(request, "study.deleted", study=uid, outcome="refused", reason=removal.reason)
        raise Problem(409, str(error)) from error
    audit(request, "study.deleted", study=uid, reason=removal.reason)


@api.post("/studies/{uid}/read", status_code=204, responses=responses(409, 422, 503))
def read(parts: Parts, request: Request, uid: StudyUid, new: NewReading) -> None:
    """Read a study again. A film that the model in use has read keeps its answer, unless that is damaged.

    A new report replaces the last.
    """
    try:
        study_actions.read_again(parts.settings, parts.spool, uid)
    except InputError as error:
        audit(request, "study.reread", study=uid, outcome="refused", reason=new.reason)
        raise Problem(409, str(error)) from error
    audit(request, "study.reread", study=uid, reason=new.reason)
