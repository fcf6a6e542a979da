"""The ledger: tables of studies and deliveries with their states and reasons.

Pages and commands look things up here; the node records deliveries here. A lost ledger is rebuilt: the spool has the
received objects and outputs, the durable executor has the open work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from node.config import StorageSettings
from node.domain import CRITICAL, Delivery, DeliveryState, StudyState
from node.store import database, files
from node.store.database import Database
from node.store.ledger_queries import DeliveryRow, Overview, delivery_in, delivery_row, overview_of
from node.store.tables import (
    CLAIMS,
    COUNTED_FILMS,
    COUNTED_FINDINGS,
    DELIVERIES,
    IS_AWAITED,
    IS_TO_BE_SENT,
    PATIENTS,
    REVIEWS,
    STUDIES,
    TABLES,
    TAKEN,
    TRANSACTIONS,
    is_undelivered,
)
from node.store.worklist import ReviewRow, write_reviews

_TAKEN: Final = frozenset(TAKEN)
_OVER: Final = _TAKEN | {DeliveryState.ABANDONED}
_IS_OPEN: Final = DELIVERIES.c.state.not_in(_OVER) | IS_AWAITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Work that waits for a person."""

    study: str
    stage: str
    reason: str


class Ledger:
    """States of studies and deliveries in one database. Every method raises SQLAlchemyError without its database."""

    def __init__(self, sql: Database) -> None:
        """Use a database that may not exist yet: the tables are created on first use."""
        self._sql, self._has_tables = sql, False

    @property
    def tables(self) -> Database:
        """The database, with its tables."""
        if not self._has_tables:
            database.create(self._sql, TABLES)
            self._has_tables = True
        return self._sql

    def close(self) -> None:
        """Close every connection."""
        self._sql.dispose()

    def set_study(self, uid: str, state: StudyState, *, stage: str | None = None, reason: str | None = None) -> None:
        """Record a study's state; stage and reason: where and why it was parked."""
        values = {"state": state, "stage": stage, "reason": reason, "changed_at": _now()}
        with self.tables.begin() as connection:
            database.upsert(connection, STUDIES, {"uid": uid, **values}, changed=values)

    def set_reviews(self, uid: str, rows: Iterable[ReviewRow]) -> None:
        """Replace the records of a known study's films that wait for review."""
        with self.tables.begin() as connection:
            known = sa.update(STUDIES).where(STUDIES.c.uid == uid).values(is_counted=True)
            connection.execute(known)  # locks the study's row
            write_reviews(connection, uid, rows)

    def unpark_study(self, uid: str) -> None:
        """Set a parked study back to receiving; does nothing if it is no longer parked."""
        is_parked = (STUDIES.c.uid == uid) & (STUDIES.c.state == "parked")
        with self.tables.begin() as connection:
            waiting = {"state": "receiving", "stage": None, "reason": None, "changed_at": _now()}
            connection.execute(sa.update(STUDIES).where(is_parked).values(waiting))

    def study_state(self, uid: str) -> str | None:
        """Return a study's state, or None when it is unknown."""
        with self.tables.connect() as connection:
            return connection.execute(sa.select(STUDIES.c.state).where(STUDIES.c.uid == uid)).scalar()

    def add_finished_study(self, uid: str) -> None:
        """Record a study as finished; a known study keeps its state."""
        values = {"uid": uid, "state": "finished", "stage": None, "reason": None, "changed_at": _now()}
        with self.tables.begin() as connection:
            database.insert(connection, STUDIES, values)

    def studies(self) -> set[str]:
        """Return every known study."""
        with self.tables.connect() as connection:
            return set(connection.execute(sa.select(STUDIES.c.uid)).scalars())

    def parked_at(self, uid: str) -> float | None:
        """Return when a study was parked, in seconds since the epoch; None when it is not parked."""
        query = sa.select(STUDIES.c.changed_at).where((STUDIES.c.uid == uid) & (STUDIES.c.state == "parked"))
        with self.tables.connect() as connection:
            return connection.execute(query).scalar()

    def finished_studies(self, *, before: datetime) -> list[str]:
        """Return the studies that were finished before a time."""
        is_old = (STUDIES.c.state == "finished") & (STUDIES.c.changed_at < before.timestamp())
        with self.tables.connect() as connection:
            return list(connection.execute(sa.select(STUDIES.c.uid).where(is_old)).scalars())

    def claim(self, study_uid: str, *, holder: str, instead_of: str | None = None) -> str:
        """Give a workflow exclusive use of a study unless another workflow has it; returns the holder.

        instead_of: a holder that has ended and loses the study; of several workflows that ask at once, one gets it
        """
        row, of_study = {"study_uid": study_uid, "holder": holder}, CLAIMS.c.study_uid == study_uid
        is_over = of_study & (CLAIMS.c.holder == instead_of)
        with self.tables.begin() as connection:
            database.upsert(connection, CLAIMS, row, changed={"study_uid": study_uid})  # locks the row
            connection.execute(sa.update(CLAIMS).where(is_over).values(holder=holder))
            return str(connection.execute(sa.select(CLAIMS.c.holder).where(of_study)).scalar_one())

    def add_delivery(self, delivery: Delivery) -> None:
        """Record a delivery as waiting; a known delivery keeps its state."""
        with self.tables.begin() as connection:
            database.insert(connection, DELIVERIES, _row(delivery, DeliveryState.WAITING, attempts=0))

    def set_delivery(
        self,
        delivery: Delivery,
        state: DeliveryState,
        *,
        attempts: int,
        reason: str | None = None,
        is_down: bool = False,
        is_unclear: bool = False,
    ) -> bool:
        """Record a delivery's state, unless it is abandoned; returns whether it was recorded.

        is_down: the attempt failed because its destination is down
        is_unclear: its destination's answer left open whether it took the output
        """
        with self.tables.begin() as connection:
            return _change(
                connection,
                delivery,
                state,
                attempts=attempts,
                reason=reason,
                is_down=is_down,
                is_unclear=is_unclear,
            )

    def unpark_delivery(self, delivery: Delivery) -> None:
        """Set a parked delivery back to waiting; does nothing if it is no longer parked."""
        is_parked = (DELIVERIES.c.id == delivery.id) & (DELIVERIES.c.state == DeliveryState.PARKED)
        with self.tables.begin() as connection:
            waiting = {"state": DeliveryState.WAITING, "attempts": 0, "reason": None, "failed_at": None}
            connection.execute(sa.update(DELIVERIES).where(is_parked).values(waiting))

    def set_sent(self, delivery: Delivery, *, attempts: int, awaits_commitment: bool = False) -> bool:
        """Mark a delivery as sent; return whether it was its study's last (true for one of two at the same time).

        awaits_commitment: whether the destination has still to commit to the output
        """
        of_study = sa.select(DELIVERIES.c.state).where(DELIVERIES.c.study_uid == delivery.study_uid)
        with self.tables.begin() as connection:
            _lock(connection, DELIVERIES.c.study_uid == delivery.study_uid)
            _change(connection, delivery, DeliveryState.SENT, attempts=attempts)
            wish = sa.update(DELIVERIES).where(DELIVERIES.c.id == delivery.id)
            connection.execute(wish.values(awaits_commitment=awaits_commitment))
            return set(connection.execute(of_study).scalars()) <= _OVER

    def delivery_state(self, delivery: Delivery) -> DeliveryState | None:
        """Return a delivery's state, or None when it is unknown."""
        record = self.delivery_record(delivery)
        return None if record is None else record.state

    def delivery_record(self, delivery: Delivery) -> DeliveryRow | None:
        """Return the record of a delivery, or None when it is unknown."""
        with self.tables.connect() as connection:
            row = connection.execute(sa.select(DELIVERIES).where(DELIVERIES.c.id == delivery.id)).one_or_none()
        return None if row is None else delivery_row(row)

    def awaits_critical(self, destination: str) -> bool:
        """Whether a critical output waits or is being sent, unless its destination has refused it before."""
        is_critical = (DELIVERIES.c.destination == destination) & (DELIVERIES.c.priority == CRITICAL)
        waits = (DELIVERIES.c.state == DeliveryState.WAITING) & (DELIVERIES.c.attempts <= 1)
        is_sent = (DELIVERIES.c.state == DeliveryState.SENDING) & (DELIVERIES.c.attempts <= 2)  # again after an outage
        with self.tables.connect() as connection:
            return bool(connection.execute(sa.select(sa.exists().where(is_critical & (waits | is_sent)))).scalar())

    def add_transaction(self, uid: str, deliveries: Iterable[Delivery]) -> None:
        """Record the deliveries of a commitment request; a report on any other delivery is ignored."""
        with self.tables.begin() as connection:
            for delivery in deliveries:
                database.insert(connection, TRANSACTIONS, {"uid": uid, "delivery_id": delivery.id})

    def transaction(self, uid: str) -> list[Delivery]:
        """Return the deliveries of a transaction; empty when it is unknown."""
        return self._deliveries(DELIVERIES.c.id.in_(_asked(uid)))

    def set_answered(self, uid: str, *, kept: Iterable[Delivery], failed: Mapping[Delivery, str]) -> list[Delivery]:
        """Record the report on a transaction atomically; return the deliveries that it newly commits.

        failed: with their reasons; these wait to be sent again. Deliveries that wait or are parked for another reason
        are not changed.
        """
        is_asked = DELIVERIES.c.id.in_(_asked(uid)) & DELIVERIES.c.awaits_commitment
        is_there = DELIVERIES.c.state.in_((DeliveryState.SENT, DeliveryState.PARKED))
        done = {"state": DeliveryState.COMMITTED, "reason": None, "commit_failures": 0}
        again = {"state": DeliveryState.WAITING, "attempts": 0, "commit_failures": DELIVERIES.c.commit_failures + 1}
        committed = []
        with self.tables.begin() as connection:
            _lock(connection, is_asked)
            for delivery in kept:
                change = sa.update(DELIVERIES).where(is_asked, DELIVERIES.c.id == delivery.id)
                if connection.execute(change.where(is_there).values(**done)).rowcount:
                    committed.append(delivery)
            for delivery, reason in failed.items():
                change = sa.update(DELIVERIES).where(is_asked, DELIVERIES.c.id == delivery.id)
                is_sent = DELIVERIES.c.state == DeliveryState.SENT
                connection.execute(change.where(is_sent).values(**again, reason=reason))
        return committed

    def release(self, delivery: Delivery) -> None:
        """Stop waiting for commitment of a sent output. Does nothing if it is queued to be sent again."""
        is_sent = (DELIVERIES.c.id == delivery.id) & (DELIVERIES.c.state == DeliveryState.SENT)
        with self.tables.begin() as connection:
            connection.execute(sa.update(DELIVERIES).where(is_sent).values(awaits_commitment=False))

    def abandon(self, destination: str) -> int:
        """End all open deliveries to a destination permanently; returns their number."""
        with self.tables.begin() as connection:
            return _abandon(connection, DELIVERIES.c.destination == destination)

    def open_deliveries(self) -> list[Delivery]:
        """Return every delivery to be sent or committed. Parked deliveries wait for a person."""
        return self._deliveries(IS_TO_BE_SENT | IS_AWAITED)

    def unsent_deliveries(self, study_uid: str) -> list[Delivery]:
        """Return a study's deliveries to be sent, parked ones included."""
        is_unsent = IS_TO_BE_SENT | (DELIVERIES.c.state == DeliveryState.PARKED)
        return self._deliveries((DELIVERIES.c.study_uid == study_uid) & is_unsent)

    def end_delivery(self, delivery: Delivery) -> None:
        """End an unsent delivery permanently, because another delivery replaces it."""
        which = (DELIVERIES.c.id == delivery.id) & DELIVERIES.c.state.not_in(_TAKEN)
        with self.tables.begin() as connection:
            connection.execute(sa.update(DELIVERIES).where(which).values(state=DeliveryState.ABANDONED))

    def withhold(self, destination: str, uids: Collection[str]) -> frozenset[str]:
        """End the open deliveries of void outputs to a destination; return the outputs that were never sent to it."""
        which = (DELIVERIES.c.destination == destination) & DELIVERIES.c.sop_instance_uid.in_(uids)
        is_untried = (DELIVERIES.c.state == DeliveryState.ABANDONED) & (DELIVERIES.c.since == DELIVERIES.c.created_at)
        with self.tables.begin() as connection:
            _abandon(connection, which)
            untried = sa.select(DELIVERIES.c.sop_instance_uid).where(which, is_untried)
            return frozenset(connection.execute(untried).scalars())

    def delivered_studies(self) -> set[str]:
        """Return every study that has a delivery in any state."""
        with self.tables.connect() as connection:
            return set(connection.execute(sa.select(DELIVERIES.c.study_uid).distinct()).scalars())

    def overview(self) -> Overview:
        """Count everything, with the time since when it waits."""
        with self.tables.connect() as connection:
            return overview_of(connection)

    def undelivered_count(self) -> int:
        """Return the number of finished studies with deliveries of which no destination has taken one."""
        query = sa.select(sa.func.count()).select_from(STUDIES).where(is_undelivered())
        with self.tables.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def parked(self) -> list[Parked]:
        """Return all work that waits for a person."""
        studies = sa.select(STUDIES.c.uid, STUDIES.c.stage, STUDIES.c.reason).where(STUDIES.c.state == "parked")
        deliveries = sa.select(
            DELIVERIES.c.study_uid, sa.literal("deliver ") + DELIVERIES.c.destination, DELIVERIES.c.reason
        ).where(DELIVERIES.c.state == DeliveryState.PARKED)
        with self.tables.connect() as connection:
            rows = connection.execute(sa.union_all(studies, deliveries)).all()
        return [Parked(study=uid, stage=stage or "", reason=reason or "") for uid, stage, reason in rows]

    def parked_deliveries(self, *, study_uid: str | None = None, destination: str | None = None) -> list[Delivery]:
        """Return the parked deliveries, optionally of one study or to one destination."""
        which = DELIVERIES.c.state == DeliveryState.PARKED
        if study_uid is not None:
            which &= DELIVERIES.c.study_uid == study_uid
        if destination is not None:
            which &= DELIVERIES.c.destination == destination
        return self._deliveries(which)

    def is_delivered(self, study_uid: str) -> bool:
        """Whether no delivery of a study is open, parked or uncommitted."""
        query = sa.select(sa.func.count()).where((DELIVERIES.c.study_uid == study_uid) & _IS_OPEN)
        with self.tables.connect() as connection:
            return connection.execute(query).scalar() == 0

    def forget(self, study_uid: str) -> None:
        """Delete all rows of a study that was removed from disk."""
        of_study = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.study_uid == study_uid)
        with self.tables.begin() as connection:
            connection.execute(sa.delete(TRANSACTIONS).where(TRANSACTIONS.c.delivery_id.in_(of_study)))
            connection.execute(sa.delete(STUDIES).where(STUDIES.c.uid == study_uid))  # waits for writers of its rows
            for table in (DELIVERIES, CLAIMS, REVIEWS, PATIENTS, COUNTED_FILMS, COUNTED_FINDINGS):
                connection.execute(sa.delete(table).where(table.c.study_uid == study_uid))

    def forget_content(self, study_uid: str) -> None:
        """Delete the patients, findings and assessments of a study that was removed from disk; its deliveries stay."""
        with self.tables.begin() as connection:
            for table in (REVIEWS, PATIENTS, COUNTED_FILMS, COUNTED_FINDINGS):
                connection.execute(sa.delete(table).where(table.c.study_uid == study_uid))

    def wipe(self) -> None:
        """Clear deleted rows from SQLite's journal; waits for readers and writers."""
        database.wipe(self.tables)

    def _deliveries(self, which: sa.ColumnElement[bool]) -> list[Delivery]:
        query = sa.select(DELIVERIES).where(which).order_by(DELIVERIES.c.created_at)
        with self.tables.connect() as connection:
            return list(map(delivery_in, connection.execute(query)))


@contextmanager
def open_ledger(storage: StorageSettings) -> Iterator[Ledger]:
    """Open the ledger. Raises InputError before the node's first start, NodeError when the ledger is damaged."""
    files.require_started(storage.directory)
    with database.naming_damage(storage), closing(Ledger(database.open_ledger(storage))) as ledger:
        yield ledger


def is_away(error: BaseException) -> bool:
    """Whether an error means that the database is unavailable, which affects all work."""
    is_lost = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)
    return is_lost or database.is_damaged(error)


def _abandon(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """End open deliveries unsent; sent ones no longer await commitment. Return their number."""
    which &= _IS_OPEN
    _lock(connection, which)
    state = sa.case((DELIVERIES.c.state == DeliveryState.SENT, DELIVERIES.c.state), else_=DeliveryState.ABANDONED)
    return connection.execute(sa.update(DELIVERIES).where(which).values(state=state, awaits_commitment=False)).rowcount


def _asked(transaction_uid: str) -> sa.Select[tuple[str]]:
    """Return a subquery for the deliveries of a transaction."""
    return sa.select(TRANSACTIONS.c.delivery_id).where(TRANSACTIONS.c.uid == transaction_uid)


def _lock(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Lock these delivery rows until the transaction ends, always in the same order to avoid deadlocks.

    SQLite allows one writer at a time anyway, and has no such lock.
    """
    connection.execute(sa.select(DELIVERIES.c.id).where(which).order_by(DELIVERIES.c.id).with_for_update())


def _row(delivery: Delivery, state: DeliveryState, *, attempts: int, reason: str | None = None) -> dict[str, object]:
    now = _now()
    return {
        "id": delivery.id,
        **asdict(delivery),
        "state": state,
        "attempts": attempts,
        "reason": reason,
        "created_at": now,
        "since": now,
        "failed_at": now if state is DeliveryState.WAITING and attempts > 0 else None,
    }


def _change(
    connection: sa.Connection,
    delivery: Delivery,
    state: DeliveryState,
    *,
    attempts: int,
    reason: str | None = None,
    is_down: bool = False,
    is_unclear: bool = False,
) -> bool:
    """Insert or update a row, and return whether that was done; an abandoned delivery stays abandoned."""
    values: dict[str, object] = {"state": state, "attempts": attempts}
    if state is not DeliveryState.SENDING:  # while it is tried again, the last failure's reason stays
        fails = state is DeliveryState.WAITING and attempts > 0
        values |= {"reason": reason, "failed_at": sa.func.coalesce(DELIVERIES.c.failed_at, _now()) if fails else None}
    if state is DeliveryState.SENT or attempts <= 1 or is_down:
        values["since"] = _now()
    if is_unclear:
        values["unclear_answers"] = DELIVERIES.c.unclear_answers + 1
    if state is DeliveryState.PARKED:  # a retry by a person starts with a full number of attempts
        values |= {"commit_failures": 0, "unclear_answers": 0}
    is_wanted = DELIVERIES.c.state != DeliveryState.ABANDONED
    row = _row(delivery, state, attempts=attempts, reason=reason)
    return database.upsert(connection, DELIVERIES, row, changed=values, where=is_wanted)


def _now() -> float:
    return datetime.now(UTC).timestamp()
