"""The worklist: filtered and sorted pages of studies, patients to find them by, and films that wait for review.

Patients are stored here only if the settings let somebody see them (`HttpSettings.shows_patients`), and are deleted
with their study. After a loss of the ledger, the node's start adds them again. The end of a round rewrites which films
of its study wait for review; `statistics` restores those of a lost ledger.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

import sqlalchemy as sa

from models.contract import FindingState
from node.config import StorageSettings
from node.store.database import Database
from node.store.ledger_queries import NOT_DELIVERED, STUDY, UNSENT, StudyRow, reading, study_row
from node.store.tables import COUNTED_FINDINGS, DELIVERIES, PATIENTS, REVIEWS, STUDIES, has_parked, is_undelivered

CHANGED: Final = "changed"
URGENT: Final = "urgent"
CRITICAL: Final = "critical"
_SHORTEST_INSIDE: Final = 3
"""Minimum characters of a word that is searched inside words: every date contains any one digit."""
_ORDERS: Final[Mapping[str, sa.ColumnElement[str]]] = {
    "patient": PATIENTS.c.search,
    "id": PATIENTS.c.patient_id,
    "accession": PATIENTS.c.accession,
    "date": PATIENTS.c.study_date,
    "modality": PATIENTS.c.modality,
    "station": PATIENTS.c.station,
}
_REPORTED: Final = [str(state) for state in FindingState if state.is_reported]
PATIENT_ORDERS: Final = frozenset(_ORDERS)
"""Sort orders for users who may see patients; everybody may sort by `CHANGED` and `URGENT`."""
_CRITICAL_RANK: Final = 2
_LAST_RANK: Final = 18
_BETWEEN_WORDS: Final = re.compile(r"[\^=,;\\\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorklistFilter:
    """Filter and order of studies; blank: all.

    state: `parked` includes studies with a parked delivery; `not_delivered`: see `tables.is_undelivered`;
        `CRITICAL`: those with a present finding of urgency 1
    uid: digits that the UID contains
    finding: key of the prompt of a reported finding
    destination: that has deliveries; with `parked` and `not_delivered`, only deliveries to it count
    since, until: first and last study date, YYYYMMDD
    text: words that a patient, request, date, modality or station contains, or digits of the UID
    order: `CHANGED` (last change first), `URGENT` (most urgent finding first) or one of `PATIENT_ORDERS`;
        is_reversed: the other way round
    urgencies: by key of a finding's prompt, 1 for the most urgent (`outputs.vocabulary`)
    """

    state: str = ""
    uid: str = ""
    finding: str = ""
    destination: str = ""
    since: str = ""
    until: str = ""
    text: str = ""
    order: str = CHANGED
    is_reversed: bool = False
    urgencies: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorklistRows:
    """A page of studies in the requested order.

    studies, deliveries, waits: by study UID; deliveries: number by destination and state
    waits: by destination, why unsent deliveries wait or are parked; the newest of several reasons
    total: number of studies on all pages
    """

    studies: Mapping[str, StudyRow]
    deliveries: Mapping[str, Mapping[str, Mapping[str, int]]]
    waits: Mapping[str, Mapping[str, str]]
    total: int


def worklist(storage: StorageSettings, wanted: WorklistFilter, *, limit: int, offset: int = 0) -> WorklistRows:
    """Look up one page of the filtered studies. Raises NodeError when the database cannot be read."""
    with reading(storage) as connection:
        which = sa.and_(*_conditions(wanted))
        total = connection.execute(sa.select(sa.func.count()).select_from(STUDIES).where(which)).scalar_one()
        page = _ordered(sa.select(*STUDY).where(which), wanted).limit(limit).offset(offset)
        studies = {row.uid: study_row(row) for row in connection.execute(page)}
        counts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        groups = (DELIVERIES.c.study_uid, DELIVERIES.c.destination, DELIVERIES.c.state)
        of_these = sa.select(*groups, sa.func.count()).where(DELIVERIES.c.study_uid.in_(studies)).group_by(*groups)
        for study_uid, destination, delivered, count in connection.execute(of_these):
            counts[study_uid][destination][delivered] = count
        return WorklistRows(studies=studies, deliveries=counts, waits=_waits(connection, studies), total=total)


def patients_of(storage: StorageSettings, study_uids: Collection[str]) -> dict[str, list[PatientRow]]:
    """Look up the patients of studies, that of the newest film first. Raises NodeError as `worklist`."""
    found: dict[str, list[PatientRow]] = defaultdict(list)
    query = sa.select(PATIENTS).where(PATIENTS.c.study_uid.in_(study_uids)).order_by(PATIENTS.c.number)
    with reading(storage) as connection:
        for row in connection.execute(query).mappings():
            found[row["study_uid"]].append(PatientRow(**row))
    return dict(found)


def studies_of_patient(storage: StorageSettings, number: str, issuer: str, *, limit: int) -> list[str]:
    """Look up a patient's studies by ID and issuer, newest study date first. Raises NodeError as `worklist`."""
    is_named = (PATIENTS.c.patient_id == number) & (PATIENTS.c.issuer == issuer)
    newest = sa.func.max(PATIENTS.c.study_date).desc()
    query = sa.select(PATIENTS.c.study_uid).where(is_named).group_by(PATIENTS.c.study_uid).order_by(newest)
    with reading(storage) as connection:
        return list(connection.execute(query.limit(limit)).scalars())


def _conditions(wanted: WorklistFilter) -> Iterable[sa.ColumnElement[bool]]:
    """Yield the conditions of a filter, at least `true`."""
    yield _rank(wanted) == _CRITICAL_RANK if wanted.state == CRITICAL else _is_in(wanted.state, wanted.destination)
    if wanted.uid:
        yield STUDIES.c.uid.contains(wanted.uid, autoescape=True)
    if wanted.destination:
        of_study = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.study_uid == STUDIES.c.uid)
        yield of_study.where(DELIVERIES.c.destination == wanted.destination).exists()
    if wanted.finding:
        found = COUNTED_FINDINGS.c
        is_reported = (found.prompt == wanted.finding) & found.state.in_(_REPORTED)
        yield STUDIES.c.uid.in_(sa.select(found.study_uid).where(is_reported))
    named = list(map(_has_word, folded(wanted.text).split()))
    dates = [PATIENTS.c.study_date >= wanted.since] if wanted.since else []
    dates += [(PATIENTS.c.study_date != "") & (PATIENTS.c.study_date <= wanted.until)] if wanted.until else []
    if named or dates:
        is_named = STUDIES.c.uid.in_(sa.select(PATIENTS.c.study_uid).where(*named, *dates))
        is_uid = bool(named) and not dates and set(wanted.text.strip()) <= set("0123456789.")
        yield is_named | STUDIES.c.uid.contains(wanted.text.strip(), autoescape=True) if is_uid else is_named


def _has_word(word: str) -> sa.ColumnElement[bool]:
    """Return a condition: a patient's row contains a word; a short one must begin a word of it."""
    if len(word) < _SHORTEST_INSIDE:
        return (sa.literal(" ") + PATIENTS.c.search).contains(f" {word}", autoescape=True)
    return PATIENTS.c.search.contains(word, autoescape=True)


def _ordered(query: sa.Select[tuple[object, ...]], wanted: WorklistFilter) -> sa.Select[tuple[object, ...]]:
    """Sort studies; those without the sorted value come last, equal ones newest first."""
    newest = STUDIES.c.changed_at.desc()
    if wanted.order == URGENT:
        return query.order_by(sa.func.coalesce(_rank(wanted), _LAST_RANK), newest, STUDIES.c.uid)
    if wanted.order not in PATIENT_ORDERS:
        return query.order_by(STUDIES.c.changed_at if wanted.is_reversed else newest, STUDIES.c.uid)
    is_first = (PATIENTS.c.study_uid == STUDIES.c.uid) & (PATIENTS.c.number == 0)
    value = sa.func.coalesce(_ORDERS[wanted.order], "")
    joined = query.select_from(STUDIES.outerjoin(PATIENTS, is_first))
    return joined.order_by(value == "", value.desc() if wanted.is_reversed else value, newest, STUDIES.c.uid)


def _rank(wanted: WorklistFilter) -> sa.ScalarSelect[int]:
    """Return the rank of a study's first finding: by urgency, then present before possible; or NULL."""
    found = COUNTED_FINDINGS.c
    last = sa.literal(_LAST_RANK // 2)
    ranks = [(found.prompt == key, value) for key, value in wanted.urgencies.items()]
    urgency = sa.case(*ranks, else_=last) if ranks else last
    rank = 2 * urgency + sa.case((found.state == str(FindingState.PRESENT), 0), else_=1)
    is_of_study = (found.study_uid == STUDIES.c.uid) & found.state.in_(_REPORTED)
    return sa.select(sa.func.min(rank)).where(is_of_study).scalar_subquery()


def _is_in(state: str, destination: str) -> sa.ColumnElement[bool]:
    """Return a condition: a study is in a state of the worklist."""
    if state == "parked":
        return has_parked(destination)
    if state == NOT_DELIVERED:
        return is_undelivered(destination)
    return STUDIES.c.state == state if state else sa.true()


def _waits(connection: sa.Connection, studies: Iterable[str]) -> dict[str, dict[str, str]]:
    groups = (DELIVERIES.c.study_uid, DELIVERIES.c.destination, DELIVERIES.c.reason)
    is_unsent = sa.and_(DELIVERIES.c.state.in_(UNSENT), DELIVERIES.c.reason.is_not(None))
    of_these = sa.select(*groups).where(DELIVERIES.c.study_uid.in_(studies), is_unsent).group_by(*groups)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for study_uid, destination, reason in connection.execute(of_these.order_by(sa.func.max(DELIVERIES.c.since))):
        found[study_uid][destination] = reason
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientRow:
    """The patient and request of some films of a study, as valid DICOM values or "".

    number: 0 for those of the newest film
    study_date: YYYYMMDD
    search: every value, `folded`; it begins with the name
    """

    study_uid: str
    number: int
    name: str
    patient_id: str
    issuer: str
    accession: str
    study_date: str
    modality: str
    station: str
    search: str


def set_patients(tables: Database, study_uid: str, rows: Iterable[PatientRow]) -> None:
    """Replace the patients of a study; does nothing for an unknown study. Raises SQLAlchemyError."""
    is_of = STUDIES.c.uid == study_uid
    with tables.begin() as connection:
        if connection.execute(sa.select(STUDIES.c.uid).where(is_of).with_for_update()).first() is None:
            return
        connection.execute(sa.delete(PATIENTS).where(PATIENTS.c.study_uid == study_uid))
        if values := [asdict(row) for row in rows]:
            connection.execute(sa.insert(PATIENTS), values)


def has_patient(tables: Database, study_uid: str) -> bool:
    """Whether a study's patients are recorded. Raises SQLAlchemyError."""
    query = sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == study_uid)
    with tables.connect() as connection:
        return connection.execute(query.limit(1)).first() is not None


def without_patients(tables: Database) -> list[str]:
    """Return the studies whose patients are not recorded, newest first. Raises SQLAlchemyError."""
    is_unnamed = ~sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == STUDIES.c.uid).exists()
    query = sa.select(STUDIES.c.uid).where(is_unnamed).order_by(STUDIES.c.changed_at.desc())
    with tables.connect() as connection:
        return list(connection.execute(query).scalars())


def forget_patients(tables: Database) -> int:
    """Delete all patients, because the settings let nobody see them now; return the number of rows."""
    with tables.begin() as connection:
        return connection.execute(sa.delete(PATIENTS)).rowcount


def folded(text: str) -> str:
    """Return a text as it is searched: lower case without accents, words separated by one blank."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(character for character in plain if not unicodedata.combining(character))
    return _BETWEEN_WORDS.sub(" ", bare).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRow:
    """A film that waits for review.

    film: its SOP Instance UID; reason: one of `metrics.ReviewReason`
    urgency: that of its most urgent waiting finding (`outputs.vocabulary`)
    received_at: seconds since the epoch
    """

    study_uid: str
    film: str
    reason: str
    is_stat: bool
    urgency: int
    received_at: float


def write_reviews(connection: sa.Connection, study_uid: str, rows: Iterable[ReviewRow]) -> None:
    """Replace the rows of a study; the caller has locked the study's row."""
    connection.execute(sa.delete(REVIEWS).where(REVIEWS.c.study_uid == study_uid))
    if values := [asdict(row) for row in rows]:
        connection.execute(sa.insert(REVIEWS), values)


def to_review(storage: StorageSettings) -> list[ReviewRow]:
    """Look up the films that wait for review: STAT first, then the most urgent, then the earliest.

    Raises NodeError when the database cannot be read.
    """
    order = (REVIEWS.c.is_stat.desc(), REVIEWS.c.urgency, REVIEWS.c.received_at, REVIEWS.c.film, REVIEWS.c.study_uid)
    with reading(storage) as connection:
        return [ReviewRow(**row) for row in connection.execute(sa.select(REVIEWS).order_by(*order)).mappings()]
