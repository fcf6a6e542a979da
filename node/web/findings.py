"""The findings of all films as flat rows for programs that count them: one row per finding, in pages.

A cursor names the last study of a page, by the time of its last change. A study that changes is listed again, whole;
its new rows replace the old ones. A study is listed after its round is finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.requests import Request

from node.outputs import patient, vocabulary
from node.store import ledger_queries
from node.web.dependencies import Parts
from node.web.patients import sees_patients
from node.web.problems import responses
from node.web.studies import ReceivedFilm, header_of, received_films
from node.web.users import audit_list

_MOST_STUDIES: Final = 200
_SETTLED_SECONDS: Final = 2.0
"""A study that changed later may stand before one that the database does not show yet; the next page has it."""
_CURSOR: Final = r"^[0-9]{1,11}(\.[0-9]{1,9})?~[0-9.]{1,64}$"

router = APIRouter(prefix="/api/v1", tags=["findings"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding of a film. A film without findings has one row, whose state is the film's status.

    state: as in report.json; `absent` means not reported, and may have been missed
    probability: None if outputs state none; boxes: left, top, right, bottom in pixels of the stored film
    said, by, at: a reader's assessment, its author and time; None without one
    model, engine, prompts: those of the film's reading; blank if it was not read
    accession: None for a user who may not see patients
    """

    study: str
    series: str
    film: str
    received_at: datetime
    changed_at: datetime
    finding: str | None = None
    code: str | None = None
    name: str | None = None
    state: str
    side: str | None = None
    probability: float | None = None
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    said: str | None = None
    by: str | None = None
    at: datetime | None = None
    model: str
    engine: str
    prompts: str
    accession: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A page of rows; cursor: for the request of the next page, also days later; None if there are no studies yet."""

    rows: tuple[FindingRow, ...]
    cursor: str | None
    is_last: bool


@router.get("/findings", responses=responses(422, 503))
def list_findings(
    parts: Parts,
    request: Request,
    since: Annotated[AwareDatetime | None, Query(description="time of the earliest change, inclusive")] = None,
    cursor: Annotated[str | None, Query(pattern=_CURSOR, description="from the last page; since is ignored")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_STUDIES, description="number of studies in a page")] = 50,
) -> Findings:
    """List the findings of all films as rows, those of the study that changed first at the beginning.

    A study that changes comes again, whole. A film that was not read, or was rejected, has one row without a finding.
    """
    after = _after(cursor, since)
    settled = time.time() - _SETTLED_SECONDS
    studies = ledger_queries.finished_after(parts.settings.storage, after, before=settled, limit=limit)
    sees = sees_patients(request, parts.settings.http)
    if sees and studies:
        audit_list(request, studies=len(studies))
    rows = tuple(
        row
        for uid, changed_at in studies
        for received in received_films(uid, parts.spool, parts.prompts())
        for row in _rows(received, changed_at, character_set=parts.spool.character_set, sees=sees)
    )
    last = f"{studies[-1][1]!r}~{studies[-1][0]}" if studies else cursor
    return Findings(rows=rows, cursor=last, is_last=len(studies) < limit)


def _after(cursor: str | None, since: datetime | None) -> tuple[float, str]:
    """Return the last change, in seconds since the epoch, and the study behind which the page begins."""
    if cursor is not None:
        changed_at, _, study = cursor.partition("~")
        return float(changed_at), study
    return (0.0 if since is None else since.timestamp()), ""


def _rows(received: ReceivedFilm, changed_at: float, *, character_set: str, sees: bool) -> Iterator[FindingRow]:
    """Yield the rows of one received object that has, or is to have, an answer; sees: user may see patients."""
    if received.status == "left_alone":
        return
    header = header_of(received.instance.path, character_set=character_set)
    row = FindingRow(
        study=received.instance.study_uid,
        series="" if header is None else str(header.get("SeriesInstanceUID", "")),
        film=received.instance.sop_instance_uid,
        received_at=received.instance.received_at,
        changed_at=ledger_queries.moment(changed_at),
        state=received.status,
        model=str(received.reading.get("model", "")),
        engine=str(received.reading.get("engine", "")),
        prompts=str(received.reading.get("prompts", "")),
        accession=patient.whole_text(header, "AccessionNumber") if sees and header is not None else None,
    )
    if received.film is None or received.status != "read":
        yield row
        return
    for finding in received.film.findings:
        mark = finding.reader
        yield replace(
            row,
            finding=finding.prompt,
            code=f"{finding.code.value}^{finding.code.scheme}",
            name=vocabulary.name_of(finding),
            state=str(finding.state),
            side=finding.side,
            probability=finding.output_probability,
            boxes=tuple(found.box.edges for found in finding.boxes),
            said=None if mark is None else str(mark.what),
            by=None if mark is None else mark.by,
            at=None if mark is None else mark.at,
        )
