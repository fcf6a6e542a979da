"""Who may use the device next: one call at a time, and a person's question before the films that wait.

A film is read by a chain of calls, and a question goes between two of them, or between two tokens of its sentences. So
it waits for milliseconds, and never changes what a film's answer is: a film continues with what it had computed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition
from typing import Final

FILM_PATIENCE_SECONDS: Final = 2.0
"""A film's call that has waited so long goes before questions, so that questions without end stop no film."""

_is_person: ContextVar[bool] = ContextVar("is_person", default=False)


@contextmanager
def for_person() -> Iterator[None]:
    """Let the calls that this thread makes in the block go before those of films."""
    token = _is_person.set(True)
    try:
        yield
    finally:
        _is_person.reset(token)


class Turns:
    """Lets one call at a time use a device. Calls of one kind keep their order."""

    def __init__(self, *, patience_seconds: float = FILM_PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._changed = Condition()
        self._is_taken = False
        self._people, self._films = deque[float](), deque[float]()  # when each began to wait

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, and have it while the block runs."""
        queue = self._people if _is_person.get() else self._films
        with self._changed:
            queue.append(began := time.monotonic())
            self._wait(queue, began)
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def give_way(self) -> None:
        """Let people use the device, in the middle of a film's turn; the film goes on before all other films."""
        if _is_person.get() or not self._people:
            return
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()
            self._films.appendleft(began := time.monotonic())
            self._wait(self._films, began)

    def _wait(self, queue: deque[float], began: float) -> None:
        """Wait until a call in a queue is next, and take the device."""
        self._changed.wait_for(lambda: not self._is_taken and self._next() is queue and queue[0] == began)
        queue.popleft()
        self._is_taken = True

    def _next(self) -> deque[float]:
        """Return the queue whose first call is next."""
        waits_long = bool(self._films) and time.monotonic() - self._films[0] > self._patience_seconds
        return self._people if self._people and not waits_long else self._films
