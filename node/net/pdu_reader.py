"""Reads the bytes of one connection as whole PDUs, each within a time limit. Does not trust declared lengths.

pynetdicom waits without limit for the rest of a PDU, and reads whatever length the PDU declares.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_LONGEST_PDU: Final = 1024 * 1024
_HEAD: Final = 6  # type and length of a PDU
_TYPES: Final = range(1, 8)  # PS3.8 9.3.1

_QUICK_ACKNOWLEDGMENT: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux


class PduReader:
    """Reads the PDUs of one association in large pieces and limited time, and refuses PDUs that are too long.

    request_end: the time (of `time.monotonic`) by which data must have arrived before the association is admitted
    idle_seconds: the limit for each PDU afterwards, in both directions
    on_aborted: gets the reason why an admitted association ends; a caller that was not admitted is reported as refused
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        leave_pending: Callable[[], None],
        request_end: float,
        idle_seconds: float,
        on_aborted: Callable[[str], None],
    ) -> None:
        self._connection, self._idle_seconds, self._on_aborted = connection, idle_seconds, on_aborted
        self._leave_pending, self._request_end = leave_pending, request_end
        self._is_admitted, self._is_acknowledged = False, False
        self._buffer = memoryview(bytearray(_HEAD + _LONGEST_PDU))
        self._start = self._stop = 0  # of the bytes in the buffer that were received and not returned
        connection.settimeout(idle_seconds)

    def admit(self) -> None:
        """Be pending no longer, and end its time limit."""
        self._is_admitted = True
        self._leave_pending()

    def is_ready(self, *, wait_milliseconds: int) -> bool:
        """Wait until there is something to read, and say whether there is. Raises OSError or ValueError if closed."""
        if self._start < self._stop or (isinstance(self._connection, ssl.SSLSocket) and self._connection.pending()):
            return True
        return self._arrives(0) or (wait_milliseconds > 0 and self._arrives(wait_milliseconds))

    def read(self) -> memoryview:
        """Read one PDU whole. Returns a view of it, which the next call overwrites.

        Raises ValueError if its type does not exist, OSError if it is too long or too slow or the connection ends.
        """
        end = time.monotonic() + self._idle_seconds if self._is_admitted else self._request_end
        try:
            head = self._first(_HEAD, end)
            length = int.from_bytes(head[2:], "big")
            if head[0] not in _TYPES:
                self._stop = self._start  # where the next PDU begins cannot be known
                raise ValueError("the type of a PDU does not exist")
            if length > _LONGEST_PDU:
                self.tell_abort("length")
                raise ConnectionAbortedError("the declared length of a PDU is over the limit")
            pdu = self._first(_HEAD + length, end)
        except TimeoutError:
            self.tell_abort("stalled")
            raise
        self._start += len(pdu)
        return pdu

    def _first(self, count: int, end: float) -> memoryview:
        """Receive until the buffer holds so many bytes, and as many more as have arrived. Raises OSError."""
        if self._start == self._stop:
            self._start = self._stop = 0
        if self._start + count > len(self._buffer):
            self._buffer[: self._stop - self._start] = self._buffer[self._start : self._stop]
            self._start, self._stop = 0, self._stop - self._start
        while self._stop - self._start < count:
            received = self._receive(self._buffer[self._stop :], end)
            if not received:
                raise ConnectionResetError("the connection ended within a PDU, or before one")
            self._stop += received
        return self._buffer[self._start : self._start + count]

    def _receive(self, view: memoryview, end: float) -> int:
        """Receive what has arrived, or wait for it; 0 when the connection ends. Raises OSError, TimeoutError at `end`.

        `os.readv` does not wait, where a socket with a time limit is polled before each `recv`.
        """
        if isinstance(self._connection, ssl.SSLSocket):
            self._acknowledge()
            self._connection.settimeout(left(end))
            return self._connection.recv_into(view)
        while True:
            try:
                received = os.readv(self._connection.fileno(), [view])
            except BlockingIOError:
                self._arrives(math.ceil(1000 * left(end)))
            else:
                self._is_acknowledged = False
                return received

    def _arrives(self, wait_milliseconds: int) -> bool:
        """Wait until bytes arrive, and say whether they have. What was read is acknowledged before waiting."""
        if wait_milliseconds:
            self._acknowledge()
        poll = select.poll()  # select.select fails on descriptors above 1023
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(wait_milliseconds))

    def _acknowledge(self) -> None:
        """Acknowledge the bytes that were read without delay, where the system can.

        A sender with Nagle's algorithm, such as dcmtk's, otherwise waits 40 ms with the last bytes of each message. The
        system forgets this after a while. While bytes keep coming it is left out: it makes the system send, which took
        more than a quarter of the time in which no other association could go on.
        """
        if _QUICK_ACKNOWLEDGMENT is not None and not self._is_acknowledged:
            self._is_acknowledged = True
            with suppress(OSError):
                self._connection.setsockopt(socket.IPPROTO_TCP, _QUICK_ACKNOWLEDGMENT, 1)

    def limit_sending(self) -> None:
        """Set the time limit for the next PDU to the peer."""
        with suppress(OSError):
            self._connection.settimeout(self._idle_seconds)

    def tell_abort(self, reason: str) -> None:
        """Report that the node ends an admitted association."""
        if self._is_admitted:
            self._on_aborted(reason)


def read(connection: socket.socket, count: int, end: float) -> bytearray:
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
