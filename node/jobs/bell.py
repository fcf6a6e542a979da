"""Wakes the executor's queues when this process queues work, so that nothing waits for the next look at a queue.

DBOS looks at each queue, and at work whose delay has ended, at intervals only. A bell ends the wait of a queue as soon
as a workflow was queued for it here, its delay is over, or a workflow of the queue has ended and left its place. Work
that another process queues is still found at the interval. The internals of DBOS that this file uses are those of
DBOS 3.4.0; tests/test_bell.py fails when one of them has changed.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from typing import Final

from dbos import DBOS, SetEnqueueOptions, _core, _queue

_WORK: Final = _queue.queue_worker_thread
_LATE_SECONDS: Final = 0.005  # DBOS counts delays in whole milliseconds


class Bell:
    """Wakes the queues of one process; used by several threads. Before `watch`, and without it, it wakes nobody."""

    def __init__(self) -> None:
        self._rung: dict[str, threading.Event] = {}
        self._changed = threading.Condition()
        self._later: list[tuple[float, str]] = []

    def watch(self, executor: DBOS) -> None:
        """Wake the queues of an executor that is launched next."""

        def work(stop_event: threading.Event, dbos: DBOS, queue: _queue.Queue) -> None:
            _WORK(_Wait(stop_event, self._event(queue.name)), dbos, queue)

        _queue.queue_worker_thread = work
        executor._active_workflows_set = _Active(self.ring)
        thread = threading.Thread(target=self._run, args=(executor,), name="bell", daemon=True)
        thread.start()

    def ring(self, queue: str, *, after_seconds: float = 0.0) -> None:
        """Wake a queue, now or when a delay that began at the latest now has ended; never blocks."""
        if after_seconds <= 0:
            self._event(queue).set()
            return
        with self._changed:
            heapq.heappush(self._later, (time.monotonic() + after_seconds + _LATE_SECONDS, queue))
            self._changed.notify()

    def enqueue(
        self,
        queue: str,
        workflow: Callable[..., None],
        *arguments: object,
        place: int | None = None,
        delay_seconds: float | None = None,
    ) -> None:
        """Queue a workflow, and wake its queue; place: the lowest is run first."""
        with SetEnqueueOptions(priority=place, delay_seconds=delay_seconds):
            DBOS.enqueue_workflow(queue, workflow, *arguments)
        self.ring(queue, after_seconds=delay_seconds or 0.0)

    def _event(self, queue: str) -> threading.Event:
        with self._changed:
            return self._rung.setdefault(queue, threading.Event())

    def _run(self, executor: DBOS) -> None:
        while True:
            with self._changed:
                while not self._later or self._later[0][0] > time.monotonic():
                    self._changed.wait(self._later[0][0] - time.monotonic() if self._later else None)
                due = set()
                while self._later and self._later[0][0] <= time.monotonic():
                    due.add(heapq.heappop(self._later)[1])
            try:
                executor._sys_db.transition_delayed_workflows()
            except Exception:  # the boundary to the executor's database: the executor itself looks once a second
                continue
            for queue in due:
                self.ring(queue)


class _Wait(threading.Event):
    """The stop event of a queue, whose `wait` also ends when the queue is rung."""

    def __init__(self, stop: threading.Event, rung: threading.Event) -> None:
        super().__init__()
        self._stop, self._rung = stop, rung

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._rung.wait(timeout)
        self._rung.clear()
        return self._stop.is_set()


class _Active(_core.ActiveWorkflowById):
    """The running workflows, which ring the queue of one that ends: its place is free."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        super().__init__()
        self._ring = ring

    def _remove(self, key: str, bucket: _core.QueueBucket) -> None:
        super()._remove(key, bucket)
        if bucket is not None:
            self._ring(bucket[0])
