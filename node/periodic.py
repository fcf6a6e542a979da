"""A thread that repeats one action until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """Calls `act` again and again with a pause in between; `act` must not raise.

    at_once: start without a pause
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
            self._act()
        while not self._closing.wait(timeout=self._pause_seconds):
            self._act()
