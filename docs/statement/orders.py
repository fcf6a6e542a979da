"""What the node reads in an order: found by putting a value into every field, one by one, and asking for the order.

Components are tried one by one where a field that is full of the value is read.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from docs.statement.network import Rows
from node.hl7.order import Order, Priority
from node.hl7.text import read
from node.orders.messages import OrderChange, OrderRefused, read_orders

Place = tuple[str, int, int]

_SEGMENTS, _FIELDS, _COMPONENTS = ("ORC", "OBR", "IPC", "TQ1", "ZDS"), range(1, 31), range(1, 7)
_MARK: Final = "1.2.3"  # fits as accession number, UID and order number
_READ: Final[Mapping[str, Callable[[Order], bool]]] = {
    "accession number": lambda order: order.accession == _MARK,
    "Study Instance UID": lambda order: order.study_uid == _MARK,
    "placer order number": lambda order: order.placer_number[:1] == (_MARK,),
    "filler order number": lambda order: order.filler_number[:1] == (_MARK,),
    "priority": lambda order: order.priority is Priority.STAT,
}


def places() -> Rows:
    """Return what is read, and where: the first field that is filled counts."""
    rows: Rows = [("what is read", "from, in this order")]
    for what, is_read in _READ.items():
        mark, other = ("STAT", "R") if what == "priority" else (_MARK, "9.9")
        fields = [
            [(segment, field, component) for component in _COMPONENTS]
            for segment, field in itertools.product(_SEGMENTS, _FIELDS)
        ]
        taken = itertools.chain.from_iterable(
            field for field in fields if _is_read(dict.fromkeys(field, mark), is_read)
        )
        found = [place for place in taken if _is_read({place: mark}, is_read)]
        rows.append((what, ", ".join(map(_named, _by_rank(found, is_read, mark=mark, other=other)))))
    codes = ["".join(letters) for letters in itertools.product(string.ascii_uppercase, repeat=2)]
    ends = [code for code in codes if (change := _order({("ORC", 1, 1): code})) and change.is_cancelled]
    states = [code for code in codes if (change := _order({("ORC", 5, 1): code})) and change.is_cancelled]
    said = [f"{field}: {', '.join(map('`{}`'.format, found))}" for field, found in (("ORC-1", ends), ("ORC-5", states))]
    return [*rows, ("that it was cancelled", "; ".join(said))]


def _by_rank(found: Sequence[Place], is_read: Callable[[Order], bool], *, mark: str, other: str) -> list[Place]:
    """Put places in their order: the first is the one whose value counts although all the others have one too."""
    if not found:
        return []
    values = dict.fromkeys(found, other)
    first = next(place for place in found if _is_read({**values, place: mark}, is_read))
    return [first, *_by_rank([place for place in found if place != first], is_read, mark=mark, other=other)]


def _is_read(values: Mapping[Place, str], is_read: Callable[[Order], bool]) -> bool:
    change = _order(values)
    return change is not None and is_read(change.order)


def _order(values: Mapping[Place, str]) -> OrderChange | None:
    """Read an order with these values; None if the node refuses it. The study is named last, where nothing else is."""
    filled = {("ORC", 1, 1): "NW", ("ZDS", 1, 1): "9.9.9", **values}
    segments = [r"MSH|^~\&|RIS||||20240131||ORM^O01|1|P|2.5.1", "PID|1||P-1"]
    for name in _SEGMENTS:
        fields = [
            "^".join(filled.get((name, field, component), "") for component in _COMPONENTS).rstrip("^")
            for field in _FIELDS
        ]
        segments.append("|".join((name, *fields)).rstrip("|"))
    try:
        (change,) = read_orders(read("\r".join(segments).encode() + b"\r"))
    except OrderRefused:
        return None
    return change


def _named(place: Place) -> str:
    segment, field, component = place
    return f"{segment}-{field}" if component == 1 else f"{segment}-{field}.{component}"
