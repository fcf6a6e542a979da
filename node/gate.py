"""The door through which every step goes, so that a failing disk or database stops the process and loses nothing."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from node import log
from node.errors import where

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Gate:
    """Counts the steps in hand. Once closed, whoever comes waits for the end of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_hand = 0
        self._is_closed = False
        self.is_broken = False

    def run(self, work: Callable[[], _T]) -> _T:
        """Be a step in hand.

        Work that raises closes the gate for good and never comes back: nothing may be noted of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._in_hand += 1
        try:
            result = work()
        except Exception as error:  # the boundary to disk and database, without which nothing durable goes on
            self._leave()
            self._stay(error)
        self._leave()
        return result

    def guarded(self, body: Callable[_P, None]) -> Callable[_P, None]:
        """Let nothing that a workflow's body raises between its steps reach the engine, which would end it there.

        What the engine itself raises to stop a workflow is no Exception, and passes.
        """

        @functools.wraps(body)
        def run(*arguments: _P.args, **named: _P.kwargs) -> None:
            try:
                body(*arguments, **named)
            except Exception as error:  # the boundary to the engine's database
                self._stay(error)

        return run

    def break_down(self, reason: str) -> None:
        """Let nobody in any more, for good: the process must end."""
        log.get().error("engine.broken", reason=reason)
        with self._changed:
            self.is_broken = self._is_closed = True
            self._changed.notify_all()

    def close(self, *, limit_seconds: float) -> None:
        """Let nobody in any more, and wait for those inside."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._in_hand == 0, limit_seconds)

    def _leave(self) -> None:
        with self._changed:
            self._in_hand -= 1
            self._changed.notify_all()

    def _stay(self, error: Exception) -> NoReturn:
        """Break down and wait for the end of the process."""
        self.break_down(where(error))
        while True:
            threading.Event().wait()
