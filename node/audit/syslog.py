"""Syslog for audit messages: the header of RFC 5424 as PS3.15 A.6 asks for it, and frames over TLS by RFC 5425.

Syslog has no acknowledgment. Messages count as taken only when the collector's TCP has acknowledged them all, and the
collector then closes its side in order.
"""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import struct
import termios
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from node.audit.message import Reporter
from node.deliver.connection import connect
from node.errors import DestinationDown
from node.net.tls import complaint
from node.settings.audit import Collector

_PRIORITY: Final = 10 * 8 + 5
"""Facility 10 (security and authorization), severity 5 (normal but significant)."""

_MESSAGE_ID: Final = "DICOM+RFC3881"
_APPLICATION: Final = "chex-node"
_UNKNOWN: Final = "-"
_LIMIT_SECONDS: Final = 10.0
_REFUSAL_SECONDS: Final = 1.0
_ASK_SECONDS: Final = 0.001


def line(message: str, *, at: datetime, reporter: Reporter) -> bytes:
    """Return a message with its header, without an end of line (RFC 5424 6)."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    machine = "".join(character for character in reporter.machine if "!" <= character <= "~")[:255] or _UNKNOWN
    header = f"<{_PRIORITY}>1 {moment} {machine} {_APPLICATION} {reporter.process_id} {_MESSAGE_ID} -"
    return f"{header} \N{ZERO WIDTH NO-BREAK SPACE}{message}".encode()


def send(lines: Iterable[bytes], collector: Collector, *, limit_seconds: float = _LIMIT_SECONDS) -> None:
    """Send messages on one connection; returns when the collector has read all of them. Raises DestinationDown."""
    with connect(collector, limit_seconds=limit_seconds) as connection:
        try:
            connection.sendall(b"".join(b"%d %s" % (len(message), message) for message in lines))
            _finish(connection)
        except OSError as error:
            raise _not_taken(collector, error) from error


def probe(collector: Collector, *, limit_seconds: float = _LIMIT_SECONDS) -> None:
    """Connect without sending a message. Raises DestinationDown, also if the collector closes the connection at once.

    In TLS 1.3 a client learns only after its handshake that its own certificate was refused (RFC 8446 4.4.2.4).
    """
    with connect(collector, limit_seconds=limit_seconds) as connection:
        connection.settimeout(_REFUSAL_SECONDS)
        try:
            connection.recv(1)
        except TimeoutError:
            return  # as expected: a collector says nothing
        except OSError as error:
            raise _not_taken(collector, error) from error
    raise DestinationDown(f"{collector.name} closes the connection at once; see its log, it may refuse the node")


def _finish(connection: socket.socket) -> None:
    """Close our side, and wait until the collector has everything and closes its own. Raises OSError if it does not.

    The end of its side alone proves nothing: it may have ended before our messages arrived. A closed socket never
    acknowledges bytes, and one that is closed with unread bytes resets the connection.
    """
    if isinstance(connection, ssl.SSLSocket):
        with suppress(ssl.SSLEOFError):  # rsyslog 8.2302 closes without the close_notify of RFC 5425 4.4
            connection.unwrap()
    connection.shutdown(socket.SHUT_WR)
    end = time.monotonic() + (connection.gettimeout() or _LIMIT_SECONDS)
    while _unacknowledged(connection):
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_ASK_SECONDS)
    while connection.recv(4096):
        pass
    _raise_reset(connection)


def _unacknowledged(connection: socket.socket) -> int:
    """Return how many bytes the other machine has not acknowledged. Raises OSError after a reset."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    _raise_reset(connection)
    return int(count)


def _raise_reset(connection: socket.socket) -> None:
    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _not_taken(collector: Collector, error: OSError) -> DestinationDown:
    reason = complaint(error) if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__
    return DestinationDown(f"{collector.name} did not take all messages ({reason})")
