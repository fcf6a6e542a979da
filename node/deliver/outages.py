"""Waits for destinations that are down, with one probe per destination, however many deliveries wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from node import log
from node.errors import RetryLater

_SHORTEST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 5.0
_PATIENCE: Final = 4.0  # after a pause of 4 s the next probe comes 1 s later, after 20 s and more 5 s


class Pauses:
    """Waits for destinations until closed; used by several threads."""

    def __init__(self) -> None:
        self._closing = threading.Event()
        self._finding = threading.Lock()
        self._pauses: dict[str, _Pause] = {}

    def close(self) -> None:
        """End every current and future wait at once."""
        self._closing.set()

    def wait(self, destination: str, probe: Callable[[], None], *, limit_seconds: float) -> bool:
        """Wait until a destination answers; false when it does not answer in time, or when the node stops.

        probe: returns when the destination answers, raises RetryLater when not; called at once, then every 1 to 5 s
        """
        with self._finding:
            pause = self._pauses.setdefault(destination, _Pause(destination))
        began = time.monotonic()
        while not self._closing.is_set():
            if pause.is_over(probe, since=began):
                return True
            left = began + limit_seconds - time.monotonic()
            if left <= 0:
                return False
            self._closing.wait(min(pause.seconds_to_next, left))
        return False


class _Pause:
    """One destination, as the last probe found it."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._probing = threading.Lock()
        self._down_since: float | None = None
        self._answered_at = self._next_at = 0.0

    @property
    def seconds_to_next(self) -> float:
        """Seconds until the next probe is due."""
        return max(0.0, self._next_at - time.monotonic())

    def is_over(self, probe: Callable[[], None], *, since: float) -> bool:
        """Say whether the destination has answered since a time; probe it if a probe is due."""
        with self._probing:
            if self._answered_at < since and self.seconds_to_next <= 0:
                self._look(probe)
            return self._answered_at >= since

    def _look(self, probe: Callable[[], None]) -> None:
        try:
            probe()
        except RetryLater as error:
            self._is_down(str(error))
        else:
            self._is_back()

    def _is_down(self, reason: str) -> None:
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
            log.get().warning("destination.down", destination=self._destination, reason=reason)
        self._next_at = now + min(max((now - self._down_since) / _PATIENCE, _SHORTEST_SECONDS), _LONGEST_SECONDS)

    def _is_back(self) -> None:
        self._answered_at, self._next_at = time.monotonic(), 0.0
        if self._down_since is not None:
            seconds = round(self._answered_at - self._down_since, 1)
            log.get().info("destination.back", destination=self._destination, seconds=seconds)
            self._down_since = None
