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
from typing import Final, cast

from pynetdicom.association import Association
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.transport import AssociationSocket

from node.receive.dimse import Reception

_LONGEST_PDU: Final = 1024 * 1024
_LONGEST_REQUEST: Final = 256 * 1024  # 128 contexts with 50 transfer syntaxes each have 200 KB
_ASSOCIATE_REQUEST: Final = 0x01
_TITLES: Final = slice(10, 42)
_ABORT: Final = bytes.fromhex("07 00 00000004 00 00 02 01")  # PS3.8 9.3.8: by the provider, unrecognized PDU
_DATA_TRANSFER: Final = "Sta6"  # PS3.8 9.2.1
_WAIT_MILLISECONDS: Final = 20


class NotAssociated(Exception):
    """A connection that does not become an association, with the reason; None: the peer left without sending."""

    def __init__(self, reason: str | None, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.message = reason, message


class GuardedSocket(AssociationSocket):
    """The connection of one association: reads in large pieces and limited time, and refuses PDUs that are too long.

    While a request waits to be handled nothing is read, so that a sender cannot run ahead of the disk.
    first: the association request, which was read already
    lobby_end: the time (of `time.monotonic`) by which data must have arrived before the association is admitted
    idle_seconds: the limit for each PDU afterwards, in both directions
    on_aborted: gets reason and host
    """

    def __init__(
        self,
        association: Association,
        connection: socket.socket,
        *,
        first: bytes,
        leave_lobby: Callable[[], None],
        lobby_end: float,
        idle_seconds: float,
        on_aborted: Callable[[str, str], None],
    ) -> None:
        super().__init__(association, client_socket=connection)
        self._first, self._idle_seconds, self._on_aborted = first, idle_seconds, on_aborted
        self._leave_lobby, self._lobby_end = leave_lobby, lobby_end
        self._is_admitted = False

    def admit(self) -> None:
        """Leave the lobby and its time limit."""
        self._is_admitted = True
        self._leave_lobby()

    @property
    def ready(self) -> bool:
        """Whether there is something to read, and reading is allowed now."""
        if self._first:
            return True
        if self.socket is None or not self._is_connected or not self.assoc.dimse.msg_queue.empty():
            return False
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        try:
            poll = select.poll()  # select.select fails on descriptors above 1023
            poll.register(self.socket, select.POLLIN)
            return bool(poll.poll(0 if self._may_have_to_send() else _WAIT_MILLISECONDS))
        except (OSError, ValueError):
            self.event_queue.put("Evt17")  # PS3.8 9.2.3: the transport connection is closed
            return False

    def _may_have_to_send(self) -> bool:
        """Whether something may have to be sent soon; otherwise the socket is polled less often."""
        answering = cast(Reception, self.assoc.dimse).is_answering
        return answering or self.assoc.dul.state_machine.current_state != _DATA_TRANSFER

    def recv(self, nr_bytes: int) -> bytearray:
        """Read this many bytes, fewer when the connection ends. Raises OSError if it is too long or too slow."""
        if self._first:
            taken, self._first = self._first[:nr_bytes], self._first[nr_bytes:]
            return bytearray(taken)
        if nr_bytes > _LONGEST_PDU:
            self._abort("length")
            raise ConnectionAbortedError("the declared length of a PDU is over the limit")
        end = time.monotonic() + self._idle_seconds if self._is_admitted else self._lobby_end
        try:
            return _read(cast(socket.socket, self.socket), nr_bytes, end)
        except TimeoutError:
            self._abort("stalled")
            raise

    def _abort(self, reason: str) -> None:
        """Report that an association is lost; a caller that was not admitted was reported as refused."""
        if self._is_admitted:
            self._on_aborted(reason, str(self.assoc.requestor.address))

    def send(self, bytestream: bytes) -> None:
        """Send a PDU; a peer that does not accept it in time is disconnected."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.settimeout(self._idle_seconds)
        super().send(bytestream)


def read_request(connection: socket.socket, end: float) -> bytes:
    """Read the whole first PDU, which must be an A-ASSOCIATE-RQ (PS3.8 9.3.2). Raises NotAssociated.

    AE titles may be padded with zeros, as some old modalities do, and as dcmtk understands.
    """
    try:
        head = _read(connection, 6, end)
        length = int.from_bytes(head[2:], "big")
        if len(head) == 6 and head[0] == _ASSOCIATE_REQUEST and length <= _LONGEST_REQUEST:
            request = head + _read(connection, length, end)
            request[_TITLES] = request[_TITLES].replace(b"\0", b" ")
            if len(request) == 6 + length and _is_readable(bytes(request)):
                return bytes(request)
        connection.sendall(_ABORT)
    except TimeoutError as error:
        raise NotAssociated("silent") from error
    except OSError as error:
        raise NotAssociated("protocol") from error
    raise NotAssociated("protocol")


def _is_readable(request: bytes) -> bool:
    """Whether pynetdicom can parse an A-ASSOCIATE-RQ; otherwise it would end the association without a report."""
    try:
        A_ASSOCIATE_RQ().decode(request)
    except Exception:  # the boundary to its parser, which documents no set of exceptions
        return False
    return True


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
    """Return the seconds until a moment. Raises TimeoutError when it has passed."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
