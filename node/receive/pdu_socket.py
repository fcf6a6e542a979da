"""Reads the bytes of one connection as whole PDUs, each within a time limit. Does not trust declared lengths.

pynetdicom waits without limit for the rest of a PDU, and reads whatever length the PDU declares.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from node.net.pynetdicom_adapter import is_readable

_LONGEST_PDU: Final = 1024 * 1024
_LONGEST_REQUEST: Final = 256 * 1024  # 128 contexts with 50 transfer syntaxes each have 200 KB
_ASSOCIATE_REQUEST: Final = 0x01
_TITLES: Final = slice(10, 42)
_ABORT: Final = bytes.fromhex("07 00 00000004 00 00 02 01")  # PS3.8 9.3.8: by the provider, unrecognized PDU

_QUICK_ACKNOWLEDGMENT: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux


class NotAssociated(Exception):
    """A connection that does not become an association, with the reason; None: the peer left without sending."""

    def __init__(self, reason: str | None, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.message = reason, message


class PduReader:
    """Reads the bytes of one association in large pieces and limited time, and refuses PDUs that are too long.

    lobby_end: the time (of `time.monotonic`) by which data must have arrived before the association is admitted
    idle_seconds: the limit for each PDU afterwards, in both directions
    on_aborted: gets the reason why an admitted association ends; a caller that was not admitted is reported as refused
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        leave_lobby: Callable[[], None],
        lobby_end: float,
        idle_seconds: float,
        on_aborted: Callable[[str], None],
    ) -> None:
        self._connection, self._idle_seconds, self._on_aborted = connection, idle_seconds, on_aborted
        self._leave_lobby, self._lobby_end = leave_lobby, lobby_end
        self._is_admitted = False

    def admit(self) -> None:
        """Leave the lobby and its time limit."""
        self._is_admitted = True
        self._leave_lobby()

    def is_ready(self, *, wait_milliseconds: int) -> bool:
        """Wait until there is something to read, and say whether there is. Raises OSError or ValueError if closed."""
        if isinstance(self._connection, ssl.SSLSocket) and self._connection.pending():
            return True
        poll = select.poll()  # select.select fails on descriptors above 1023
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(wait_milliseconds))

    def read(self, count: int) -> bytearray:
        """Read this many bytes, fewer when the connection ends. Raises OSError if it is too long or too slow."""
        if count > _LONGEST_PDU:
            self._abort("length")
            raise ConnectionAbortedError("the declared length of a PDU is over the limit")
        end = time.monotonic() + self._idle_seconds if self._is_admitted else self._lobby_end
        _acknowledge_at_once(self._connection)
        try:
            return _read(self._connection, count, end)
        except TimeoutError:
            self._abort("stalled")
            raise

    def limit_sending(self) -> None:
        """Set the time limit for the next PDU to the peer."""
        with suppress(OSError):
            self._connection.settimeout(self._idle_seconds)

    def _abort(self, reason: str) -> None:
        if self._is_admitted:
            self._on_aborted(reason)


def read_request(connection: socket.socket, end: float) -> bytes:
    """Read the whole first PDU, which must be an A-ASSOCIATE-RQ (PS3.8 9.3.2). Raises NotAssociated.

    Zeros that pad an AE title are read as spaces: some old modalities send them, and dcmtk accepts them.
    """
    try:
        head = _read(connection, 6, end)
        length = int.from_bytes(head[2:], "big")
        if len(head) == 6 and head[0] == _ASSOCIATE_REQUEST and length <= _LONGEST_REQUEST:
            request = head + _read(connection, length, end)
            request[_TITLES] = request[_TITLES].replace(b"\0", b" ")
            if len(request) == 6 + length and is_readable(bytes(request)):
                return bytes(request)
        connection.sendall(_ABORT)
    except TimeoutError as error:
        raise NotAssociated("silent") from error
    except OSError as error:
        raise NotAssociated("protocol") from error
    raise NotAssociated("protocol")


def _acknowledge_at_once(connection: socket.socket) -> None:
    """Acknowledge the bytes that are read next without delay, where the system can.

    A sender with Nagle's algorithm, such as dcmtk's, otherwise waits 40 ms with the last bytes of each message. The
    system forgets this after a while.
    """
    if _QUICK_ACKNOWLEDGMENT is not None:
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _QUICK_ACKNOWLEDGMENT, 1)


def _read(connection: socket.socket, count: int, end: float) -> bytearray:
    """Read until so many bytes have arrived or the connection ends. Raises OSError, TimeoutError at `end`."""
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        connection.settimeout(left(end))
        received = connection.recv_into(view[done:])
        if not received:
            return buffer[:done]
        done += received
    return buffer


def left(end: float) -> float:
    """Return the seconds until `end` (of `time.monotonic`). Raises TimeoutError when it has passed."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
