"""Makes an A-ASSOCIATE-RQ or -AC (PS3.8 9.3.2, 9.3.3) one that pynetdicom can read, and says why if it cannot. Pure.

pynetdicom 3.0.4 ends an association without an answer over parts of a request that mean nothing to this node, such as
the length of a version name, and takes an acceptance with such a part for a peer that cannot be reached. So only what
the node uses is passed on: titles, contexts, longest PDU and roles. What storescp of dcmtk 3.6.7 takes is taken here,
with one exception: contexts with an even or repeated id, for which pynetdicom has no place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_HEAD: Final = 6  # type and length of a PDU
ITEMS: Final = 74
"""Where the items begin. What comes before says who calls whom."""
_CALLED, _CALLING = slice(10, 26), slice(26, 42)
_ITEM_HEAD: Final = 4
_LONGEST_ITEM: Final = 0xFFFF

_MOST_CONTEXTS: Final = 128  # the odd numbers of a byte (PS3.8 9.3.2.2)
_MOST_ITEMS: Final = 2 * _MOST_CONTEXTS
"""In a request, an answer or a context; the standard has half as many transfer syntaxes."""
_MOST_USER_ITEMS: Final = 4 * _MOST_CONTEXTS
"""A role and two extended negotiations for each context (PS3.7 D.3.3), and more than what concerns all of them."""

# Types of items (PS3.8 9.3.2, PS3.7 D.3.3)
_APPLICATION, _CONTEXT, _RESULT, _USER = 0x10, 0x20, 0x21, 0x50
_ABSTRACT_SYNTAX, _TRANSFER_SYNTAX, _LONGEST_PDU, _ROLE = 0x30, 0x40, 0x51, 0x54

_DICOM: Final = b"1.2.840.10008.3.1.1.1"
"""The only application context. As a syntax it names nothing that the node offers, so such a context is refused."""
_LONGEST_UID: Final = 64
_USUAL_PDU: Final = (16 * 1024).to_bytes(4, "big")
"""The longest PDU of a caller that names none; dcmtk's own default. PS3.7 D.3.3.1 asks every caller to name it."""
_ROLES: Final = (b"\0", b"\1")
_UNTESTED: Final = b"-"
"""The titles of an acceptance mean nothing (PS3.8 9.3.3)."""

ABORT: Final = bytes.fromhex("07 00 00000004 00 00 02 01")
"""A-ABORT by the provider, unrecognized PDU (PS3.8 9.3.8)."""


def rejection(result: int, source: int, reason: int) -> bytes:
    """Return an A-ASSOCIATE-RJ (PS3.8 9.3.4)."""
    return bytes([0x03, 0, 0, 0, 0, 4, 0, result, source, reason])


_CALLING_UNKNOWN, _CALLED_UNKNOWN = rejection(1, 1, 3), rejection(1, 1, 7)
_NO_REASON, _VERSION_UNKNOWN = rejection(1, 2, 1), rejection(1, 2, 2)


class Unacceptable(Exception):
    """A request that cannot be taken: one of `metrics.REFUSALS`, what is wrong, and the PDU to answer with."""

    def __init__(self, reason: str, message: str, answer: bytes = ABORT) -> None:
        super().__init__(message)
        self.reason, self.answer = reason, answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """A proposed presentation context, with UIDs that fit one."""

    number: int
    abstract_syntax: bytes
    transfer_syntaxes: tuple[bytes, ...]


def titles(request: bytes) -> tuple[str, str]:
    """Return the calling and the called AE title of a request, as they were sent; empty if it ends before them."""
    return _title(request[_CALLING]).decode("iso8859-1"), _title(request[_CALLED]).decode("iso8859-1")


def check_head(request: bytes) -> tuple[bytes, bytes]:
    """Return the called and the calling AE title of a request, of which the items may be missing.

    Raises Unacceptable for another version of the protocol, and for what is no AE title.
    """
    if len(request) < ITEMS:
        raise Unacceptable("protocol", "the request ends before its items")
    if not request[_HEAD + 1] & 1:  # only this bit is to be tested (PS3.8 9.3.2)
        raise Unacceptable("protocol", "the request is of another protocol version", _VERSION_UNKNOWN)
    calling, called = _title(request[_CALLING]), _title(request[_CALLED])
    if not _is_title(calling):
        raise Unacceptable("caller", "the calling AE title is empty or no AE title", _CALLING_UNKNOWN)
    if not _is_title(called):
        raise Unacceptable("called_ae", "the called AE title is empty or no AE title", _CALLED_UNKNOWN)
    return called, calling


def readable(request: bytes, *, syntaxes: Collection[bytes]) -> bytes:
    """Return a request that says the same and is as the standard wants it. Raises Unacceptable.

    syntaxes: the transfer syntaxes that the node accepts; no other one is passed on
    """
    called, calling = check_head(request)
    items = list(_items(request[ITEMS:], most=_MOST_ITEMS))
    contexts = _contexts([content for kind, content in items if kind == _CONTEXT], syntaxes)
    content = b"".join(
        (
            b"\0\1\0\0",
            called.ljust(16),
            calling.ljust(16),
            bytes(32),
            _item(_APPLICATION, _DICOM),
            *map(_encode, contexts),
            _item(_USER, _user(b"".join(content for kind, content in items if kind == _USER))),
        )
    )
    return b"\1\0" + len(content).to_bytes(4, "big") + content


def readable_acceptance(answer: bytes) -> bytes:
    """Return an A-ASSOCIATE-AC that says the same and is as the standard wants it. Raises Unacceptable."""
    if len(answer) < ITEMS:
        raise Unacceptable("protocol", "the answer ends before its items")
    items = list(_items(answer[ITEMS:], most=_MOST_ITEMS))
    content = b"".join(
        (
            b"\0\1\0\0",
            _UNTESTED.ljust(16) * 2,
            bytes(32),
            _item(_APPLICATION, _DICOM),
            *(_item(_RESULT, _result(content)) for kind, content in items if kind == _RESULT),
            _item(_USER, _user(b"".join(content for kind, content in items if kind == _USER))),
        )
    )
    return b"\2\0" + len(content).to_bytes(4, "big") + content


def _result(content: bytes) -> bytes:
    """Return what became of a context, with its transfer syntax if that can be read (PS3.8 9.3.3.2)."""
    syntaxes = [value for kind, value in _syntaxes(content[_ITEM_HEAD:]) if kind == _TRANSFER_SYNTAX]
    return content[:_ITEM_HEAD] + b"".join(_item(_TRANSFER_SYNTAX, syntax) for syntax in syntaxes[:1])


def _syntaxes(content: bytes) -> list[tuple[int, bytes]]:
    """Return type and UID of the sub-items of a context that have a UID. Raises Unacceptable."""
    found = ((kind, value.rstrip(b"\0 ")) for kind, value in _items(content, most=_MOST_ITEMS))
    return [(kind, value) for kind, value in found if _fits_uid(value)]


def _title(field: bytes) -> bytes:
    """Return an AE title; some modalities pad it with zeros, or leave rubbish behind a zero."""
    return field.partition(b"\0")[0].strip(b" ")


def _is_title(title: bytes) -> bool:
    """Say whether a title could stand in the settings (PS3.5 6.2)."""
    return bool(title) and title.isascii() and title.decode("ascii").isprintable() and b"\\" not in title


def _contexts(found: Sequence[bytes], syntaxes: Collection[bytes]) -> list[_Context]:
    """Read the presentation contexts. Raises Unacceptable."""
    if len(found) > _MOST_CONTEXTS:
        raise Unacceptable("protocol", f"the request proposes more than {_MOST_CONTEXTS} presentation contexts")
    contexts: dict[int, _Context] = {}
    for content in found:
        context = _context(content, syntaxes)
        if context.number % 2 == 0:
            raise Unacceptable("protocol", "the id of a presentation context is even", _NO_REASON)
        if contexts.setdefault(context.number, context) != context:
            raise Unacceptable("protocol", "two presentation contexts have one id", _NO_REASON)
    if not contexts:
        raise Unacceptable("protocol", "the request proposes no presentation context", _NO_REASON)
    return list(contexts.values())


def _context(content: bytes, syntaxes: Collection[bytes]) -> _Context:
    """Read a presentation context (PS3.8 9.3.2.2). One without a syntax gets one that is refused, as dcmtk does it."""
    if len(content) < _ITEM_HEAD:
        raise Unacceptable("protocol", "a presentation context has no id")
    items = _syntaxes(content[_ITEM_HEAD:])
    abstract = [value for kind, value in items if kind == _ABSTRACT_SYNTAX]
    transfer = [value for kind, value in items if kind == _TRANSFER_SYNTAX and value in syntaxes]
    return _Context(
        number=content[0],
        abstract_syntax=abstract[-1] if abstract else _DICOM,
        transfer_syntaxes=tuple(dict.fromkeys(transfer)) or (_DICOM,),
    )


def _encode(context: _Context) -> bytes:
    syntaxes = b"".join(_item(_TRANSFER_SYNTAX, syntax) for syntax in context.transfer_syntaxes)
    named = _item(_ABSTRACT_SYNTAX, context.abstract_syntax)
    return _item(_CONTEXT, bytes([context.number, 0, 0, 0]) + named + syntaxes)


def _user(content: bytes) -> bytes:
    """Return what counts of the user information: the longest PDU, and roles that can be read. Raises Unacceptable."""
    items = list(_items(content, most=_MOST_USER_ITEMS))
    lengths = [value for kind, value in items if kind == _LONGEST_PDU and len(value) == len(_USUAL_PDU)]
    roles = (_item(_ROLE, value) for kind, value in items if kind == _ROLE and _is_role(value))
    return _item(_LONGEST_PDU, lengths[-1] if lengths else _USUAL_PDU) + b"".join(roles)


def _is_role(value: bytes) -> bool:
    """Say whether a role selection is complete (PS3.7 D.3.3.4)."""
    uid = value[2:-2]
    return len(uid) == int.from_bytes(value[:2], "big") and _fits_uid(uid) and {value[-2:-1], value[-1:]} <= {*_ROLES}


def _fits_uid(value: bytes) -> bool:
    return 0 < len(value) <= _LONGEST_UID and value.isascii() and value.decode("ascii").isprintable()


def _item(kind: int, content: bytes) -> bytes:
    """Raises Unacceptable for more than an item can hold."""
    if len(content) > _LONGEST_ITEM:
        raise Unacceptable("protocol", "an item is too long")
    return bytes([kind, 0]) + len(content).to_bytes(2, "big") + content


def _items(content: bytes, *, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each item. Raises Unacceptable for more, or if they do not fill what they are in."""
    at, count = 0, 0
    while at < len(content):
        count += 1
        if count > most:
            raise Unacceptable("protocol", f"more than {most} items are in one place")
        start = at + _ITEM_HEAD
        end = start + int.from_bytes(content[at + 2 : start], "big")
        if max(start, end) > len(content):
            raise Unacceptable("protocol", "an item is longer than what it is in")
        yield content[at], content[start:end]
        at = end
