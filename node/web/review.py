"""What a person should look at first: films with a finding that the network is not sure of, or contradicts itself on.

A film stays in the queue until a reader has said something about each such finding. STAT studies come first, then the
film whose finding is most urgent (`outputs.impression`), then the one that came first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from node.config import Settings
from node.domain import Film, Finding, FindingState
from node.errors import NodeError
from node.outputs import impression, wording
from node.store import lookup
from node.store.spool import Spool
from node.web import pages
from node.web.parts import Parts
from node.web.problems import responses
from node.web.studies import received_films

LOOKED_AT: Final = 200
"""The studies that changed last; an older one is not in the queue."""

_NEAR: Final = "The probability is near the threshold."
_UNMEASURED: Final = "The threshold was not measured on such films."

api = APIRouter(prefix="/api/v1", tags=["studies"])
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFinding:
    """A finding that waits for a reader.

    prompt: its key; name: with its side; certainty: the network's probability in words
    state: indeterminate or uncalibrated; reasons: why a person should look, in sentences
    """

    prompt: str
    name: str
    certainty: str
    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFilm:
    """A film with such findings, the most urgent first; cautions: what may be wrong with the whole reading."""

    study: str
    film: str
    received_at: datetime
    is_stat: bool
    findings: tuple[ReviewFinding, ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewQueue:
    """The films to look at, in the order in which to look at them.

    total: how many there are with the ones that are not listed; looked_at: how many studies were searched
    """

    films: tuple[ReviewFilm, ...]
    total: int
    looked_at: int


@api.get("/review", responses=responses(422, 503))
def list_films_to_review(parts: Parts, limit: Annotated[int, Query(ge=1, le=LOOKED_AT)] = 50) -> ReviewQueue:
    """List films with uncertain or contradicted findings, the most urgent first."""
    return queue(parts.settings, parts.spool, limit=limit)


@router.get("/review")
def show_review(parts: Parts, request: Request) -> Response:
    """Show the films to look at first."""
    try:
        found = queue(parts.settings, parts.spool, limit=LOOKED_AT)
    except NodeError as error:
        return pages.refuse(parts, request, 503, str(error))
    return pages.render(parts, request, "review.html", {"queue": found})


def queue(settings: Settings, spool: Spool, *, limit: int) -> ReviewQueue:
    """Search the studies that changed last. Raises NodeError when the database cannot be read."""
    listed = lookup.worklist(settings.storage, state="", uid="", limit=LOOKED_AT, offset=0)
    found = sorted((item for uid in listed.studies for item in _films(uid, settings, spool)), key=_place)
    films = tuple(film for _, film in found)
    return ReviewQueue(films=films[:limit], total=len(films), looked_at=len(listed.studies))


_Ranked = tuple[int, ReviewFilm]
"""A film with the urgency of its most urgent finding."""


def _place(ranked: _Ranked) -> tuple[bool, int, datetime, str]:
    urgency, film = ranked
    return not film.is_stat, urgency, film.received_at, film.film


def _films(study_uid: str, settings: Settings, spool: Spool) -> Iterator[_Ranked]:
    for received in received_films(study_uid, settings, spool):
        if received.film is None or received.rejected is not None or not (findings := _open(received.film)):
            continue
        yield (
            impression.urgency(findings[0]),
            ReviewFilm(
                study=study_uid,
                film=received.instance.sop_instance_uid,
                received_at=received.instance.received_at,
                is_stat=spool.is_stat(study_uid),
                findings=tuple(map(_shown, findings)),
                cautions=tuple(wording.cautions(received.film)),
            ),
        )


def _open(film: Film) -> Sequence[Finding]:
    """Return the findings that a person should look at and nobody has, the most urgent first."""
    waiting = (item for item in film.findings if item.state in wording.MARKS and item.reader is None)
    return impression.by_urgency(waiting)


def _shown(finding: Finding) -> ReviewFinding:
    against = wording.reason_of(finding.contradiction)
    reasons = [] if against is None else [against]
    if finding.state is FindingState.UNCALIBRATED:
        reasons.append(_UNMEASURED)
    return ReviewFinding(
        prompt=finding.prompt,
        name=wording.sided(wording.name_of(finding), finding.side),
        certainty=wording.certainty(finding),
        state=finding.state.value,
        reasons=tuple(reasons or [_NEAR]),
    )
