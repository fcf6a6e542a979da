"""The counted rows of a study: films by scanner and station, findings and assessments, and films that wait for review.

The review queue and its counts use the same rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from models.contract import FindingState
from node.dicom import attributes
from node.dicom.header_reading import header_of
from node.domain import Film, Finding
from node.metrics import ReviewReason
from node.outputs import vocabulary
from node.store.statistics import FilmRow, FindingRow, Rows
from node.store.study_facts import StudyFacts
from node.store.worklist import ReviewRow

_UNKNOWN: Final = "unknown"
_LONGEST: Final = 64


def rows_of(facts: StudyFacts, films: Iterable[Film], *, zone: ZoneInfo) -> Rows:
    """Count the films of a study; films: with their corrections, without rejected ones; zone: the site's time zone."""
    here = {item.sop_instance_uid: item for item in facts.instances}
    known = [(film, here[film.source]) for film in films if film.source in here]
    return Rows(
        films=tuple(
            _film_row(facts.uid, film, header_of(item.path) or Dataset(), received_at=item.received_at, zone=zone)
            for film, item in known
        ),
        findings=tuple(row for film, _ in known for row in _finding_rows(facts.uid, film)),
    )


def _film_row(study_uid: str, film: Film, header: Dataset, *, received_at: datetime, zone: ZoneInfo) -> FilmRow:
    return FilmRow(
        study_uid=study_uid,
        film=film.source,
        received_at=received_at.timestamp(),
        day=received_at.astimezone(zone).date().isoformat(),
        scanner=_name(header, "ManufacturerModelName"),
        station=station_label(_name(header, "StationName")),
        outcome="read" if film.reason is None else str(film.reason),
        has_present=bool(film.in_state(FindingState.PRESENT)),
        has_open=bool(open_findings(film)),
    )


def _finding_rows(study_uid: str, film: Film) -> Iterator[FindingRow]:
    for finding in film.findings:
        if finding.state.is_reported or finding.reader is not None:
            yield FindingRow(
                study_uid=study_uid,
                film=film.source,
                prompt=finding.prompt,
                state=str(finding.state),
                reader="" if finding.reader is None else str(finding.reader.what),
            )


def _name(header: Dataset, keyword: str) -> str:
    text = "".join(filter(str.isprintable, attributes.text(header, keyword)))
    return text.strip()[:_LONGEST] or _UNKNOWN


def station_label(name: str) -> str:
    """Return a station's label: a hash, because a text of a film may name a place or a person."""
    return _UNKNOWN if name == _UNKNOWN else f"station-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def open_findings(film: Film) -> Sequence[Finding]:
    """Return the findings that wait for a radiologist's review, most urgent first."""
    waiting = (item for item in film.findings if item.state in vocabulary.MARKS and item.reader is None)
    return vocabulary.by_urgency(waiting)


def review_reason(findings: Sequence[Finding]) -> ReviewReason:
    """Return the one reason by which a film with these findings is counted; a contradiction goes first."""
    if any(finding.contradiction is not None for finding in findings):
        return "contradicted"
    is_near = any(finding.state is FindingState.INDETERMINATE for finding in findings)
    return "near_threshold" if is_near else "uncalibrated"


def review_rows(facts: StudyFacts, films: Iterable[Film]) -> Iterator[ReviewRow]:
    """Yield a row for each film of a study that waits; films: with their corrections, without rejected ones."""
    received_at = {item.sop_instance_uid: item.received_at for item in facts.instances}
    for film in films:
        if film.source in received_at and (findings := open_findings(film)):
            yield ReviewRow(
                study_uid=facts.uid,
                film=film.source,
                reason=review_reason(findings),
                is_stat=facts.is_stat,
                urgency=vocabulary.urgency(findings[0]),
                received_at=received_at[film.source].timestamp(),
            )
