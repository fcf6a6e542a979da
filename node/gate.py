"""The door through which every step goes, so that a failing disk or database stops the process and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from node import log
from node.errors import where

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
            log.get().error("engine.broken", reason=where(error))
            self._leave(is_broken=True)
            while True:
                threading.Event().wait()
        self._leave()
        return result

    def close(self, *, limit_seconds: float) -> None:
        """Let nobody in any more, and wait for those inside."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._in_hand == 0, limit_seconds)

    def _leave(self, *, is_broken: bool = False) -> None:
        with self._changed:
            self._in_hand -= 1
            self.is_broken |= is_broken
            self._is_closed |= is_broken
            self._changed.notify_all()
