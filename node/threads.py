"""Threads: one that repeats an action until it is closed, and turns of work, beside each other or alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node import log
from node.errors import where


class Periodic:
    """Calls `act` again and again with a pause in between.

    An error of `act` is logged, and ends nothing. at_once: start without a pause
    """

    def __init__(self, act: Callable[[], None], *, name: str, pause_seconds: float, at_once: bool = False) -> None:
        self._act, self._pause_seconds, self._at_once = act, pause_seconds, at_once
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop after the current call."""
        self._closing.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        if self._at_once:
            self._try()
        while not self._closing.wait(timeout=self._pause_seconds):
            self._try()

    def _try(self) -> None:
        try:
            self._act()
        except Exception as error:  # a boundary: a disk or a database may work again the next time
            log.get().error("thread.failed", name=self._thread.name, reason=where(error))


class Turns:
    """Lets several threads work together, or one alone, in turns. Work in a turn must not ask for another turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns = 0  # of work that others may stand beside
        self._is_alone = False
        self._waiting_alone = self._waiting_together = 0
        self._over = 0  # turns alone that are over
        self._due = 0  # who waited when the last of them was over, and goes before the next

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work beside others, but not beside work that is done alone. At most one turn alone goes before."""
        with self._changed:
            began = self._over
            self._waiting_together += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and (not self._waiting_alone or self._over > began))
            finally:
                self._waiting_together -= 1
                if self._over > began:
                    self._due -= 1
                self._changed.notify_all()
            self._turns += 1
        try:
            yield
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work alone: after current work together, and before later work."""
        with self._changed:
            self._waiting_alone += 1
            try:
                self._changed.wait_for(lambda: not (self._is_alone or self._turns or self._due))
                self._is_alone = True
            finally:
                self._waiting_alone -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._over += 1
                self._due = self._waiting_together
                self._changed.notify_all()
