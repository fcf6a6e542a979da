"""Detects dead executors on PostgreSQL: every executor holds a lock, and its work passes to others when it dies.

The lock belongs to a connection of its own and ends with it, however the process ends. The server closes a connection
that is silent for ten seconds. An executor that lost its connection must stop, because another executor may have its
work already. The unfinished workflows of a dead executor go back into their queues (durable-engine §2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from node import log
from node.errors import Stopped, where
from node.threads import Periodic

_PAUSE_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 10
_BUSY: Final = sa.text("SELECT DISTINCT executor_id FROM dbos.workflow_status WHERE status = 'PENDING'")


class ExecutorLock:
    """Holds the lock of one executor until closed, and reports once if the lock is lost.

    silence_seconds: after this time the server takes the lock from a process that is frozen or cut off
    """

    def __init__(
        self, database: sa.Engine, executor: str, *, stop: threading.Event, silence_seconds: int = _SILENCE_SECONDS
    ) -> None:
        """Wait for the lock. An earlier process of this name may still be ending, or another taking its work.

        Raises Stopped when `stop` is set meanwhile, SQLAlchemyError when the database does not answer.
        """
        self._executor = executor
        self._connection = database.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()  # never returned to the pool, which would keep the lock
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._connection.execute(sa.text(f"SET idle_session_timeout = '{silence_seconds}s'"))
            self._wait_for_lock(stop)
        except BaseException:
            self._connection.close()
            raise

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Check the lock's connection once a second from now on; `on_lost` gets the reason if it is lost."""
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="executor-lock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Release the lock and close its connection."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._connection.close()

    def _wait_for_lock(self, stop: threading.Event) -> None:
        query = sa.select(sa.func.pg_try_advisory_lock(_key(self._executor)))
        is_logged = False
        while not self._connection.execute(query).scalar():
            if not is_logged:
                log.get().warning("executor.waiting", executor=self._executor)
            is_logged = True
            if stop.wait(timeout=_PAUSE_SECONDS):
                raise Stopped(f"executor {self._executor}: stopped before it got its lock")

    def _run(self, on_lost: Callable[[str], None]) -> None:
        while not self._closing.wait(timeout=_PAUSE_SECONDS):
            try:
                self._connection.execute(sa.select(1))
            except sa.exc.SQLAlchemyError as error:
                return on_lost(f"the lock of executor {self._executor} is lost: {where(error)}")


class Takeover(Periodic):
    """Looks once a second, until closed, for dead executors with unfinished workflows.

    recover: queues the workflows of an executor again, and returns their number
    """

    def __init__(self, database: sa.Engine, executor: str, recover: Callable[[str], int]) -> None:
        self._database, self._executor, self._recover = database, executor, recover
        super().__init__(self._try, name="takeover", pause_seconds=_PAUSE_SECONDS)

    def _try(self) -> None:
        try:
            self._look()
        except Exception as error:  # the boundary to the database, whose loss `ExecutorLock` reports: try again
            log.get().warning("library.warned", library="takeover", where=where(error))

    def _look(self) -> None:
        with self._database.connect() as connection:
            busy = connection.execute(_BUSY).scalars().all()
        for executor in sorted({executor for executor in busy if executor} - {self._executor}):
            self._take_over(executor)

    def _take_over(self, executor: str) -> None:
        """Hold the lock of a dead executor while its workflows are queued, so that it cannot start meanwhile."""
        with self._database.begin() as connection:
            if not connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_key(executor)))).scalar():
                return
            count = self._recover(executor)
        if count:
            log.get().warning("executor.recovered", executor=executor, workflows=count)


def _key(executor: str) -> sa.ColumnElement[int]:
    """Return the number of an executor's lock; the prefix keeps it apart from other programs on the server."""
    return sa.func.hashtextextended(f"chex-node executor {executor}", 0)
