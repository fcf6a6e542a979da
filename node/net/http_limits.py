"""How many HTTP connections may be open, in all and from one address, and which connection is closed for a new one.

A new connection is always accepted. At a limit another connection is closed for it: the one that has been idle longest,
of the address that is at its limit, or of the address that has most. A connection whose request is being answered is
closed last. So a probe, which sends its request at once, is answered while idle connections have every other place,
even if they come from the probe's own address. A reverse proxy loses idle connections only, and opens new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """What the table knows about a connection. Times are by `time.monotonic`."""

    @property
    def host(self) -> str:
        """The address of the client."""

    @property
    def idle_since(self) -> float:
        """When the connection was accepted or last answered."""

    @property
    def is_answering(self) -> bool:
        """Whether a complete header has come and its answer is not written yet."""

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return why the connection must be closed if its client took too long. Called once a second."""

    def close(self) -> None:
        """Close the connection now, without an answer."""


class ConnectionTable:
    """The open connections by address. Only the thread of the server calls it.

    on_closed: is called with the reason and the address for each connection that these limits close
    """

    def __init__(self, limits: Limits, on_closed: Callable[[CloseReason, str], None]) -> None:
        self.limits, self._on_closed = limits, on_closed
        self._by_host: dict[str, dict[OpenConnection, None]] = {}  # of each address, the longest idle comes first

    @property
    def count(self) -> int:
        """How many connections are open."""
        return sum(map(len, self._by_host.values()))

    def add(self, connection: OpenConnection) -> None:
        """Add a new connection; at a limit, close another."""
        of_host = self._by_host.get(connection.host, {})
        if len(of_host) >= self.limits.by_host:
            self._close_longest_idle([of_host], "host")
        elif self.count >= self.limits.connections:
            self.close_longest_idle("limit")
        self._by_host.setdefault(connection.host, {})[connection] = None

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection, if it is there."""
        of_host = self._by_host.get(connection.host, {})
        of_host.pop(connection, None)
        if not of_host:
            self._by_host.pop(connection.host, None)

    def replace(self, connection: OpenConnection, successor: OpenConnection) -> None:
        """Put a successor from the same address in the place of a connection, if that is there.

        The successor, which may be the connection itself, counts as the least idle of its address.
        """
        of_host = self._by_host.get(connection.host, {})
        if connection in of_host:
            del of_host[connection]
            of_host[successor] = None

    def close_longest_idle(self, reason: CloseReason) -> None:
        """Close one connection of the address that has most, if any is open."""
        if self._by_host:
            most = max(map(len, self._by_host.values()))
            self._close_longest_idle([of_host for of_host in self._by_host.values() if len(of_host) == most], reason)

    def close_overdue(self, now: float) -> None:
        """Close every connection whose client took too long."""
        for connection in self._all():
            if (reason := connection.overdue(now, self.limits)) is not None:
                self._close(connection, reason)

    def note_malformed(self, connection: OpenConnection) -> None:
        """Report a connection that closes itself because its client sent what is no request."""
        self._on_closed("protocol", connection.host)

    def close_idle(self) -> None:
        """Close every connection that has no request to be answered, because the server stops."""
        for connection in self._all():
            if not connection.is_answering:
                self.remove(connection)
                connection.close()

    def close_all(self) -> None:
        """Close every connection, because the server stops."""
        for connection in self._all():
            self.remove(connection)
            connection.close()

    def _all(self) -> list[OpenConnection]:
        return [connection for of_host in self._by_host.values() for connection in of_host]

    def _close_longest_idle(self, groups: Iterable[dict[OpenConnection, None]], reason: CloseReason) -> None:
        longest = [_longest_idle(of_host) for of_host in groups]
        self._close(min(longest, key=lambda connection: (connection.is_answering, connection.idle_since)), reason)

    def _close(self, connection: OpenConnection, reason: CloseReason) -> None:
        self._on_closed(reason, connection.host)
        self.remove(connection)
        connection.close()


def _longest_idle(of_host: dict[OpenConnection, None]) -> OpenConnection:
    """Return the first that is not being answered, or just the first."""
    return next((connection for connection in of_host if not connection.is_answering), next(iter(of_host)))
