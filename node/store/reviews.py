"""The ledger's table of films that wait for review, so that nobody has to look through all studies for them.

A round writes the rows of its study anew. `studies.has_reviews` says that a study's rows are there: an older or a lost
ledger has none, and the node's start fills them in.
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
            known = sa.update(STUDIES).where(STUDIES.c.uid == study_uid).values(has_reviews=True)
            connection.execute(known)  # the study's row is locked from here
            _write(connection, study_uid, rows)

    def fill(self, study_uid: str, rows: Iterable[ReviewRow]) -> None:
        """Record which films of a study wait, unless a round has done so meanwhile."""
        is_blank = (STUDIES.c.uid == study_uid) & ~STUDIES.c.has_reviews
        with self._tables().begin() as connection:
            if connection.execute(sa.update(STUDIES).where(is_blank).values(has_reviews=True)).rowcount:
                _write(connection, study_uid, rows)

    def recorded(self) -> set[str]:
        """Return the studies whose rows are there, be they none."""
        with self._tables().connect() as connection:
            return set(connection.execute(sa.select(STUDIES.c.uid).where(STUDIES.c.has_reviews)).scalars())

    def counts(self) -> dict[str, int]:
        """Return how many films wait, by reason."""
        query = sa.select(REVIEWS.c.reason, sa.func.count()).group_by(REVIEWS.c.reason)
        with self._tables().connect() as connection:
            return {reason: count for reason, count in connection.execute(query)}


def _write(connection: sa.Connection, study_uid: str, rows: Iterable[ReviewRow]) -> None:
    connection.execute(sa.delete(REVIEWS).where(REVIEWS.c.study_uid == study_uid))
    if values := [asdict(row) for row in rows]:
        connection.execute(sa.insert(REVIEWS), values)
