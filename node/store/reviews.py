"""The ledger's table of films that wait for review, so that nobody has to look through all studies for them.

A round writes the rows of its study anew, at its end; `statistics` fills in those that a lost ledger had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from node.store.database import Database
from node.store.tables import REVIEWS, STUDIES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRow:
    """A film that waits for review.

    film: its SOP Instance UID; reason: one of `metrics.ReviewReason`
    urgency: that of its most urgent finding that waits (`outputs.impression`)
    received_at: seconds since the epoch
    """

    study_uid: str
    film: str
    reason: str
    is_stat: bool
    urgency: int
    received_at: float


class Reviews:
    """The rows of all studies. Every method raises SQLAlchemyError if the database does not answer."""

    def __init__(self, tables: Callable[[], Database]) -> None:
        """Use a database; tables: opens it with its tables."""
        self._tables = tables

    def replace(self, study_uid: str, rows: Iterable[ReviewRow]) -> None:
        """Record which films of a known study wait, instead of what was recorded before."""
        with self._tables().begin() as connection:
            known = sa.update(STUDIES).where(STUDIES.c.uid == study_uid).values(is_counted=True)
            connection.execute(known)  # the study's row is locked from here
            write(connection, study_uid, rows)

    def counts(self) -> dict[str, int]:
        """Return how many films wait, by reason."""
        query = sa.select(REVIEWS.c.reason, sa.func.count()).group_by(REVIEWS.c.reason)
        with self._tables().connect() as connection:
            return {reason: count for reason, count in connection.execute(query)}


def write(connection: sa.Connection, study_uid: str, rows: Iterable[ReviewRow]) -> None:
    """Replace the rows of a study, whose own row is locked meanwhile."""
    connection.execute(sa.delete(REVIEWS).where(REVIEWS.c.study_uid == study_uid))
    if values := [asdict(row) for row in rows]:
        connection.execute(sa.insert(REVIEWS), values)
