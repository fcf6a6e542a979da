"""Which destinations accept nothing now, why, and since when: read off the deliveries that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from node.domain import DeliveryState
from node.store.tables import DELIVERIES, TAKEN

_WAITS = (DELIVERIES.c.state == DeliveryState.WAITING) & (DELIVERIES.c.attempts > 0)
_IS_TRIED_AGAIN = (DELIVERIES.c.state == DeliveryState.SENDING) & (DELIVERIES.c.attempts > 1)
_FAILS = _WAITS | _IS_TRIED_AGAIN
_FAILED_AT = sa.func.coalesce(DELIVERIES.c.failed_at, DELIVERIES.c.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Why a destination accepts nothing, and since when, in seconds since the epoch."""

    since: float
    reason: str


def pauses(connection: sa.Connection) -> Mapping[str, Pause]:
    """Return the destinations that have accepted nothing since a failed delivery that is still open.

    The first failed attempt counts, and each that found the destination down. An object that is rejected again and
    again, while others are accepted, does not pause its destination.
    """
    return dict(_pauses(connection))


def last_taken(connection: sa.Connection) -> Mapping[str, float]:
    """Return when each destination took an output last, in seconds since the epoch; nothing of one that took none."""
    newest = sa.func.max(DELIVERIES.c.since)
    query = sa.select(DELIVERIES.c.destination, newest).where(DELIVERIES.c.state.in_(TAKEN))
    return {name: taken for name, taken in connection.execute(query.group_by(DELIVERIES.c.destination))}


def _pauses(connection: sa.Connection) -> Iterator[tuple[str, Pause]]:
    failed = sa.func.max(sa.case((_FAILS, DELIVERIES.c.since)))
    taken = sa.func.coalesce(sa.func.max(sa.case((DELIVERIES.c.state.in_(TAKEN), DELIVERIES.c.since))), 0.0)
    by_destination = sa.select(DELIVERIES.c.destination, failed, taken).group_by(DELIVERIES.c.destination)
    for name, failed_at, taken_at in connection.execute(by_destination.having(failed >= taken)).all():
        of_it = _FAILS & (DELIVERIES.c.destination == name)
        began = sa.select(sa.func.min(_FAILED_AT)).where(of_it, taken_at <= _FAILED_AT)
        reasons = sa.select(DELIVERIES.c.reason).where(of_it, DELIVERIES.c.reason.is_not(None))
        reason = connection.execute(reasons.order_by(DELIVERIES.c.since.desc()).limit(1)).scalar()
        yield name, Pause(since=connection.execute(began).scalar() or failed_at, reason=reason or "")
