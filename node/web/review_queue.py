"""The review queue and its page: films with a finding that the network is not sure of, or contradicts itself on.

A film enters the queue when its round ends, and stays until a radiologist has judged each such finding.
The list keeps it, marked as finished, until the next round ends.
STAT studies come first, then the film whose finding is most urgent (`outputs.vocabulary`), then the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from models.contract import FindingState
from node.dicom.dates import patient_age
from node.domain import Finding
from node.outputs import ledger_rows, patient, vocabulary, wording
from node.store.worklist import ReviewRow, to_review
from node.web import page, words
from node.web.dependencies import Parts, WebParts
from node.web.patients import readable, sees_patients
from node.web.problems import responses
from node.web.studies import ReceivedFilm, header_of, received_films
from node.web.users import audit_list

MOST_LISTED: Final = 200
"""The most films that a page or an answer lists; the others follow as these are judged."""

api = APIRouter(prefix="/api/v1", tags=["studies"])
router = APIRouter(include_in_schema=False)

_BETWEEN: Final = "The probability is too low for present and too high to leave unreported."
_UNMEASURED: Final = "The threshold was not measured on such films."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFinding:
    """A finding that waits for a reader.

    prompt: its key; name: with its side; certainty: the network's probability in words
    state: indeterminate or uncalibrated; reasons: why it needs review, in sentences
    """

    prompt: str
    name: str
    certainty: str
    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFilm:
    """A film with findings to review, the most urgent first; cautions: doubts about the whole reading.

    finished: whether a reader has judged all of them since the last round; then `findings` is empty
    """

    study: str
    film: str
    received_at: datetime
    is_stat: bool
    findings: tuple[ReviewFinding, ...]
    cautions: tuple[str, ...]
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewQueue:
    """Films to review, the most urgent first; total: their number, with those beyond the limit of the list."""

    films: tuple[ReviewFilm, ...]
    total: int


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
        audit_list(request, studies=len(studies))
    patients = {uid: _patients(parts, uid) for uid in studies} if sees else {}
    return page.render(parts, request, "review.html", {"queue": found, "sees_patients": sees, "patients": patients})


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


def queue(parts: WebParts, *, limit: int, with_finished: bool = False) -> ReviewQueue:
    """Look up the films that wait; with_finished: also those that a reader judged since the last round.

    Raises NodeError when the database cannot be read.
    """
    rows, films_of = to_review(parts.settings.storage), _films_of(parts)
    films: list[ReviewFilm] = []
    for number, row in enumerate(rows):
        if len(films) == limit:
            return ReviewQueue(films=tuple(films), total=limit + len(rows) - number)
        films += (film for film in films_of(row) if with_finished or not film.finished)
    return ReviewQueue(films=tuple(films), total=len(films))


def next_film(parts: WebParts, *, after: tuple[str, str]) -> ReviewFilm | None:
    """Return the next film to review after one, and after the last one the first; None if no other waits.

    after: study and UID
    Raises NodeError when the database cannot be read.
    """
    rows, films_of = to_review(parts.settings.storage), _films_of(parts)
    place = next((number for number, row in enumerate(rows, 1) if (row.study_uid, row.film) == after), 0)
    others = (row for row in (*rows[place:], *rows[:place]) if (row.study_uid, row.film) != after)
    return next((film for row in others for film in films_of(row) if not film.finished), None)


def _films_of(parts: WebParts) -> Callable[[ReviewRow], Iterator[ReviewFilm]]:
    """Return the function that yields the film of a row; it reads each study once."""
    received_of = cache(lambda study_uid: received_films(study_uid, parts.spool, parts.prompts()))
    return lambda row: _waiting(row, received_of(row.study_uid))


def _waiting(row: ReviewRow, study: Iterable[ReceivedFilm]) -> Iterator[ReviewFilm]:
    """Yield the film of a row, unless it was rejected or removed meanwhile."""
    for received in study:
        uid, film = received.instance.sop_instance_uid, received.film
        if uid != row.film or received.status not in ("read", "not_processed", "answer_unreadable"):
            continue
        findings = () if film is None else ledger_rows.open_findings(film)
        yield ReviewFilm(
            study=row.study_uid,
            film=uid,
            received_at=received.instance.received_at,
            is_stat=row.is_stat,
            findings=tuple(map(_shown, findings)),
            cautions=(words.FAULTS[received.fault],) if film is None else tuple(wording.cautions(film)),
            finished=film is not None and not findings,
        )


def _shown(finding: Finding) -> ReviewFinding:
    against = wording.reason_of(finding.contradiction)
    reasons = [] if against is None else [against]
    if finding.state is FindingState.UNCALIBRATED:
        reasons.append(_UNMEASURED)
    return ReviewFinding(
        prompt=finding.prompt,
        name=wording.sided(vocabulary.name_of(finding), finding.side),
        certainty=wording.certainty(finding),
        state=finding.state.value,
        reasons=tuple(reasons or [_BETWEEN]),
    )
