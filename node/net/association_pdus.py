"""Reads an A-ASSOCIATE-RQ, and makes it or an A-ASSOCIATE-AC (PS3.8 9.3.2, 9.3.3) one that pynetdicom can read.

pynetdicom 3.0.4 ends an association without an answer over parts of a request that mean nothing to this node, such as
the length of a version name, and takes an acceptance with such a part for a peer that cannot be reached. So only what
the node uses is passed on: titles, contexts, longest PDU and roles. What storescp of dcmtk 3.6.7 takes is taken here,
with one exception: contexts with an even or repeated id, for which pynetdicom has no place.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

_HEAD: Final = 6  # type and length of a PDU
_ITEMS: Final = 74  # offset of the items; the AE titles precede them
_CALLED, _CALLING = slice(10, 26), slice(26, 42)
_ITEM_HEAD: Final = 4
_LONGEST_ITEM: Final = 0xFFFF
_LONGEST_REQUEST: Final = 256 * 1024  # 128 contexts with 50 transfer syntaxes each have 200 KB
_MOST_CONTEXTS: Final = 128  # the odd numbers of a byte (PS3.8 9.3.2.2)
_MOST_ITEMS: Final = 4 * _MOST_CONTEXTS
"""In one place: a role and two extended negotiations for each context (PS3.7 D.3.3), and items for all contexts."""

# Types of items (PS3.8 9.3.2, PS3.7 D.3.3)
_APPLICATION, _CONTEXT, _RESULT, _USER = 0x10, 0x20, 0x21, 0x50
_ABSTRACT_SYNTAX, _TRANSFER_SYNTAX, _LONGEST_PDU, _ROLE = 0x30, 0x40, 0x51, 0x54

_DICOM: Final = b"1.2.840.10008.3.1.1.1"
"""The only application context. As a syntax it names nothing that the node offers, so such a context is refused."""
_LONGEST_UID: Final = 64
_USUAL_PDU: Final = (16 * 1024).to_bytes(4, "big")
"""The longest PDU of a caller that names none; dcmtk's own default. PS3.7 D.3.3.1 asks every caller to name it."""
_UNTESTED: Final = b"-"
"""The titles of an acceptance mean nothing (PS3.8 9.3.3)."""
_ABORT: Final = bytes.fromhex("07 00 00000004 00 00 02 01")
"""A-ABORT by the provider, unrecognized PDU (PS3.8 9.3.8)."""
_PARTING_SECONDS: Final = 0.25


def rejection(result: int, source: int, reason: int) -> bytes:
    """Return an A-ASSOCIATE-RJ (PS3.8 9.3.4)."""
    return bytes([0x03, 0, 0, 0, 0, 4, 0, result, source, reason])


_CALLING_UNKNOWN, _CALLED_UNKNOWN = rejection(1, 1, 3), rejection(1, 1, 7)
_NO_REASON, _VERSION_UNKNOWN = rejection(1, 2, 1), rejection(1, 2, 2)


class Unacceptable(Exception):
    """An unacceptable request: one of `metrics.REFUSALS`, its fault, and the PDU to answer with."""

    def __init__(self, message: str, answer: bytes = _ABORT, *, reason: str = "protocol") -> None:
        super().__init__(message)
        self.reason, self.answer = reason, answer


def read_request(connection: socket.socket, received: bytearray, end: float) -> None:
    """Add the first PDU of a connection to `received`, by `end` (of `time.monotonic`).

    Raises Unacceptable if it is no whole A-ASSOCIATE-RQ, OSError if the connection fails, TimeoutError at `end`.
    """
    received += _read(connection, _HEAD, end)
    length = int.from_bytes(received[2:], "big")
    if len(received) < _HEAD or received[0] != 0x01 or length > _LONGEST_REQUEST:
        raise Unacceptable("the first bytes are no association request")
    received += _read(connection, length, end)
    if len(received) < _HEAD + length:
        raise Unacceptable("the connection ended within the association request")


def _read(connection: socket.socket, count: int, end: float) -> bytes:
    """Read until so many bytes have arrived or the connection ends. Raises OSError, TimeoutError at `end`."""
    received = bytearray()
    while len(received) < count:
        connection.settimeout(left(end))
        more = connection.recv(count - len(received))
        if not more:
            break
        received += more
    return bytes(received)


def left(end: float) -> float:
    """Return the seconds until `end` (of `time.monotonic`). Raises TimeoutError when it has passed."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def part(connection: socket.socket, answer: bytes) -> None:
    """Send a last answer, and discard further bytes for a moment.

    A connection that is closed with bytes unread is reset, and its peer may then never see the answer.
    """
    end = time.monotonic() + _PARTING_SECONDS
    with suppress(OSError):
        connection.settimeout(_PARTING_SECONDS)
        connection.sendall(answer)
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while socket.socket.recv(connection, _LONGEST_REQUEST):
            connection.settimeout(left(end))


def titles(request: bytes | bytearray) -> tuple[str, str]:
    """Return the calling and the called AE title of a request, as they were sent; empty if it ends before them."""
    return _title(request[_CALLING]).decode("iso8859-1"), _title(request[_CALLED]).decode("iso8859-1")


def readable(request: bytes | bytearray, *, syntaxes: Collection[bytes]) -> bytes:
    """Return a request normalized to the standard, with the same content. Raises Unacceptable.

    syntaxes: the transfer syntaxes that the node accepts; no other one is passed on
    """
    if len(request) < _ITEMS:
        raise Unacceptable("the request ends before its items")
    if not request[_HEAD + 1] & 1:  # only this bit is to be tested (PS3.8 9.3.2)
        raise Unacceptable("the request is of another protocol version", _VERSION_UNKNOWN)
    calling, called = _title(request[_CALLING]), _title(request[_CALLED])
    if not _is_title(calling):
        raise Unacceptable("the calling AE title is empty or no AE title", _CALLING_UNKNOWN, reason="caller")
    if not _is_title(called):
        raise Unacceptable("the called AE title is empty or no AE title", _CALLED_UNKNOWN, reason="called_ae")
    items = list(_items(bytes(request[_ITEMS:])))
    contexts = _contexts([content for kind, content in items if kind == _CONTEXT], syntaxes)
    return _pdu(0x01, called, calling, [_item(_CONTEXT, context) for context in contexts], items)


def readable_acceptance(answer: bytes) -> bytes:
    """Return an A-ASSOCIATE-AC normalized to the standard, with the same content. Raises Unacceptable."""
    if len(answer) < _ITEMS:
        raise Unacceptable("the answer ends before its items")
    items = list(_items(answer[_ITEMS:]))
    results = [_item(_RESULT, _result(content)) for kind, content in items if kind == _RESULT]
    return _pdu(0x02, _UNTESTED, _UNTESTED, results, items)


def _pdu(kind: int, called: bytes, calling: bytes, contexts: list[bytes], items: list[tuple[int, bytes]]) -> bytes:
    """Return a request or an answer with these titles and contexts, and the relevant user items."""
    content = b"".join(
        (
            b"\0\1\0\0",
            called.ljust(16),
            calling.ljust(16),
            bytes(32),
            _item(_APPLICATION, _DICOM),
            *contexts,
            _item(_USER, _user(b"".join(content for kind, content in items if kind == _USER))),
        )
    )
    return bytes([kind, 0]) + len(content).to_bytes(4, "big") + content


def _result(content: bytes) -> bytes:
    """Return the result for a context, with its transfer syntax if that is readable (PS3.8 9.3.3.2)."""
    syntaxes = [value for kind, value in _syntaxes(content[_ITEM_HEAD:]) if kind == _TRANSFER_SYNTAX]
    return content[:_ITEM_HEAD] + b"".join(_item(_TRANSFER_SYNTAX, syntax) for syntax in syntaxes[:1])


def _title(field: bytes | bytearray) -> bytes:
    """Return an AE title; some modalities pad it with zeros, or leave rubbish behind a zero."""
    return bytes(field).partition(b"\0")[0].strip(b" ")


def _is_title(title: bytes) -> bool:
    """Return whether a title could stand in the settings (PS3.5 6.2)."""
    return bool(title) and title.isascii() and title.decode("ascii").isprintable() and b"\\" not in title


def _contexts(found: list[bytes], syntaxes: Collection[bytes]) -> list[bytes]:
    """Return the presentation contexts, each once, as `_context` does. Raises Unacceptable."""
    if len(found) > _MOST_CONTEXTS:
        raise Unacceptable(f"the request proposes more than {_MOST_CONTEXTS} presentation contexts")
    contexts: dict[int, bytes] = {}
    for content in found:
        context = _context(content, syntaxes)
        if context[0] % 2 == 0:
            raise Unacceptable("the id of a presentation context is even", _NO_REASON)
        if contexts.setdefault(context[0], context) != context:
            raise Unacceptable("two presentation contexts have one id", _NO_REASON)
    if not contexts:
        raise Unacceptable("the request proposes no presentation context", _NO_REASON)
    return list(contexts.values())


def _context(content: bytes, syntaxes: Collection[bytes]) -> bytes:
    """Return a presentation context (PS3.8 9.3.2.2). One without a syntax gets one that is refused, as by dcmtk."""
    if len(content) < _ITEM_HEAD:
        raise Unacceptable("a presentation context has no id")
    items = _syntaxes(content[_ITEM_HEAD:])
    abstract = [value for kind, value in items if kind == _ABSTRACT_SYNTAX]
    transfer = dict.fromkeys(value for kind, value in items if kind == _TRANSFER_SYNTAX and value in syntaxes)
    named = _item(_ABSTRACT_SYNTAX, abstract[-1] if abstract else _DICOM)
    offered = (_item(_TRANSFER_SYNTAX, syntax) for syntax in (transfer or [_DICOM]))
    return bytes([content[0], 0, 0, 0]) + named + b"".join(offered)


def _syntaxes(content: bytes) -> list[tuple[int, bytes]]:
    """Return type and UID of the sub-items of a context that have a UID. Raises Unacceptable."""
    found = ((kind, value.rstrip(b"\0 ")) for kind, value in _items(content))
    return [(kind, value) for kind, value in found if _fits_uid(value)]


def _user(content: bytes) -> bytes:
    """Return the relevant user information: the longest PDU, and readable roles. Raises Unacceptable."""
    items = list(_items(content))
    lengths = [value for kind, value in items if kind == _LONGEST_PDU and len(value) == len(_USUAL_PDU)]
    roles = (_item(_ROLE, value) for kind, value in items if kind == _ROLE and _is_role(value))
    return _item(_LONGEST_PDU, lengths[-1] if lengths else _USUAL_PDU) + b"".join(roles)


def _is_role(value: bytes) -> bool:
    """Return whether a role selection is complete (PS3.7 D.3.3.4)."""
    uid = value[2:-2]
    return len(uid) == int.from_bytes(value[:2], "big") and _fits_uid(uid) and set(value[-2:]) <= {0, 1}


def _fits_uid(value: bytes) -> bool:
    return 0 < len(value) <= _LONGEST_UID and value.isascii() and value.decode("ascii").isprintable()


def _item(kind: int, content: bytes) -> bytes:
    """Return an item of a type, as bytes. Raises Unacceptable for too long content."""
    if len(content) > _LONGEST_ITEM:
        raise Unacceptable("an item is too long")
    return bytes([kind, 0]) + len(content).to_bytes(2, "big") + content


def _items(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each item. Raises Unacceptable for too many, or if they do not fill their container."""
    at, count = 0, 0
    while at < len(content):
        count += 1
        if count > _MOST_ITEMS:
            raise Unacceptable(f"more than {_MOST_ITEMS} items are in one place")
        start = at + _ITEM_HEAD
        end = start + int.from_bytes(content[at + 2 : start], "big")
        if max(start, end) > len(content):
            raise Unacceptable("an item is longer than its container")
        yield content[at], content[start:end]
        at = end
