"""How many HTTP connections may be open, in all and from one address, and which connection is closed for a new one.

A new connection is always accepted. At a limit another connection is closed for it: the one that has been idle longest,
of the address that is at its limit, or of the address that has most. A connection whose request is being answered is
closed last. So a probe, which sends its request at once, is answered while idle connections have every other place,
even if they come from the probe's own address. A reverse proxy loses idle connections only, and opens new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

CloseReason: TypeAlias = Literal["silent", "stalled", "host", "limit", "descriptors", "protocol"]
CLOSE_REASONS: Final = get_args(CloseReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many connections may be open, and how long a client may take.

    connections, by_host: in all, and from one address
    header_seconds: for sending a header, or the rest of a body that the answer did not need
    stalled_seconds: without taking any part of an answer, or for sending the next `body_bytes` of a body
    """

    connections: int
    by_host: int
    header_seconds: float = 5.0
    stalled_seconds: float = 10.0
    body_bytes: int = 64 * 1024


class OpenConnection(Protocol):
    """What the table knows about a connection.

    host: the address of the client
    is_answering: whether a complete header has come and its answer is not written yet
    """

    host: str
    is_answering: bool

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return why the connection must be closed if its client took too long. Called once a second."""

    def close(self) -> None:
        """Close the connection now, without an answer."""


class ConnectionTable:
    """The open connections. Only the thread of the server calls it.

    on_closed: is called with the reason and the address for each connection that these limits close
    added: how many connections there were; is_stopping: whether the server closes connections, so nothing is malformed
    """

    def __init__(self, limits: Limits, on_closed: Callable[[CloseReason, str], None]) -> None:
        self.limits, self._on_closed = limits, on_closed
        self._open: dict[OpenConnection, None] = {}  # the longest idle comes first
        self._by_host: Counter[str] = Counter()
        self.added, self.is_stopping = 0, False

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def add(self, connection: OpenConnection) -> None:
        """Add a new connection; at a limit, close another."""
        if self._by_host[connection.host] >= self.limits.by_host:
            self._close_longest_idle({connection.host}, "host")
        elif self.count >= self.limits.connections:
            self.close_longest_idle("limit")
        self._open[connection] = None
        self._by_host[connection.host] += 1
        self.added += 1

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection, if it is there."""
        if connection in self._open:
            del self._open[connection]
            self._by_host[connection.host] -= 1
            if not self._by_host[connection.host]:
                del self._by_host[connection.host]

    def touch(self, connection: OpenConnection) -> None:
        """Make a connection the least idle, because it was answered, if it is there."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def close_longest_idle(self, reason: CloseReason) -> None:
        """Close one connection of the address that has most, if any is open."""
        if self._open:
            most = max(self._by_host.values())
            self._close_longest_idle({host for host, count in self._by_host.items() if count == most}, reason)

    def close_overdue(self, now: float) -> None:
        """Close every connection whose client took too long."""
        for connection in list(self._open):
            if (reason := connection.overdue(now, self.limits)) is not None:
                self._close(connection, reason)

    def note_malformed(self, connection: OpenConnection) -> None:
        """Report a connection that closes itself because its client sent what is no request."""
        if not self.is_stopping:
            self._on_closed("protocol", connection.host)

    def close_all(self) -> None:
        """Close every connection, because the server stops."""
        for connection in list(self._open):
            self.remove(connection)
            connection.close()

    def _close_longest_idle(self, hosts: set[str], reason: CloseReason) -> None:
        oldest = (connection for connection in self._open if connection.host in hosts)
        idle = (connection for connection in self._open if connection.host in hosts and not connection.is_answering)
        self._close(next(idle, None) or next(oldest), reason)

    def _close(self, connection: OpenConnection, reason: CloseReason) -> None:
        self._on_closed(reason, connection.host)
        self.remove(connection)
        connection.close()
