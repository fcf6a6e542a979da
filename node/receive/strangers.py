"""Connections from addresses that no setting names: one thread looks at them, one at a time and not more often than it
must, so that they cost known callers nothing that counts.

A stranger gets no thread of its own and no association. It waits until something has come from it, is then met, and is
refused in a moment, unless what it says lets it in. When too many wait, the one that has waited longest is closed.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_PLACES: Final = 32
_LOOK_MILLISECONDS: Final = 50  # after which a new connection is looked at, too
_PAUSE_SECONDS: Final = 0.01
_CLOSE_SECONDS: Final = 5.0

ClientAddress = tuple[str, int]


@dataclass(slots=True, kw_only=True, eq=False)
class Stranger:
    """A connection from an unknown address; until: when it is closed if nothing came (of `time.monotonic`)."""

    request: socket.socket
    address: ClientAddress
    until: float

    @property
    def host(self) -> str:
        """The address without its port."""
        return str(self.address[0])


class Strangers:
    """Waits for the first bytes of strangers, and has each met, until closed.

    meet: gets a stranger from which something has come, and owns its connection from then on; must not raise
    wait_seconds: how long a stranger may say nothing
    on_refused: gets the address of a stranger that was closed without being met, and the reason
    """

    def __init__(
        self, meet: Callable[[Stranger], None], *, wait_seconds: float, on_refused: Callable[[str, str], None]
    ) -> None:
        self._meet, self._wait_seconds, self._on_refused = meet, wait_seconds, on_refused
        self._changed, self._is_closed = threading.Condition(), False
        self._waiting: dict[int, Stranger] = {}  # by descriptor; who has waited longest comes first
        self._thread = threading.Thread(target=self._run, name="strangers", daemon=True)
        self._thread.start()

    def add(self, connection: socket.socket, address: ClientAddress) -> None:
        """Let a new connection wait; never blocks."""
        stranger = Stranger(request=connection, address=address, until=time.monotonic() + self._wait_seconds)
        with self._changed:
            longest = self._taken(next(iter(self._waiting))) if len(self._waiting) >= _PLACES else None
            self._waiting[connection.fileno()] = stranger
            self._changed.notify()
        if longest is not None:
            self._refuse(longest, "caller")

    def close(self) -> None:
        """Close every connection that waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        for stranger in self._waiting.values():
            stranger.request.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                descriptors = list(self._waiting)
            if self._is_closed:
                return
            for descriptor in _heard(descriptors):
                with self._changed:
                    stranger = self._taken(descriptor)
                if stranger is not None:
                    self._meet(stranger)
                    time.sleep(_PAUSE_SECONDS)
            self._end_overdue()

    def _end_overdue(self) -> None:
        now = time.monotonic()
        with self._changed:
            overdue = [descriptor for descriptor, stranger in self._waiting.items() if stranger.until < now]
            ended = [stranger for descriptor in overdue if (stranger := self._taken(descriptor)) is not None]
        for stranger in ended:
            self._refuse(stranger, "silent")

    def _taken(self, descriptor: int) -> Stranger | None:
        return self._waiting.pop(descriptor, None)

    def _refuse(self, stranger: Stranger, reason: str) -> None:
        with suppress(OSError):
            stranger.request.close()
        self._on_refused(stranger.host, reason)


def _heard(descriptors: Iterable[int]) -> list[int]:
    """Wait a moment for bytes, or an end, of connections; return those that have any."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(_LOOK_MILLISECONDS)]
