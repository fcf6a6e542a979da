"""The bell wakes DBOS's own loop over a queue; the loop is the real one, its database a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from dbos import DBOS, _core, _queue

from node.jobs.bell import Bell

_LIMIT_SECONDS = 30.0


@dataclass
class Database:
    """Counts how often a queue was looked at; `seen` is set each time."""

    seen: threading.Event = field(default_factory=threading.Event)
    transitions: int = 0

    def dequeue_scopes(self, _queue: str) -> list[str]:
        self.seen.set()
        return []

    def transition_delayed_workflows(self) -> None:
        self.transitions += 1

    def wait_for_look(self) -> None:
        assert self.seen.wait(_LIMIT_SECONDS)
        self.seen.clear()


@dataclass
class Executor:
    """What the loop over a queue and the bell use of `DBOS`."""

    _sys_db: Database
    _active_workflows_set: _core.ActiveWorkflowById = field(default_factory=_core.ActiveWorkflowById)


@dataclass
class Queue:
    """A queue at which the loop looks once an hour."""

    name: str = "studies"
    _polling_interval_sec: float = 3600.0
    database_backed_queue: bool = False


@contextmanager
def polled(bell: Bell, executor: Executor) -> Iterator[None]:
    """Run DBOS's loop, which looks at the queue once before the block."""
    stop = threading.Event()
    bell.watch(cast(DBOS, executor))
    arguments = (stop, executor, Queue())
    thread = threading.Thread(target=_queue.queue_worker_thread, args=arguments, daemon=True)
    thread.start()
    bell.ring("studies")
    executor._sys_db.wait_for_look()
    try:
        yield
    finally:
        stop.set()
        bell.ring("studies")
        thread.join(_LIMIT_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setattr(_queue, "queue_worker_thread", _queue.queue_worker_thread)  # as it was, at the end
    return Executor(Database())


def test_a_queue_that_is_rung_is_looked_at(executor: Executor) -> None:
    bell = Bell()
    with polled(bell, executor):
        bell.ring("deliver archive")
        assert not executor._sys_db.seen.wait(0.1)  # of another queue

        bell.ring("studies")

        executor._sys_db.wait_for_look()


def test_a_delay_that_is_over_is_ended(executor: Executor) -> None:
    bell = Bell()
    with polled(bell, executor):
        bell.ring("studies", after_seconds=3600.0)
        bell.ring("studies", after_seconds=0.02)

        executor._sys_db.wait_for_look()

        assert executor._sys_db.transitions == 1


def test_a_workflow_that_ends_rings_its_queue(executor: Executor) -> None:
    with polled(Bell(), executor):
        entry = executor._active_workflows_set.add("workflow", "studies")
        assert executor._active_workflows_set.count_for_queue("studies") == 1

        entry.release()

        executor._sys_db.wait_for_look()
        assert executor._active_workflows_set.count_for_queue("studies") == 0


def test_dbos_uses_what_the_bell_replaces() -> None:
    assert "queue_worker_thread" in _queue.queue_thread.__code__.co_names
    assert {"_active_workflows_set", "_sys_db_field"} <= set(DBOS.__init__.__code__.co_names)
    assert "_active_workflows_set" in _core._execute_workflow_wthread.__code__.co_names
