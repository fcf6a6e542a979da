"""Who is alive, on PostgreSQL: every executor holds a lock there, and its work goes to the others when it dies.

The lock belongs to a connection of its own and goes with it, however the process ends; the server closes one that says
nothing for ten seconds. An executor that lost this connection must stop: another one may have its work already. What a
dead one had in hand goes back into its queues, where whoever has that role takes it. (ENGINE.md 2)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from node import log
from node.errors import Stopped, where
from node.periodic import Periodic

_PAUSE_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 10
_BUSY: Final = sa.text("SELECT DISTINCT executor_id FROM dbos.workflow_status WHERE status = 'PENDING'")


class Lifeline:
    """Holds the lock of one executor until closed, and says once that it is lost.

    silence_seconds: after which the server takes the lock from a process that is frozen or cut off
    """

    def __init__(
        self, engine: sa.Engine, executor: str, *, stop: threading.Event, silence_seconds: int = _SILENCE_SECONDS
    ) -> None:
        """Wait for the lock: whoever had this name before may still be ending, or its work be handed over.

        Raises Stopped when asked to stop meanwhile, SQLAlchemyError without a database.
        """
        self._executor = executor
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()  # never back into the pool, which would keep the lock
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._connection.execute(sa.text(f"SET idle_session_timeout = '{silence_seconds}s'"))
            self._wait_for_lock(stop)
        except BaseException:
            self._connection.close()
            raise

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Ask for the lock's connection once a second from now on; `on_lost` hears why the process must end."""
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="lifeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the lock back, with its connection."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._connection.close()

    def _wait_for_lock(self, stop: threading.Event) -> None:
        query = sa.select(sa.func.pg_try_advisory_lock(_key(self._executor)))
        is_told = False
        while not self._connection.execute(query).scalar():
            if not is_told:
                log.get().warning("executor.waiting", executor=self._executor)
            is_told = True
            if stop.wait(timeout=_PAUSE_SECONDS):
                raise Stopped(f"executor {self._executor}: asked to stop before it had its lock")

    def _run(self, on_lost: Callable[[str], None]) -> None:
        while not self._closing.wait(timeout=_PAUSE_SECONDS):
            try:
                self._connection.execute(sa.select(1))
            except sa.exc.SQLAlchemyError as error:
                return on_lost(f"the lock of executor {self._executor} is lost: {where(error)}")


class Heir(Periodic):
    """Looks once a second, until closed, for dead executors that had work in hand.

    recover: puts an executor's work back into its queues, and counts it
    """

    def __init__(self, engine: sa.Engine, executor: str, recover: Callable[[str], int]) -> None:
        self._engine, self._executor, self._recover = engine, executor, recover
        super().__init__(self._try, name="heir", pause_seconds=_PAUSE_SECONDS)

    def _try(self) -> None:
        try:
            self._look()
        except Exception as error:  # the boundary to the database, which the lifeline watches: look again
            log.get().warning("library.warned", library="heir", where=where(error))

    def _look(self) -> None:
        with self._engine.connect() as connection:
            busy = connection.execute(_BUSY).scalars().all()
        for executor in sorted({one for one in busy if one} - {self._executor}):
            self._take_over(executor)

    def _take_over(self, executor: str) -> None:
        """Hold a dead executor's lock while its work is put back, so that it does not start meanwhile."""
        with self._engine.begin() as connection:
            if not connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_key(executor)))).scalar():
                return
            count = self._recover(executor)
        if count:
            log.get().warning("executor.recovered", executor=executor, workflows=count)


def _key(executor: str) -> sa.ColumnElement[int]:
    """The number of an executor's lock; the words keep it apart from other programs on the server."""
    return sa.func.hashtextextended(f"chex-node executor {executor}", 0)
