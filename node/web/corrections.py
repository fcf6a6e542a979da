"""Corrections over the interface for programs: what a reader accepts, rejects, moves, adds or rewords."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from node.character_sets import visible
from node.errors import InputError, RetryLater
from node.jobs import answered_film, correcting
from node.jobs.answered_film import AnsweredFilm, UnusableFilm
from node.store.correction import Correction, CorrectionKind
from node.store.received import Instance
from node.web.api import AddressedFilm, StudyUid, add_film_route
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.questions import Edges, box_of
from node.web.users import audit, name_of

router = APIRouter(prefix="/api/v1", tags=["corrections"])

_LONGEST_TEXT = 1000


class WhatIsCorrected(BaseModel):
    """What a reader corrects.

    kind says what else is needed: `accept` and `reject` need `prompt`, `add` also `box`, `move` also `tracking_uid` and
    `box`, `reword` also `text`; `withdraw` needs `withdraws` alone.
    """

    kind: CorrectionKind
    id: str = Field(default="", pattern=r"^([0-9a-f]{32})?$", description="random id from the client, for safe retries")
    prompt: str = Field(default="", max_length=64, pattern=r"^[a-z0-9_]*$", description="key of the finding")
    tracking_uid: str = Field(default="", max_length=64, pattern=r"^[0-9.]*$", description="UID of the moved box")
    box: Edges = None
    text: str = Field(default="", max_length=_LONGEST_TEXT, description="the sentence")
    withdraws: str = Field(default="", pattern=r"^([0-9a-f]{32})?$", description="id of an earlier correction")


class NewCorrection(WhatIsCorrected):
    """A correction to make.

    finish: whether all corrections of the study leave now, in one report; without it they leave
    `corrections.quiet_seconds` after the last one
    """

    finish: bool = False


class KnownCorrection(WhatIsCorrected, from_attributes=True):
    """A correction that was made; `at` is UTC, `by` the reader's name on this node."""

    at: datetime
    by: str


class Corrections(BaseModel):
    """The corrections of a film, oldest first, also those that were withdrawn."""

    corrections: list[KnownCorrection]


class Finished(BaseModel):
    """What leaves: how many corrections waited, and how many of them change the report."""

    corrections: int
    changes: int


@add_film_route(router, "GET", "/corrections", responses=responses(404, 409, 422))
def list_corrections(parts: Parts, request: Request, film: AddressedFilm) -> Corrections:
    """List what readers corrected on a film."""
    _answered(parts, film)
    audit(request, "corrections.viewed", study=film.study_uid, sop_instance_uid=film.sop_instance_uid)
    return Corrections(
        corrections=[KnownCorrection.model_validate(found) for found in answered_film.corrections_of(parts.spool, film)]
    )


@add_film_route(router, "POST", "/corrections", status_code=202, responses=responses(404, 409, 422, 503))
def correct(parts: Parts, request: Request, film: AddressedFilm, new: NewCorrection) -> KnownCorrection:
    """Correct the answer to a film: a new report and overlay will replace the older ones in the archive."""
    answered, uid = _answered(parts, film), film.sop_instance_uid
    made = _made(new, request, study_uid=film.study_uid, film=uid)
    try:
        correcting.correct(
            answered,
            made,
            is_last=new.finish,
            settings=parts.settings,
            spool=parts.spool,
            metrics=parts.metrics,
            prompts=parts.prompts(),
        )
    except InputError as error:
        audit(request, "correction.made", study=made.study_uid, sop_instance_uid=uid, outcome="refused")
        raise Problem(409, str(error)) from error
    except RetryLater:
        audit(request, "correction.made", study=made.study_uid, sop_instance_uid=uid, outcome="failed")
        raise
    audit(request, "correction.made", study=made.study_uid, sop_instance_uid=uid)
    if new.finish:
        audit(request, "corrections.finished", study=made.study_uid)
    return KnownCorrection.model_validate(made)


@router.post("/studies/{uid}/finish", status_code=202, responses=responses(404, 422, 503))
def finish(parts: Parts, request: Request, uid: StudyUid) -> Finished:
    """Let all corrections that wait in a study leave now, in one report; does nothing if none waits."""
    if not parts.spool.instances(uid):
        raise Problem(404, "this node has no such study")
    found = correcting.finish(uid, settings=parts.settings, spool=parts.spool)
    audit(request, "corrections.finished", study=uid)
    return Finished(corrections=len(found.corrections), changes=found.changes)


def _answered(parts: WebParts, film: Instance) -> AnsweredFilm:
    try:
        return answered_film.read_film(parts.spool, film)
    except UnusableFilm as error:
        raise Problem(409, str(error)) from error
    except InputError as error:
        raise Problem(404, str(error)) from error


def _made(new: NewCorrection, request: Request, *, study_uid: str, film: str) -> Correction:
    is_page = request.headers.get("X-Requested-From") == "page"
    box = box_of(new.box)
    try:
        return Correction(
            id=new.id or uuid.uuid4().hex,
            study_uid=study_uid,
            film=film,
            kind=new.kind,
            at=datetime.now(UTC),
            by=name_of(request),
            source="page" if is_page else "api",
            prompt=new.prompt,
            tracking_uid=new.tracking_uid,
            box=box,
            text=visible(new.text).strip(),
            withdraws=new.withdraws,
        )
    except ValueError as error:
        raise Problem(422, str(error)) from error
