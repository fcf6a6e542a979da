"""The ledger's tables of counted films, so that statistics need not open studies.

A round rewrites the rows of its study, and they are deleted with their study. `studies.is_counted` says whether these
rows and the rows of films that wait for review exist; after a loss of the ledger the node's start adds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from node.config import StorageSettings
from node.store.database import Database
from node.store.ledger_queries import reading
from node.store.tables import COUNTED_FILMS, COUNTED_FINDINGS, DELIVERIES, PATIENTS, STUDIES, TAKEN
from node.store.worklist import ReviewRow, write_reviews


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRow:
    """A film that has its answer.

    received_at: seconds since the epoch; day: the same as a date of the site, YYYY-MM-DD
    scanner: Manufacturer's Model Name (0008,1090); station: label made of Station Name (0008,1010); or "unknown"
    outcome: `read`, or the reason why it was not read
    has_present, has_open: whether a finding is present, or waits for a radiologist
    """

    study_uid: str
    film: str
    received_at: float
    day: str
    scanner: str
    station: str
    outcome: str
    has_present: bool
    has_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding that is reported, or that a radiologist judged; reader: an `Assessment`, or ""."""

    study_uid: str
    film: str
    prompt: str
    state: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The counted rows of one study."""

    films: tuple[FilmRow, ...]
    findings: tuple[FindingRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmCount:
    """Number of films of one day, scanner, station and outcome, and how many of these have each property."""

    day: str
    scanner: str
    station: str
    outcome: str
    films: int
    present: int
    open: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount:
    """Number of films on which a finding has a state and a radiologist's assessment."""

    prompt: str
    state: str
    reader: str
    films: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnaround:
    """The time from a film's arrival to the first delivered result on its study after it."""

    day: str
    scanner: str
    station: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The ledger's counts of a range of days."""

    films: tuple[FilmCount, ...] = ()
    findings: tuple[FindingCount, ...] = ()
    turnarounds: tuple[Turnaround, ...] = ()


def write_counts(tables: Database, study_uid: str, rows: Rows) -> None:
    """Replace the rows of a known study. Raises SQLAlchemyError."""
    with tables.begin() as connection:
        connection.execute(sa.select(STUDIES.c.uid).where(STUDIES.c.uid == study_uid).with_for_update())
        _write(connection, study_uid, rows)


def fill_counts(tables: Database, study_uid: str, rows: Rows, waiting: Iterable[ReviewRow]) -> None:
    """Add the rows of a study and its films that wait for review, unless a round has done so meanwhile."""
    is_blank = (STUDIES.c.uid == study_uid) & ~STUDIES.c.is_counted
    with tables.begin() as connection:
        if connection.execute(sa.update(STUDIES).where(is_blank).values(is_counted=True)).rowcount:
            _write(connection, study_uid, rows)
            write_reviews(connection, study_uid, waiting)


def counted_studies(tables: Database) -> set[str]:
    """Return the studies that have been counted, also those without rows. Raises SQLAlchemyError."""
    with tables.connect() as connection:
        return set(connection.execute(sa.select(STUDIES.c.uid).where(STUDIES.c.is_counted)).scalars())


def _write(connection: sa.Connection, study_uid: str, rows: Rows) -> None:
    written: tuple[tuple[sa.Table, Sequence[FilmRow | FindingRow]], ...] = (
        (COUNTED_FILMS, rows.films),
        (COUNTED_FINDINGS, rows.findings),
    )
    for table, of_table in written:
        connection.execute(sa.delete(table).where(table.c.study_uid == study_uid))
        if values := [asdict(row) for row in of_table]:
            connection.execute(sa.insert(table), values)


def counts(storage: StorageSettings, *, first: str, last: str) -> Counts:
    """Count the films that arrived in a range of days, YYYY-MM-DD, both included.

    Raises NodeError when the database cannot be read.
    """
    with reading(storage) as connection:
        films, findings = COUNTED_FILMS.c, COUNTED_FINDINGS.c
        is_wanted = films.day.between(first, last)
        groups = (films.day, films.scanner, films.station, films.outcome)
        total = sa.func.count().label("films")
        present, unjudged = _number(films.has_present).label("present"), _number(films.has_open).label("open")
        of_films = connection.execute(sa.select(*groups, total, present, unjudged).where(is_wanted).group_by(*groups))
        kinds = (findings.prompt, findings.state, findings.reader)
        is_on = (findings.study_uid == films.study_uid) & (findings.film == films.film)
        of_findings = connection.execute(sa.select(*kinds, total).where(is_on, is_wanted).group_by(*kinds))
        return Counts(
            films=tuple(FilmCount(**row) for row in of_films.mappings()),
            findings=tuple(FindingCount(**row) for row in of_findings.mappings()),
            turnarounds=tuple(_turnarounds(connection, is_wanted)),
        )


def station_names(storage: StorageSettings) -> list[str]:
    """Return the Station Names of the newest film of each study. Raises NodeError when the database cannot be read."""
    query = sa.select(PATIENTS.c.station).where(PATIENTS.c.station != "").distinct()
    with reading(storage) as connection:
        return list(connection.execute(query).scalars())


def _number(column: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((column, 1), else_=0))


def _turnarounds(connection: sa.Connection, is_wanted: sa.ColumnElement[bool]) -> Iterable[Turnaround]:
    films, since = COUNTED_FILMS.c, DELIVERIES.c.since
    is_of = (DELIVERIES.c.study_uid == films.study_uid) & DELIVERIES.c.state.in_(TAKEN) & (since >= films.received_at)
    groups = (films.study_uid, films.film, films.day, films.scanner, films.station, films.received_at)
    query = sa.select(*groups, sa.func.min(since)).where(is_of, is_wanted).group_by(*groups)
    for _, _, day, scanner, station, received_at, delivered_at in connection.execute(query):
        yield Turnaround(day=day, scanner=scanner, station=station, seconds=delivered_at - received_at)
