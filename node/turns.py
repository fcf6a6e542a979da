"""Turns of work: some stand beside each other, and one that asks for it stands alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets several threads work together, or one alone. Work in a turn must not ask for another turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns = 0  # of work that others may stand beside
        self._is_alone = False
        self._waiting = 0  # for a turn alone

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work beside others, but not beside work that is done alone."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_alone or self._waiting))
            self._turns += 1
        try:
            yield
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work alone; whoever waits for that goes before those that work together."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not (self._is_alone or self._turns))
                self._is_alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
