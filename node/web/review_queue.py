"""The review queue: films with a finding that the network is not sure of, or contradicts itself on.

A film enters the queue when its round ends, and stays until a radiologist has judged each such finding.
The list keeps it, marked as finished, until the next round ends.
STAT studies come first, then the film whose finding is most urgent (`outputs.vocabulary`), then the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

from models.contract import FindingState
from node.domain import Finding
from node.outputs import counted, vocabulary, wording
from node.store.worklist import ReviewRow, to_review
from node.web.parts import WebParts
from node.web.studies import ReceivedFilm, received_films

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
        if uid != row.film or film is None or received.rejected is not None:
            continue
        findings = counted.open_findings(film)
        yield ReviewFilm(
            study=row.study_uid,
            film=uid,
            received_at=received.instance.received_at,
            is_stat=row.is_stat,
            findings=tuple(map(_shown, findings)),
            cautions=tuple(wording.cautions(film)),
            finished=not findings,
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
