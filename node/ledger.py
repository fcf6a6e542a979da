"""The only SQL of ours: studies and deliveries, their states and reasons.

For people to look things up, and to know what needs no second delivery. Lost, it is built again: the spool knows what
was received and written, the durable engine what is to be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert, insert

from node.domain import Delivery, DeliveryState

_TABLES = sa.MetaData()
_STUDIES = sa.Table(
    "studies",
    _TABLES,
    sa.Column("uid", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("stage", sa.String(32)),
    sa.Column("reason", sa.Text),
    sa.Column("changed_at", sa.Float, nullable=False),
)
_DELIVERIES = sa.Table(
    "deliveries",
    _TABLES,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("destination", sa.String(200), nullable=False),
    sa.Column("study_uid", sa.String(64), nullable=False, index=True),
    sa.Column("sop_instance_uid", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", sa.Float, nullable=False),
    # When it was sent, first tried in vain, or last found its destination down. An older file gets this column.
    sa.Column("since", sa.Float, nullable=False, server_default="0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Work that waits for a person."""

    study: str
    stage: str
    reason: str


def connect(database: Path) -> sa.Engine:
    """Open an SQLite file so that a commit survives a power cut (WAL, synchronous FULL) and writers wait in line."""
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = sa.create_engine(f"sqlite:///{database}", hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: sa.engine.interfaces.DBAPIConnection, _record: sa.pool.ConnectionPoolEntry) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


class Ledger:
    """States of studies and deliveries in one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        _TABLES.create_all(engine)
        if "since" not in {column["name"] for column in sa.inspect(engine).get_columns("deliveries")}:
            with engine.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE deliveries ADD COLUMN since FLOAT NOT NULL DEFAULT 0")

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def set_study(self, uid: str, state: str, *, stage: str | None = None, reason: str | None = None) -> None:
        """Write a study's state; stage and reason say where and why it was parked."""
        values = {"state": state, "stage": stage, "reason": reason, "changed_at": _now()}
        with self._engine.begin() as connection:
            statement = insert(_STUDIES).values(uid=uid, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["uid"], set_=values))

    def study_state(self, uid: str) -> str | None:
        """A study's state, or None when it is not known here."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(_STUDIES.c.state).where(_STUDIES.c.uid == uid)).scalar()

    def add_delivery(self, delivery: Delivery) -> None:
        """Note a delivery as waiting; one that is known keeps its state."""
        with self._engine.begin() as connection:
            connection.execute(_row(delivery, DeliveryState.WAITING, attempts=0).on_conflict_do_nothing())

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
            connection.execute(_changed(delivery, state, attempts=attempts, reason=reason, is_down=is_down))

    def set_sent(self, delivery: Delivery, *, attempts: int) -> bool:
        """Write that a delivery was sent; say whether it was its study's last. Of two at once, one is."""
        others = sa.select(sa.func.count()).where(
            _DELIVERIES.c.study_uid == delivery.study_uid, _DELIVERIES.c.state != DeliveryState.SENT
        )
        with self._engine.begin() as connection:
            connection.execute(_changed(delivery, DeliveryState.SENT, attempts=attempts))
            return connection.execute(others).scalar() == 0

    def delivery_state(self, delivery: Delivery) -> DeliveryState | None:
        """A delivery's state, or None when it is not known here."""
        query = sa.select(_DELIVERIES.c.state).where(_DELIVERIES.c.id == delivery.id)
        with self._engine.connect() as connection:
            state = connection.execute(query).scalar()
        return None if state is None else DeliveryState(state)

    def open_deliveries(self) -> list[Delivery]:
        """Every delivery that is neither sent nor parked."""
        is_open = _DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        return self._deliveries(is_open)

    def study_counts(self) -> dict[str, int]:
        """Number of studies by state."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_STUDIES.c.state, sa.func.count()).group_by(_STUDIES.c.state))
            return {state: count for state, count in rows}

    def delivery_counts(self) -> dict[tuple[str, str], int]:
        """Number of deliveries by destination and state."""
        columns = (_DELIVERIES.c.destination, _DELIVERIES.c.state)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns, sa.func.count()).group_by(*columns))
            return {(destination, state): count for destination, state, count in rows}

    def delayed_destinations(self) -> set[str]:
        """Destinations that took nothing since a delivery was tried in vain that waits, or is being tried again.

        The first try counts, and each that found the destination down: one object that is refused again and again,
        while others are taken, delays no destination.
        """
        waits = (_DELIVERIES.c.state == DeliveryState.WAITING) & (_DELIVERIES.c.attempts > 0)
        tried_again = (_DELIVERIES.c.state == DeliveryState.SENDING) & (_DELIVERIES.c.attempts > 1)
        failed = sa.func.max(sa.case((waits | tried_again, _DELIVERIES.c.since)))
        taken = sa.func.max(sa.case((_DELIVERIES.c.state == DeliveryState.SENT, _DELIVERIES.c.since)))
        query = (
            sa.select(_DELIVERIES.c.destination)
            .group_by(_DELIVERIES.c.destination)
            .having(failed >= sa.func.coalesce(taken, 0.0))
        )
        with self._engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def oldest_waiting_seconds(self) -> Mapping[str, float]:
        """Age of the oldest unfinished study and delivery; 0 when nothing waits."""
        open_study = _STUDIES.c.state.in_(("receiving", "reading"))
        open_delivery = _DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        with self._engine.connect() as connection:
            study = connection.execute(sa.select(sa.func.min(_STUDIES.c.changed_at)).where(open_study)).scalar()
            delivery = connection.execute(
                sa.select(sa.func.min(_DELIVERIES.c.created_at)).where(open_delivery)
            ).scalar()
        now = _now()
        return {"studies": now - (study or now), "deliveries": now - (delivery or now)}

    def oldest_delivery_seconds(self) -> Mapping[str, float]:
        """Age of the oldest open delivery of each destination that has one."""
        is_open = _DELIVERIES.c.state.in_((DeliveryState.WAITING, DeliveryState.SENDING))
        columns = (_DELIVERIES.c.destination, sa.func.min(_DELIVERIES.c.created_at))
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).where(is_open).group_by(_DELIVERIES.c.destination))
            return {destination: _now() - created_at for destination, created_at in rows}

    def parked(self) -> list[Parked]:
        """Everything that waits for a person."""
        studies = sa.select(_STUDIES.c.uid, _STUDIES.c.stage, _STUDIES.c.reason).where(_STUDIES.c.state == "parked")
        deliveries = sa.select(
            _DELIVERIES.c.study_uid, sa.literal("deliver ") + _DELIVERIES.c.destination, _DELIVERIES.c.reason
        ).where(_DELIVERIES.c.state == DeliveryState.PARKED)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.union_all(studies, deliveries)).all()
        return [Parked(study=uid, stage=stage or "", reason=reason or "") for uid, stage, reason in rows]

    def parked_deliveries(self, study_uid: str) -> list[Delivery]:
        """A study's parked deliveries."""
        return self._deliveries((_DELIVERIES.c.study_uid == study_uid) & (_DELIVERIES.c.state == DeliveryState.PARKED))

    def is_delivered(self, study_uid: str) -> bool:
        """Whether nothing of a study is still on its way or parked."""
        with self._engine.connect() as connection:
            states = connection.execute(
                sa.select(_DELIVERIES.c.state).where(_DELIVERIES.c.study_uid == study_uid)
            ).scalars()
            found = set(states)
        return found <= {DeliveryState.SENT}

    def forget(self, study_uid: str) -> None:
        """Remove a study that left the disk."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_DELIVERIES).where(_DELIVERIES.c.study_uid == study_uid))
            connection.execute(sa.delete(_STUDIES).where(_STUDIES.c.uid == study_uid))

    def _deliveries(self, which: sa.ColumnElement[bool]) -> list[Delivery]:
        names = ("destination", "study_uid", "sop_instance_uid", "kind")
        query = sa.select(*(_DELIVERIES.c[name] for name in names)).where(which).order_by(_DELIVERIES.c.created_at)
        with self._engine.connect() as connection:
            return [Delivery(**dict(zip(names, row, strict=True))) for row in connection.execute(query)]


def _row(delivery: Delivery, state: DeliveryState, *, attempts: int) -> Insert:
    """A new row; what to do when there is one already is for the caller to say."""
    return insert(_DELIVERIES).values(
        id=delivery.id,
        destination=delivery.destination,
        study_uid=delivery.study_uid,
        sop_instance_uid=delivery.sop_instance_uid,
        kind=delivery.kind,
        state=state,
        attempts=attempts,
        created_at=(now := _now()),
        since=now,
    )


def _changed(
    delivery: Delivery, state: DeliveryState, *, attempts: int, reason: str | None = None, is_down: bool = False
) -> Insert:
    """A new row, or the changed one."""
    values: dict[str, object] = {"state": state, "attempts": attempts, "reason": reason}
    if state is DeliveryState.SENT or attempts <= 1 or is_down:
        values["since"] = _now()
    return _row(delivery, state, attempts=attempts).on_conflict_do_update(index_elements=["id"], set_=values)


def _now() -> float:
    return datetime.now(UTC).timestamp()
