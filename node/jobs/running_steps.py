"""Runs every step of a workflow, so that a failing disk or database stops the process and loses no work."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, ParamSpec, TypeVar

from node import log
from node.errors import NodeError, where

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RunningSteps:
    """Counts the running steps. Once it is closed, every new step waits until the process ends.

    attending: entered in the thread of a workflow for as long as its body runs
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_hand = 0
        self._is_closed = False
        self.is_broken = False
        self.attending: Callable[[], AbstractContextManager[None]] = nullcontext

    def run(self, work: Callable[[], _T]) -> _T:
        """Run one step.

        If the work raises, this closes permanently and the call never returns, so the executor cannot record a
        result. Exceptions that are no `Exception`, such as SystemExit, are raised: the workflow has no outcome
        (`lost_workflows`).
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._in_hand += 1
        try:
            return work()
        except Exception as error:  # disk and database: without them no step can be recorded
            failure = error
        finally:
            with self._changed:
                self._in_hand -= 1
                self._changed.notify_all()
        self._stay(failure)

    def guarded(self, body: Callable[_P, None]) -> Callable[_P, None]:
        """Wrap a workflow body so that an exception between its steps never reaches the executor.

        The executor would mark the workflow as failed. The wrapper closes this permanently instead, like `run`.
        Exceptions that are no `Exception` pass: the executor ends a workflow with some of its own, and others leave a
        workflow without an outcome (`lost_workflows`).
        """

        @functools.wraps(body)
        def run(*arguments: _P.args, **named: _P.kwargs) -> None:
            with self.attending():
                try:
                    body(*arguments, **named)
                except Exception as error:  # the boundary to the executor's database
                    self._stay(error)

        return run

    def fail(self, reason: str) -> None:
        """Close permanently; the process must end."""
        log.get().error("executor.broken", reason=reason)
        with self._changed:
            self.is_broken = self._is_closed = True
            self._changed.notify_all()

    def close(self, *, limit_seconds: float) -> None:
        """Start no new step, and wait for the running ones."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._in_hand == 0, limit_seconds)

    def _stay(self, error: Exception) -> NoReturn:
        """Close permanently, and wait for the process to end."""
        self.fail(str(error) if isinstance(error, NodeError) else where(error))
        while True:
            threading.Event().wait()
