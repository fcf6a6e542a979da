"""Looks up what the ledger holds of studies, from another process or a page, and without changing anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from node.config import StorageSettings
from node.domain import Delivery, DeliveryState
from node.errors import NodeError
from node.store import database
from node.store.pauses import Pause, last_taken, pauses
from node.store.reviews import ReviewRow
from node.store.tables import DELIVERIES, REVIEWS, STUDIES, TABLES, has_parked, is_undelivered

NOT_DELIVERED: Final = "not_delivered"
"""Of the worklist: finished studies of which no destination has taken anything."""
UNSENT: Final = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.PARKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A study's state; stage and reason if it is parked."""

    state: str
    stage: str | None
    reason: str | None
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery's state; since: when it was sent, first failed, or last found its destination down."""

    delivery: Delivery
    state: DeliveryState
    attempts: int
    reason: str | None
    created_at: datetime
    since: datetime
    awaits_commitment: bool
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorklistRows:
    """Some studies of the ledger, the one that changed last first.

    studies, deliveries, waits: by study UID; deliveries: how many by destination and state
    waits: by destination, why deliveries that are not sent wait or are parked; of several reasons the newest
    total: how many studies there are, these and all others that were asked for
    """

    studies: Mapping[str, StudyRow]
    deliveries: Mapping[str, Mapping[str, Mapping[str, int]]]
    waits: Mapping[str, Mapping[str, str]]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything that the tables hold of a study."""

    study: StudyRow | None = None
    deliveries: tuple[DeliveryRow, ...] = ()


def look_up(storage: StorageSettings, study_uid: str) -> Known:
    """Look a study up. Raises NodeError when the database cannot be read."""
    with reading(storage) as connection:
        if connection is None:
            return Known()
        columns = (STUDIES.c.state, STUDIES.c.stage, STUDIES.c.reason, STUDIES.c.changed_at)
        found = connection.execute(sa.select(*columns).where(STUDIES.c.uid == study_uid)).one_or_none()
        study = None
        if found is not None:
            state, stage, reason, changed_at = found
            study = StudyRow(state=state, stage=stage, reason=reason, changed_at=_moment(changed_at))
        rows = connection.execute(
            sa.select(DELIVERIES).where(DELIVERIES.c.study_uid == study_uid).order_by(DELIVERIES.c.created_at)
        )
        return Known(study=study, deliveries=tuple(_delivery_row(row) for row in rows))


def worklist(storage: StorageSettings, *, state: str = "", uid: str = "", limit: int, offset: int = 0) -> WorklistRows:
    """Look up the studies in a state, and whose UID contains some digits; blank for all.

    state: `parked` has those of which a delivery is parked, too; `not_delivered` is as in `tables.is_undelivered`
    Raises NodeError when the database cannot be read.
    """
    with reading(storage) as connection:
        if connection is None:
            return WorklistRows(studies={}, deliveries={}, waits={}, total=0)
        wanted = sa.and_(_is_in(state), STUDIES.c.uid.contains(uid, autoescape=True))
        total = connection.execute(sa.select(sa.func.count()).select_from(STUDIES).where(wanted)).scalar_one()
        columns = (STUDIES.c.uid, STUDIES.c.state, STUDIES.c.stage, STUDIES.c.reason, STUDIES.c.changed_at)
        newest = sa.select(*columns).where(wanted).order_by(STUDIES.c.changed_at.desc(), STUDIES.c.uid)
        studies = {
            found: StudyRow(state=now, stage=stage, reason=reason, changed_at=_moment(changed_at))
            for found, now, stage, reason, changed_at in connection.execute(newest.limit(limit).offset(offset))
        }
        counts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        groups = (DELIVERIES.c.study_uid, DELIVERIES.c.destination, DELIVERIES.c.state)
        of_these = sa.select(*groups, sa.func.count()).where(DELIVERIES.c.study_uid.in_(studies)).group_by(*groups)
        for study_uid, destination, delivered, count in connection.execute(of_these):
            counts[study_uid][destination][delivered] = count
        return WorklistRows(studies=studies, deliveries=counts, waits=_waits(connection, studies), total=total)


def _is_in(state: str) -> sa.ColumnElement[bool]:
    """Say of a study whether it is in a state of the worklist."""
    if state == "parked":
        return has_parked()
    if state == NOT_DELIVERED:
        return is_undelivered()
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
class Overview:
    """What the tables hold of all studies and deliveries.

    studies: number by state; deliveries: number by destination and state; oldest: when the oldest open study changed
    pauses, taken: of destinations, as in `pauses`
    """

    studies: Mapping[str, int] = field(default_factory=dict)
    deliveries: Mapping[tuple[str, str], int] = field(default_factory=dict)
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    taken: Mapping[str, float] = field(default_factory=dict)
    oldest: datetime | None = None

    @property
    def parked(self) -> int:
        """How many studies and deliveries wait for a person."""
        deliveries = sum(count for (_, state), count in self.deliveries.items() if state == DeliveryState.PARKED)
        return self.studies.get("parked", 0) + deliveries


def overview(storage: StorageSettings) -> Overview:
    """Count studies and deliveries, and look up which destinations are paused.

    Raises NodeError when the database cannot be read.
    """
    with reading(storage) as connection:
        if connection is None:
            return Overview()
        studies = connection.execute(sa.select(STUDIES.c.state, sa.func.count()).group_by(STUDIES.c.state))
        pair = (DELIVERIES.c.destination, DELIVERIES.c.state)
        deliveries = connection.execute(sa.select(*pair, sa.func.count()).group_by(*pair))
        is_open = STUDIES.c.state.in_(("receiving", "reading"))
        oldest = connection.execute(sa.select(sa.func.min(STUDIES.c.changed_at)).where(is_open)).scalar()
        return Overview(
            studies={state: count for state, count in studies},
            deliveries={(name, state): count for name, state, count in deliveries},
            pauses=pauses(connection),
            taken=last_taken(connection),
            oldest=None if oldest is None else _moment(oldest),
        )


def to_review(storage: StorageSettings) -> list[ReviewRow]:
    """Look up the films that wait for review: STAT first, then the most urgent, then the one that came first.

    Raises NodeError when the database cannot be read.
    """
    order = (REVIEWS.c.is_stat.desc(), REVIEWS.c.urgency, REVIEWS.c.received_at, REVIEWS.c.film)
    with reading(storage) as connection:
        if connection is None:
            return []
        return [ReviewRow(**row) for row in connection.execute(sa.select(REVIEWS).order_by(*order)).mappings()]


def fingerprint(storage: StorageSettings) -> str:
    """Return a text that changes whenever a study or a delivery does. Raises NodeError when it cannot be read."""
    with reading(storage) as connection:
        if connection is None:
            return ""
        studies = sa.select(STUDIES.c.state, sa.func.count(), sa.func.max(STUDIES.c.changed_at))
        deliveries = sa.select(DELIVERIES.c.destination, DELIVERIES.c.state, sa.func.count())
        rows = (
            *connection.execute(studies.group_by(STUDIES.c.state)),
            *connection.execute(deliveries.group_by(DELIVERIES.c.destination, DELIVERIES.c.state)),
        )
        return repr(sorted(map(tuple, rows)))


def study_of(storage: StorageSettings, sop_instance_uid: str) -> str | None:
    """Return the study of an output by its UID; None when no delivery of it is known.

    Raises NodeError when the database cannot be read.
    """
    with reading(storage) as connection:
        if connection is None:
            return None
        query = sa.select(DELIVERIES.c.study_uid).where(DELIVERIES.c.sop_instance_uid == sop_instance_uid)
        return connection.execute(query.limit(1)).scalar()


@contextmanager
def reading(storage: StorageSettings) -> Iterator[sa.Connection | None]:
    """Open the tables; None if the node has not created them yet. Raises NodeError when they cannot be read."""
    sql = database.open_ledger_for_reading(storage)
    if sql is None:
        yield None
        return
    try:
        with sql.connect() as connection:
            schema = database.SCHEMA if database.is_server(sql) else None
            names = sa.inspect(connection).get_table_names(schema=schema)
            yield connection if {table.name for table in TABLES.sorted_tables} <= set(names) else None
    except sa.exc.SQLAlchemyError as error:
        raise NodeError(f"the database cannot be read ({database.complaint(error)}); see `node doctor`") from error
    finally:
        sql.dispose()


def _delivery_row(row: sa.Row[tuple[object, ...]]) -> DeliveryRow:
    return DeliveryRow(
        delivery=Delivery(
            destination=row.destination,
            study_uid=row.study_uid,
            sop_instance_uid=row.sop_instance_uid,
            kind=row.kind,
            priority=row.priority,
        ),
        state=DeliveryState(row.state),
        attempts=row.attempts,
        reason=row.reason,
        created_at=_moment(row.created_at),
        since=_moment(row.since),
        awaits_commitment=bool(row.awaits_commitment),
        failures=row.commit_failures,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
