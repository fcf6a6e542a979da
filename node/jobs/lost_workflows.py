"""Finds lost work: workflows of this process whose thread ended, and workflows of dead executors.

The executor records what a workflow returns or raises. A thread can end without either: by an exception that is no
`Exception`, such as a panic of a library in Rust, or by a failure of the executor's own code. Then the database still
shows the workflow as running: its study would stay "reading", and every later round of it would wait. Such a workflow
is run again, and its work is parked if that does not help.

On PostgreSQL every executor holds a lock, and when it dies another executor takes its work. The lock belongs to a
connection of its own and ends with it, however the process ends. The server closes a connection that is silent for ten
seconds. An executor that lost its connection must stop, because another one may have its work already. The unfinished
workflows of a dead executor go back into their queues (durable-engine §2).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from node import log
from node.errors import Stopped, where
from node.metrics import Metrics
from node.threads import Periodic

MOST_LOSSES: Final = 3
"""How often a workflow may be lost in one process before its work is parked."""

LOST_STAGE: Final = "workflow"
"""The stage of work that was parked because its workflow was lost."""

_PAUSE_SECONDS: Final = 2.0
_RECORDING_SECONDS: Final = 120.0
"""How long the executor may take to record a workflow's result; it tries again after up to 90 s."""
_NO_REASON: Final = "its thread ended without a result"

Park = Callable[[Sequence[object], str], None]
"""Parks the work of a workflow: its arguments, and a reason."""
_LOCK_PAUSE_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 10
"""After this time the server releases the lock of a process that is frozen or disconnected."""
_BUSY: Final = sa.text("SELECT DISTINCT executor_id FROM dbos.workflow_status WHERE status = 'PENDING'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattended:
    """A workflow of this process that has begun, has no outcome, and that no thread runs.

    reason: how its thread ended, if that is known
    """

    id: str
    name: str
    queue: str | None
    study: str | None
    arguments: Sequence[object]
    reason: str | None


class Attended:
    """The workflows that threads of this process run, or ran just now; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._running = Counter[str]()
        self._returned: dict[str, float] = {}  # deadlines for recording an outcome; earliest first
        self._reasons: dict[str, str] = {}

    @contextmanager
    def run(self, workflow: str) -> Iterator[None]:
        """Record that this thread runs a workflow until the block ends, and the exception that ends it."""
        with self._changed:
            self._running[workflow] += 1
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._reasons[workflow] = where(error)
            raise
        else:
            with self._changed:
                self._reasons.pop(workflow, None)
                self._returned.pop(workflow, None)
                self._returned[workflow] = time.monotonic() + _RECORDING_SECONDS
        finally:
            with self._changed:
                self._running[workflow] -= 1
                self._running += Counter()  # keeps those above 0

    def holds(self, workflow: str) -> bool:
        """Whether a thread runs a workflow, or has just returned from it so that its outcome may still be recorded."""
        with self._changed:
            now = time.monotonic()
            while self._returned and next(iter(self._returned.values())) <= now:
                del self._returned[next(iter(self._returned))]
            return workflow in self._running or workflow in self._returned

    def reason(self, workflow: str) -> str | None:
        """Return the reason by which a workflow last ended, if it did not return."""
        with self._changed:
            return self._reasons.get(workflow)

    def forget(self, workflow: str) -> None:
        """Delete the record of how a workflow ended."""
        with self._changed:
            self._reasons.pop(workflow, None)


class LostWorkflows(Periodic):
    """Searches every few seconds, until closed, for lost workflows: unattended in two consecutive looks.

    unattended, run_again, end: see `executor.Executor`
    park: by name of a workflow, the function that parks its work; a workflow of another name is run again each time
    """

    def __init__(
        self,
        unattended: Callable[[], list[Unattended]],
        run_again: Callable[[Unattended], None],
        end: Callable[[Unattended], None],
        park: Mapping[str, Park],
        metrics: Metrics,
    ) -> None:
        self._unattended, self._run_again, self._end = unattended, run_again, end
        self._park, self._metrics = park, metrics
        self._seen = frozenset[str]()
        self._losses = Counter[str]()
        super().__init__(self.look, name="lost", pause_seconds=_PAUSE_SECONDS)

    def look(self) -> None:
        """Run lost workflows again, or park their work."""
        found = {workflow.id: workflow for workflow in self._unattended()}
        lost = [workflow for workflow in found.values() if workflow.id in self._seen]
        self._seen = frozenset(found).difference(workflow.id for workflow in lost)
        for workflow in lost:
            self._losses[workflow.id] += 1
            self._follow(workflow, times=self._losses[workflow.id])

    def _follow(self, workflow: Unattended, *, times: int) -> None:
        reason = workflow.reason or _NO_REASON
        self._metrics.failures.labels(LOST_STAGE, "lost").inc()
        log.get().error("workflow.lost", kind=workflow.name, study=workflow.study, times=times, reason=reason)
        park = self._park.get(workflow.name)
        if park is None or times < MOST_LOSSES:
            self._run_again(workflow)
            return
        park(workflow.arguments, f"its work ended {times} times without a result, at last: {reason}; then retry")
        self._end(workflow)
        del self._losses[workflow.id]


class ExecutorLock:
    """Holds the lock of one executor until closed, and reports once if the lock is lost."""

    def __init__(self, database: sa.Engine, executor: str, *, stop: threading.Event) -> None:
        """Wait for the lock. An earlier process of this name may still be ending, or another taking its work.

        Raises Stopped when `stop` is set meanwhile, SQLAlchemyError when the database does not answer.
        """
        self._executor = executor
        self._connection = database.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()  # never returned to the pool, which would keep the lock
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._connection.execute(sa.text(f"SET idle_session_timeout = '{_SILENCE_SECONDS}s'"))
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
            if stop.wait(timeout=_LOCK_PAUSE_SECONDS):
                raise Stopped(f"executor {self._executor}: stopped before it got its lock")

    def _run(self, on_lost: Callable[[str], None]) -> None:
        while not self._closing.wait(timeout=_LOCK_PAUSE_SECONDS):
            try:
                self._connection.execute(sa.select(1))
            except sa.exc.SQLAlchemyError as error:
                return on_lost(f"the lock of executor {self._executor} is lost: {where(error)}")


class Takeover(Periodic):
    """Searches once a second, until closed, for dead executors with unfinished workflows.

    recover: queues the workflows of an executor again, and returns their number
    """

    def __init__(self, database: sa.Engine, executor: str, recover: Callable[[str], int]) -> None:
        self._database, self._executor, self._recover = database, executor, recover
        super().__init__(self._look, name="takeover", pause_seconds=_LOCK_PAUSE_SECONDS)

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
    """Return an executor's lock number; the prefix avoids collisions with other programs on the server."""
    return sa.func.hashtextextended(f"chex-node executor {executor}", 0)
