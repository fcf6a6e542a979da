"""Our tables: studies and deliveries, their states and reasons.

For people to look things up, and to know what needs no second delivery. Lost, it is built again: the spool knows what
was received and written, the durable engine what is to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa

from node import database
from node.domain import Delivery, DeliveryState
from node.schema import CLAIMS, DELIVERIES, STUDIES, TABLES, TRANSACTIONS

_TAKEN: Final = frozenset((DeliveryState.SENT, DeliveryState.COMMITTED))
_OVER: Final = _TAKEN | {DeliveryState.ABANDONED}
_IS_AWAITED: Final = (DELIVERIES.c.state == DeliveryState.SENT) & DELIVERIES.c.awaits_commitment
_IS_OPEN: Final = DELIVERIES.c.state.not_in(_OVER) | _IS_AWAITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Work that waits for a person."""

    study: str
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a delivery stands; failures: how often its destination said that it cannot keep it, `reason` why."""

    state: DeliveryState
    awaits_commitment: bool
    failures: int
    reason: str | None


class Ledger:
    """States of studies and deliveries in one database. Every method raises SQLAlchemyError when that is away."""

    def __init__(self, engine: sa.Engine) -> None:
        """Open a database that need not be there yet: our tables are made when one of them is first used."""
        self._sql, self._has_tables = engine, False

    @property
    def _engine(self) -> sa.Engine:
        if not self._has_tables:
            database.create(self._sql, TABLES)
            self._has_tables = True
        return self._sql

    def close(self) -> None:
        """Close every connection."""
        self._sql.dispose()

    def set_study(self, uid: str, state: str, *, stage: str | None = None, reason: str | None = None) -> None:
        """Write a study's state; stage and reason say where and why it was parked."""
        values = {"state": state, "stage": stage, "reason": reason, "changed_at": _now()}
        with self._engine.begin() as connection:
            database.upsert(connection, STUDIES, {"uid": uid, **values}, changed=values)

    def unpark_study(self, uid: str) -> None:
        """Let a parked study wait again, unless it went on meanwhile."""
        is_parked = (STUDIES.c.uid == uid) & (STUDIES.c.state == "parked")
        with self._engine.begin() as connection:
            waiting = {"state": "receiving", "stage": None, "reason": None, "changed_at": _now()}
            connection.execute(sa.update(STUDIES).where(is_parked).values(waiting))

    def study_state(self, uid: str) -> str | None:
        """A study's state, or None when it is not known here."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(STUDIES.c.state).where(STUDIES.c.uid == uid)).scalar()

    def finished_studies(self, *, before: datetime) -> list[str]:
        """The studies that were finished before a time."""
        is_old = (STUDIES.c.state == "finished") & (STUDIES.c.changed_at < before.timestamp())
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(STUDIES.c.uid).where(is_old)).scalars())

    def claim(self, study_uid: str, *, holder: str, instead_of: str | None = None) -> str:
        """Let a workflow have a study to itself, unless another one has it; who has it now.

        instead_of: a holder that is over, and loses it. Of several at once that would follow it, one does.
        """
        row, of_study = {"study_uid": study_uid, "holder": holder}, CLAIMS.c.study_uid == study_uid
        is_over = of_study & (CLAIMS.c.holder == instead_of)
        with self._engine.begin() as connection:
            database.upsert(connection, CLAIMS, row, changed={"study_uid": study_uid})  # the row is locked from here
            connection.execute(sa.update(CLAIMS).where(is_over).values(holder=holder))
            return str(connection.execute(sa.select(CLAIMS.c.holder).where(of_study)).scalar_one())

    def add_delivery(self, delivery: Delivery) -> None:
        """Note a delivery as waiting; one that is known keeps its state."""
        with self._engine.begin() as connection:
            database.insert(connection, DELIVERIES, _row(delivery, DeliveryState.WAITING, attempts=0))

    def set_delivery(
        self,
        delivery: Delivery,
        state: DeliveryState,
        *,
        attempts: int,
        reason: str | None = None,
        is_down: bool = False,
    ) -> None:
        """Write a delivery's state; is_down: it was tried in vain for its destination's sake, not its own."""
        with self._engine.begin() as connection:
            _change(connection, delivery, state, attempts=attempts, reason=reason, is_down=is_down)

    def unpark_delivery(self, delivery: Delivery) -> None:
        """Let a parked delivery wait again, unless it went on meanwhile."""
        is_parked = (DELIVERIES.c.id == delivery.id) & (DELIVERIES.c.state == DeliveryState.PARKED)
        with self._engine.begin() as connection:
            waiting = {"state": DeliveryState.WAITING, "attempts": 0, "reason": None}
            connection.execute(sa.update(DELIVERIES).where(is_parked).values(waiting))

    def set_sent(self, delivery: Delivery, *, attempts: int, awaits_commitment: bool = False) -> bool:
        """Write that a delivery was sent; say whether it was its study's last. Of two at once, one is.

        awaits_commitment: that is not all; its destination is to say that it keeps it
        """
        of_study = sa.select(DELIVERIES.c.state).where(DELIVERIES.c.study_uid == delivery.study_uid)
        with self._engine.begin() as connection:
            _lock(connection, DELIVERIES.c.study_uid == delivery.study_uid)
            _change(connection, delivery, DeliveryState.SENT, attempts=attempts)
            wish = sa.update(DELIVERIES).where(DELIVERIES.c.id == delivery.id)
            connection.execute(wish.values(awaits_commitment=awaits_commitment))
            return set(connection.execute(of_study).scalars()) <= _OVER

    def delivery_state(self, delivery: Delivery) -> DeliveryState | None:
        """A delivery's state, or None when it is not known here."""
        query = sa.select(DELIVERIES.c.state).where(DELIVERIES.c.id == delivery.id)
        with self._engine.connect() as connection:
            state = connection.execute(query).scalar()
        return None if state is None else DeliveryState(state)

    def standing(self, delivery: Delivery) -> Standing | None:
        """Where a delivery stands, or None when it is not known here."""
        columns = (DELIVERIES.c[name] for name in ("state", "awaits_commitment", "commit_failures", "reason"))
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(*columns).where(DELIVERIES.c.id == delivery.id)).one_or_none()
        if row is None:
            return None
        state, awaits, failures, reason = row
        return Standing(state=DeliveryState(state), awaits_commitment=awaits, failures=failures, reason=reason)

    def add_transaction(self, uid: str, deliveries: Iterable[Delivery]) -> None:
        """Note what is about to be asked: an answer to anything else is none."""
        with self._engine.begin() as connection:
            for delivery in deliveries:
                database.insert(connection, TRANSACTIONS, {"uid": uid, "delivery_id": delivery.id})

    def transaction(self, uid: str) -> list[Delivery]:
        """What was asked in a transaction; nothing when it is not known here."""
        return self._deliveries(DELIVERIES.c.id.in_(_asked(uid)))

    def set_answered(self, uid: str, *, kept: Iterable[Delivery], failed: Mapping[Delivery, str]) -> list[Delivery]:
        """Write the answer to a transaction at once; those that are committed by it, and were not before.

        failed: each with the reason; it waits to be sent again. What waits or is parked for another reason stays so.
        """
        is_asked = DELIVERIES.c.id.in_(_asked(uid)) & DELIVERIES.c.awaits_commitment
        is_there = DELIVERIES.c.state.in_((DeliveryState.SENT, DeliveryState.PARKED))
        done = {"state": DeliveryState.COMMITTED, "reason": None, "commit_failures": 0}
        again = {"state": DeliveryState.WAITING, "attempts": 0, "commit_failures": DELIVERIES.c.commit_failures + 1}
        committed = []
        with self._engine.begin() as connection:
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
        """Be content with what was sent, unless it is to be sent again: nobody is asked to commit to it any more."""
        is_sent = (DELIVERIES.c.id == delivery.id) & (DELIVERIES.c.state == DeliveryState.SENT)
        with self._engine.begin() as connection:
            connection.execute(sa.update(DELIVERIES).where(is_sent).values(awaits_commitment=False))

    def abandon(self, destination: str) -> int:
        """End for good what a destination has not been sent, or has not committed to; how many deliveries that were."""
        which = (DELIVERIES.c.destination == destination) & _IS_OPEN
        is_sent = DELIVERIES.c.state == DeliveryState.SENT
        state = sa.case((is_sent, DELIVERIES.c.state), else_=DeliveryState.ABANDONED)
        with self._engine.begin() as connection:
            _lock(connection, which)
            return connection.execute(
                sa.update(DELIVERIES).where(which).values(state=state, awaits_commitment=False)
            ).rowcount

    def open_deliveries(self) -> list[Delivery]:
        """Every delivery that is not done: to be sent, or to be committed. Parked ones wait for a person."""
        is_to_be_sent = DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        return self._deliveries(is_to_be_sent | _IS_AWAITED)

    def delivered_studies(self) -> set[str]:
        """Every study of which there is a delivery, whatever its state."""
        with self._engine.connect() as connection:
            return set(connection.execute(sa.select(DELIVERIES.c.study_uid).distinct()).scalars())

    def study_counts(self) -> dict[str, int]:
        """Number of studies by state."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(STUDIES.c.state, sa.func.count()).group_by(STUDIES.c.state))
            return {state: count for state, count in rows}

    def delivery_counts(self) -> dict[tuple[str, str], int]:
        """Number of deliveries by destination and state."""
        columns = (DELIVERIES.c.destination, DELIVERIES.c.state)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns, sa.func.count()).group_by(*columns))
            return {(destination, state): count for destination, state, count in rows}

    def delayed_destinations(self) -> set[str]:
        """Destinations that took nothing since a delivery was tried in vain that waits, or is being tried again.

        The first try counts, and each that found the destination down: one object that is refused again and again,
        while others are taken, delays no destination.
        """
        waits = (DELIVERIES.c.state == DeliveryState.WAITING) & (DELIVERIES.c.attempts > 0)
        tried_again = (DELIVERIES.c.state == DeliveryState.SENDING) & (DELIVERIES.c.attempts > 1)
        failed = sa.func.max(sa.case((waits | tried_again, DELIVERIES.c.since)))
        taken = sa.func.max(sa.case((DELIVERIES.c.state.in_(_TAKEN), DELIVERIES.c.since)))
        query = (
            sa.select(DELIVERIES.c.destination)
            .group_by(DELIVERIES.c.destination)
            .having(failed >= sa.func.coalesce(taken, 0.0))
        )
        with self._engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def oldest_waiting_seconds(self) -> Mapping[str, float]:
        """Age of the oldest unfinished study and delivery; 0 when nothing waits."""
        open_study = STUDIES.c.state.in_(("receiving", "reading"))
        open_delivery = DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        with self._engine.connect() as connection:
            study = connection.execute(sa.select(sa.func.min(STUDIES.c.changed_at)).where(open_study)).scalar()
            delivery = connection.execute(sa.select(sa.func.min(DELIVERIES.c.created_at)).where(open_delivery)).scalar()
        now = _now()
        return {"studies": now - (study or now), "deliveries": now - (delivery or now)}

    def oldest_delivery_seconds(self) -> Mapping[str, float]:
        """Age of the oldest open delivery of each destination that has one."""
        is_open = DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        columns = (DELIVERIES.c.destination, sa.func.min(DELIVERIES.c.created_at))
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).where(is_open).group_by(DELIVERIES.c.destination))
            return {destination: _now() - created_at for destination, created_at in rows}

    def uncommitted(self) -> Mapping[str, tuple[int, float]]:
        """How many outputs each destination is still to commit to, and how many seconds ago the oldest was sent."""
        columns = (DELIVERIES.c.destination, sa.func.count(), sa.func.min(DELIVERIES.c.since))
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).where(_IS_AWAITED).group_by(DELIVERIES.c.destination))
            return {destination: (count, _now() - since) for destination, count, since in rows}

    def parked(self) -> list[Parked]:
        """Everything that waits for a person."""
        studies = sa.select(STUDIES.c.uid, STUDIES.c.stage, STUDIES.c.reason).where(STUDIES.c.state == "parked")
        deliveries = sa.select(
            DELIVERIES.c.study_uid, sa.literal("deliver ") + DELIVERIES.c.destination, DELIVERIES.c.reason
        ).where(DELIVERIES.c.state == DeliveryState.PARKED)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.union_all(studies, deliveries)).all()
        return [Parked(study=uid, stage=stage or "", reason=reason or "") for uid, stage, reason in rows]

    def parked_deliveries(self, study_uid: str) -> list[Delivery]:
        """A study's parked deliveries."""
        return self._deliveries((DELIVERIES.c.study_uid == study_uid) & (DELIVERIES.c.state == DeliveryState.PARKED))

    def is_delivered(self, study_uid: str) -> bool:
        """Whether nothing of a study is still on its way or parked, nor sent and to be committed."""
        query = sa.select(sa.func.count()).where((DELIVERIES.c.study_uid == study_uid) & _IS_OPEN)
        with self._engine.connect() as connection:
            return connection.execute(query).scalar() == 0

    def forget(self, study_uid: str) -> None:
        """Remove a study that left the disk."""
        of_study = sa.select(DELIVERIES.c.id).where(DELIVERIES.c.study_uid == study_uid)
        with self._engine.begin() as connection:
            connection.execute(sa.delete(TRANSACTIONS).where(TRANSACTIONS.c.delivery_id.in_(of_study)))
            connection.execute(sa.delete(DELIVERIES).where(DELIVERIES.c.study_uid == study_uid))
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.study_uid == study_uid))
            connection.execute(sa.delete(STUDIES).where(STUDIES.c.uid == study_uid))

    def _deliveries(self, which: sa.ColumnElement[bool]) -> list[Delivery]:
        names = ("destination", "study_uid", "sop_instance_uid", "kind")
        query = sa.select(*(DELIVERIES.c[name] for name in names)).where(which).order_by(DELIVERIES.c.created_at)
        with self._engine.connect() as connection:
            return [Delivery(**dict(zip(names, row, strict=True))) for row in connection.execute(query)]


def is_away(error: BaseException) -> bool:
    """Say whether an error is the database's own, which no other work would be spared."""
    return isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)


def _asked(transaction_uid: str) -> sa.Select[tuple[str]]:
    """The deliveries of a transaction, for a condition."""
    return sa.select(TRANSACTIONS.c.delivery_id).where(TRANSACTIONS.c.uid == transaction_uid)


def _lock(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Let nobody else change these deliveries until the transaction ends; all lock in one order, or two could wait for
    each other. SQLite lets one write at a time anyway, and knows no such lock.
    """
    connection.execute(sa.select(DELIVERIES.c.id).where(which).order_by(DELIVERIES.c.id).with_for_update())


def _row(delivery: Delivery, state: DeliveryState, *, attempts: int, reason: str | None = None) -> dict[str, object]:
    now = _now()
    return {
        "id": delivery.id,
        "destination": delivery.destination,
        "study_uid": delivery.study_uid,
        "sop_instance_uid": delivery.sop_instance_uid,
        "kind": delivery.kind,
        "state": state,
        "attempts": attempts,
        "reason": reason,
        "created_at": now,
        "since": now,
    }


def _change(
    connection: sa.Connection,
    delivery: Delivery,
    state: DeliveryState,
    *,
    attempts: int,
    reason: str | None = None,
    is_down: bool = False,
) -> None:
    """Write a new row, or change the one that is there; one that was abandoned stays so, whatever becomes of it."""
    values: dict[str, object] = {"state": state, "attempts": attempts, "reason": reason}
    if state is DeliveryState.SENT or attempts <= 1 or is_down:
        values["since"] = _now()
    if state is DeliveryState.PARKED:  # whoever wants it tried anew wants all of its tries
        values["commit_failures"] = 0
    is_wanted = DELIVERIES.c.state != DeliveryState.ABANDONED
    row = _row(delivery, state, attempts=attempts, reason=reason)
    database.upsert(connection, DELIVERIES, row, changed=values, where=is_wanted)


def _now() -> float:
    return datetime.now(UTC).timestamp()
