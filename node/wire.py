"""The bytes of one connection: whole PDUs in bounded time, and nobody's word about a length is believed.

pynetdicom waits without end for the rest of a PDU, and reads whatever that says is its length.
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

from node.reception import Reception

_LONGEST_PDU: Final = 1024 * 1024
_LONGEST_REQUEST: Final = 256 * 1024  # 128 contexts with 50 transfer syntaxes each have 200 KB
_ASSOCIATE_REQUEST: Final = 0x01
_TITLES: Final = slice(10, 42)
_ABORT: Final = bytes.fromhex("07 00 00000004 00 00 02 01")  # PS3.8 9.3.8: by the provider, unrecognized PDU
_DATA_TRANSFER: Final = "Sta6"  # PS3.8 9.2.1
_WAIT_MILLISECONDS: Final = 20


class Unwelcome(Exception):
    """A connection that becomes no association, with the reason; None for one that said nothing and left."""

    def __init__(self, reason: str | None, message: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.message = reason, message


class GuardedSocket(AssociationSocket):
    """The connection of one association: reads in large pieces, in bounded time, and nothing that is too long.

    While a request waits to be served nothing is read, so that a sender cannot run ahead of the disk.

    first: the request for the association, which was read already
    lobby_end: by `time.monotonic`, until when what is read must have come before the association is let in
    idle_seconds: within which each PDU must have come afterwards, and each of ours be taken
    on_aborted: hears reason and host
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
        """Leave the lobby, and with it the time that it gives."""
        self._is_admitted = True
        self._leave_lobby()

    @property
    def ready(self) -> bool:
        """Whether there is something to be read, and whether it may be."""
        if self._first:
            return True
        if self.socket is None or not self._is_connected or not self.assoc.dimse.msg_queue.empty():
            return False
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        try:
            poll = select.poll()  # select.select knows no descriptor above 1023
            poll.register(self.socket, select.POLLIN)
            return bool(poll.poll(0 if self._may_have_to_send() else _WAIT_MILLISECONDS))
        except (OSError, ValueError):
            self.event_queue.put("Evt17")  # PS3.8 9.2.3: the transport connection is closed
            return False

    def _may_have_to_send(self) -> bool:
        """Whether something may have to be sent at once; where only the peer can go on, nobody need look often."""
        answering = cast(Reception, self.assoc.dimse).is_answering
        return answering or self.assoc.dul.state_machine.current_state != _DATA_TRANSFER

    def recv(self, nr_bytes: int) -> bytearray:
        """Read a number of bytes, fewer when the connection ends. Raises OSError when that is refused or lasts long."""
        if self._first:
            taken, self._first = self._first[:nr_bytes], self._first[nr_bytes:]
            return bytearray(taken)
        if nr_bytes > _LONGEST_PDU:
            self._abort("length")
            raise ConnectionAbortedError("a PDU says that it is longer than any")
        end = time.monotonic() + self._idle_seconds if self._is_admitted else self._lobby_end
        try:
            return _read(cast(socket.socket, self.socket), nr_bytes, end)
        except TimeoutError:
            self._abort("stalled")
            raise

    def _abort(self, reason: str) -> None:
        """Report an association that is lost; who was not let in has none, and was reported as refused."""
        if self._is_admitted:
            self._on_aborted(reason, str(self.assoc.requestor.address))

    def send(self, bytestream: bytes) -> None:
        """Send a PDU; a peer that does not take it in time is lost."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.settimeout(self._idle_seconds)
        super().send(bytestream)


def read_request(connection: socket.socket, end: float) -> bytes:
    """Read the first PDU as a whole, which must be an A-ASSOCIATE-RQ (PS3.8 9.3.2). Raises Unwelcome.

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
        raise Unwelcome("silent") from error
    except OSError as error:
        raise Unwelcome("protocol") from error
    raise Unwelcome("protocol")


def _is_readable(request: bytes) -> bool:
    """Whether pynetdicom can read an A-ASSOCIATE-RQ; it would end the association without a word to anybody."""
    try:
        A_ASSOCIATE_RQ().decode(request)
    except Exception:  # the boundary to its parser, which documents no set of exceptions
        return False
    return True


def _read(connection: socket.socket, count: int, end: float) -> bytearray:
    """Read until so many bytes are there or the connection ends. Raises OSError, TimeoutError at `end`."""
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
    """Seconds until a moment. Raises TimeoutError when it is over."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
