"""Read-only queries of the ledger, for another process or a page.

Which destinations accept nothing now, why, and since when, is derived from failing deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from node.config import StorageSettings
from node.domain import Delivery, DeliveryState
from node.errors import NodeError
from node.store import database
from node.store.tables import (
    DELIVERIES,
    IS_AWAITED,
    IS_TO_BE_SENT,
    REVIEWS,
    STUDIES,
    TABLES,
    TAKEN,
)

NOT_DELIVERED: Final = "not_delivered"
"""State in the worklist: finished studies of which no destination has taken any output."""
UNSENT: Final = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.PARKED)
STUDY: Final = (STUDIES.c.uid, STUDIES.c.state, STUDIES.c.stage, STUDIES.c.reason, STUDIES.c.changed_at)
"""The columns of `study_row`."""
_WAITS = (DELIVERIES.c.state == DeliveryState.WAITING) & (DELIVERIES.c.attempts > 0)
_IS_TRIED_AGAIN = (DELIVERIES.c.state == DeliveryState.SENDING) & (DELIVERIES.c.attempts > 1)
_FAILS = _WAITS | _IS_TRIED_AGAIN
_FAILED_AT = sa.func.coalesce(DELIVERIES.c.failed_at, DELIVERIES.c.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A study's state; stage and reason if it is parked."""

    state: str
    stage: str | None
    reason: str | None
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery's state.

    reason: the last one
    since: when it was sent, first failed, or last found its destination down
    failures: how often its destination reported that it cannot keep the output
    unclear: how often its destination's answer left open whether it took the output, since it was last parked
    """

    delivery: Delivery
    state: DeliveryState
    attempts: int
    reason: str | None
    created_at: datetime
    since: datetime
    awaits_commitment: bool
    failures: int
    unclear: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All rows about a study."""

    study: StudyRow | None = None
    deliveries: tuple[DeliveryRow, ...] = ()


def look_up(storage: StorageSettings, study_uid: str) -> Known:
    """Look a study up. Raises NodeError when the database cannot be read."""
    with reading(storage) as connection:
        found = connection.execute(sa.select(*STUDY).where(STUDIES.c.uid == study_uid)).one_or_none()
        of_study = sa.select(DELIVERIES).where(DELIVERIES.c.study_uid == study_uid).order_by(DELIVERIES.c.created_at)
        return Known(
            study=None if found is None else study_row(found),
            deliveries=tuple(map(delivery_row, connection.execute(of_study))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Figures of all studies and deliveries; a mapping leaves out zeros.

    studies, reviews: number of studies by state, of films that wait for review by reason
    deliveries: number by destination and state
    pauses: by destination that has accepted nothing since a failed delivery that is still open
    taken: by destination, when it last took an output, in seconds since the epoch; without those that took none
    oldest, last_change: when the oldest open study changed, and any study last
    oldest_deliveries: by destination, when the oldest unsent delivery was queued
    uncommitted: by destination, number of outputs that await commitment, and when the oldest was sent
    """

    studies: Mapping[str, int] = field(default_factory=dict)
    reviews: Mapping[str, int] = field(default_factory=dict)
    deliveries: Mapping[tuple[str, str], int] = field(default_factory=dict)
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    taken: Mapping[str, float] = field(default_factory=dict)
    oldest: datetime | None = None
    last_change: datetime | None = None
    oldest_deliveries: Mapping[str, datetime] = field(default_factory=dict)
    uncommitted: Mapping[str, tuple[int, datetime]] = field(default_factory=dict)

    @property
    def parked(self) -> int:
        """Number of studies and deliveries that wait for a person."""
        deliveries = sum(count for (_, state), count in self.deliveries.items() if state == DeliveryState.PARKED)
        return self.studies.get("parked", 0) + deliveries


def overview(storage: StorageSettings) -> Overview:
    """Look up the figures of all studies and deliveries. Raises NodeError when the database cannot be read."""
    with reading(storage) as connection:
        return overview_of(connection)


def overview_of(connection: sa.Connection) -> Overview:
    """Count studies, films that wait for review, and deliveries, with the times since when they wait."""
    count, name = sa.func.count(), DELIVERIES.c.destination
    studies = connection.execute(sa.select(STUDIES.c.state, count).group_by(STUDIES.c.state))
    reviews = connection.execute(sa.select(REVIEWS.c.reason, count).group_by(REVIEWS.c.reason))
    pair = (name, DELIVERIES.c.state)
    deliveries = connection.execute(sa.select(*pair, count).group_by(*pair))
    is_open = STUDIES.c.state.in_(("receiving", "reading"))
    oldest = connection.execute(sa.select(sa.func.min(STUDIES.c.changed_at)).where(is_open)).scalar()
    last_change = connection.execute(sa.select(sa.func.max(STUDIES.c.changed_at))).scalar()
    to_be_sent = sa.select(name, sa.func.min(DELIVERIES.c.created_at)).where(IS_TO_BE_SENT).group_by(name)
    taken = sa.select(name, sa.func.max(DELIVERIES.c.since)).where(DELIVERIES.c.state.in_(TAKEN)).group_by(name)
    awaited = sa.select(name, count, sa.func.min(DELIVERIES.c.since)).where(IS_AWAITED).group_by(name)
    return Overview(
        studies={state: number for state, number in studies},
        reviews={reason: number for reason, number in reviews},
        deliveries={(destination, state): number for destination, state, number in deliveries},
        pauses=dict(_pauses(connection)),
        taken={destination: at for destination, at in connection.execute(taken)},
        oldest=None if oldest is None else moment(oldest),
        last_change=None if last_change is None else moment(last_change),
        oldest_deliveries={destination: moment(at) for destination, at in connection.execute(to_be_sent)},
        uncommitted={destination: (number, moment(at)) for destination, number, at in connection.execute(awaited)},
    )


def fingerprint(storage: StorageSettings) -> str:
    """Return a text that changes with any study or delivery. Raises NodeError when the database cannot be read."""
    with reading(storage) as connection:
        studies = sa.select(STUDIES.c.state, sa.func.count(), sa.func.max(STUDIES.c.changed_at))
        deliveries = sa.select(DELIVERIES.c.destination, DELIVERIES.c.state, sa.func.count())
        rows = (
            *connection.execute(studies.group_by(STUDIES.c.state)),
            *connection.execute(deliveries.group_by(DELIVERIES.c.destination, DELIVERIES.c.state)),
        )
        return repr(sorted(map(tuple, rows)))


def finished_after(
    storage: StorageSettings, after: tuple[float, str], *, before: float, limit: int
) -> list[tuple[str, float]]:
    """Look up studies whose rounds are finished, and when they changed, the one that changed first at the beginning.

    after: a time in seconds since the epoch, and a study of that time; before: a time
    Raises NodeError when the database cannot be read.
    """
    changed, (since, uid) = STUDIES.c.changed_at, after
    is_after = (changed > since) | ((changed == since) & (STUDIES.c.uid > uid))
    query = sa.select(STUDIES.c.uid, changed).where(is_after, changed <= before)
    finished = query.where(STUDIES.c.state.in_(("finished", "parked"))).order_by(changed, STUDIES.c.uid).limit(limit)
    with reading(storage) as connection:
        return [(uid, at) for uid, at in connection.execute(finished)]


@contextmanager
def reading(storage: StorageSettings) -> Iterator[sa.Connection]:
    """Open the tables, empty ones if the node has not created them yet. Raises NodeError when they cannot be read."""
    sql = database.open_ledger_for_reading(storage)
    try:
        with sql.connect() as connection:
            schema = database.SCHEMA if database.is_server(sql) else None
            names = sa.inspect(connection).get_table_names(schema=schema)
            if {table.name for table in TABLES.sorted_tables} <= set(names):
                yield connection
                return
    except sa.exc.SQLAlchemyError as error:
        raise NodeError(f"the database cannot be read ({database.complaint(error)}); see `node doctor`") from error
    finally:
        sql.dispose()
    with sa.create_engine("sqlite://").begin() as connection:
        TABLES.create_all(connection)
        yield connection


def study_row(row: sa.Row[*tuple[Any, ...]]) -> StudyRow:
    """Return a row of the table of studies as a value."""
    return StudyRow(state=row.state, stage=row.stage, reason=row.reason, changed_at=moment(row.changed_at))


def delivery_in(row: sa.Row[tuple[object, ...]]) -> Delivery:
    """Return the delivery in a row of the table of deliveries."""
    return Delivery(**{each.name: getattr(row, each.name) for each in fields(Delivery)})


def delivery_row(row: sa.Row[tuple[object, ...]]) -> DeliveryRow:
    """Return a row of the table of deliveries as a value."""
    return DeliveryRow(
        delivery=delivery_in(row),
        state=DeliveryState(row.state),
        attempts=row.attempts,
        reason=row.reason,
        created_at=moment(row.created_at),
        since=moment(row.since),
        awaits_commitment=bool(row.awaits_commitment),
        failures=row.commit_failures,
        unclear=row.unclear_answers,
    )


def moment(seconds: float) -> datetime:
    """Return a time of the tables (seconds since the epoch) as a datetime."""
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Why a destination accepts nothing, and since when, in seconds since the epoch."""

    since: float
    reason: str


def _pauses(connection: sa.Connection) -> Iterator[tuple[str, Pause]]:
    """Yield the destinations that have accepted nothing since a failed delivery that is still open.

    A delivery counts by its first failed attempt, and by each attempt that found the destination down. An object that
    is rejected repeatedly, while others are accepted, does not pause its destination.
    """
    failed = sa.func.max(sa.case((_FAILS, DELIVERIES.c.since)))
    taken = sa.func.coalesce(sa.func.max(sa.case((DELIVERIES.c.state.in_(TAKEN), DELIVERIES.c.since))), 0.0)
    by_destination = sa.select(DELIVERIES.c.destination, failed, taken).group_by(DELIVERIES.c.destination)
    for name, failed_at, taken_at in connection.execute(by_destination.having(failed >= taken)).all():
        of_it = _FAILS & (DELIVERIES.c.destination == name)
        began = sa.select(sa.func.min(_FAILED_AT)).where(of_it, taken_at <= _FAILED_AT)
        reasons = sa.select(DELIVERIES.c.reason).where(of_it, DELIVERIES.c.reason.is_not(None))
        reason = connection.execute(reasons.order_by(DELIVERIES.c.since.desc()).limit(1)).scalar()
        yield name, Pause(since=connection.execute(began).scalar() or failed_at, reason=reason or "")
