"""Reads the request of an association that a peer wants (PS3.8 9.3.2), and answers one that cannot be taken."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from node.net import association_pdus
from node.net.association_pdus import Unacceptable
from node.net.pdu_reader import left, read
from node.net.pynetdicom_adapter import AssociationRequest
from node.receive.contexts import TRANSFER_SYNTAXES

_LONGEST_REQUEST: Final = 256 * 1024  # 128 contexts with 50 transfer syntaxes each have 200 KB
_HEAD: Final = 6  # type and length of a PDU
_ASSOCIATE_REQUEST: Final = 0x01
_SYNTAXES: Final = frozenset(syntax.encode("ascii") for syntax in TRANSFER_SYNTAXES)
_PARTING_SECONDS: Final = 0.25
_BLOCK: Final = 64 * 1024

_CLOSED_BY_PEER: Final[int] = getattr(select, "POLLRDHUP", select.POLLHUP)  # the former on Linux


class NotAssociated(Exception):
    """A connection that does not become an association, with the reason; None: there is nothing (more) to report.

    titles: the calling and the called AE title, as far as they arrived
    """

    def __init__(self, reason: str | None, message: str | None = None, *, titles: tuple[str, str] = ("", "")) -> None:
        super().__init__(reason)
        self.reason, self.message, self.titles = reason, message, titles


def read_head(connection: socket.socket, end: float) -> bytes:
    """Read the first PDU up to its items. It must be an A-ASSOCIATE-RQ (PS3.8 9.3.2), and then says who calls whom.

    Raises NotAssociated, after an answer to a peer whose request cannot be taken.
    """
    received = bytearray()
    with _answering(connection, received):
        received += read(connection, _HEAD, end)
        length = int.from_bytes(received[2:], "big")
        if len(received) < _HEAD or received[0] != _ASSOCIATE_REQUEST or length > _LONGEST_REQUEST:
            raise Unacceptable("protocol", "the first bytes are no association request")
        received += read(connection, min(length, association_pdus.ITEMS - _HEAD), end)
        association_pdus.check_head(bytes(received))
    return bytes(received)


def read_rest(connection: socket.socket, head: bytes, end: float) -> AssociationRequest:
    """Read the rest of an A-ASSOCIATE-RQ, and return it as `readable` makes it.

    Raises NotAssociated, after an answer to a peer whose request cannot be taken.
    """
    received, length = bytearray(head), _HEAD + int.from_bytes(head[2:_HEAD], "big")
    with _answering(connection, received):
        received += read(connection, length - len(head), end)
        if len(received) < length:
            raise Unacceptable("protocol", "the connection ended within the association request")
        if _has_left(connection):
            raise Unacceptable("protocol", "the caller left before its request was looked at")
        try:
            return AssociationRequest(association_pdus.readable(bytes(received), syntaxes=_SYNTAXES))
        except ValueError as error:
            raise Unacceptable("protocol", "the association request cannot be read") from error


@contextmanager
def _answering(connection: socket.socket, received: bytes | bytearray) -> Iterator[None]:
    """Turn what is wrong with a request, of which this was received, into NotAssociated, and answer the peer."""
    try:
        yield
    except Unacceptable as error:
        part(connection, error.answer)
        raise NotAssociated(error.reason, str(error), titles=association_pdus.titles(bytes(received))) from error
    except TimeoutError as error:
        raise NotAssociated("silent") from error
    except OSError as error:
        raise NotAssociated("protocol", titles=association_pdus.titles(bytes(received))) from error


def part(connection: socket.socket, answer: bytes) -> None:
    """Send a last answer, and drop what still comes for a moment.

    A connection that is closed with bytes unread is reset, and its peer may then never see the answer.
    """
    end, dropped = time.monotonic() + _PARTING_SECONDS, 0
    with suppress(OSError):
        connection.settimeout(_PARTING_SECONDS)
        connection.sendall(answer)
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while dropped < _LONGEST_REQUEST and (more := len(socket.socket.recv(connection, _BLOCK))):
            dropped += more
            connection.settimeout(left(end))


def _has_left(connection: socket.socket) -> bool:
    """Say whether the peer has closed the connection, or its sending direction, whatever is still unread."""
    poll = select.poll()
    poll.register(connection, _CLOSED_BY_PEER)
    return bool(poll.poll(0))
