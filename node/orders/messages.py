"""Reads ORM^O01 and OMI^O23 order messages. Pure.

Only order numbers, the accession number, the study's UID, the priority and a hash of the patient's identifiers are
taken; other patient data are ignored.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from typing import Final

from node.character_sets import DIRECTING
from node.domain import is_uid
from node.errors import NodeError
from node.hl7.acknowledgment import AcknowledgmentCode, Complaint
from node.hl7.order import Order, PatientNumber, Priority, hashed, numbers_in
from node.hl7.text import Message, Segment

_MESSAGES: Final = {"ORM": "O01", "OMI": "O23"}
# HL7 table 0119: cancel, discontinue, order cancelled, order discontinued, and both as requested
_CANCELLED: Final = frozenset(("CA", "DC", "OC", "OD", "CR", "DR"))
# HL7 table 0038: order was canceled, order was discontinued
_STATUS_CANCELLED: Final = frozenset(("CA", "DC"))
# HL7 table 0485, and the words that older systems write; any other value is routine
_PRIORITIES: Final = {"S": Priority.STAT, "STAT": Priority.STAT, "A": Priority.ASAP, "ASAP": Priority.ASAP}

# HL7 table 0357
_SEGMENT_SEQUENCE, _FIELD_MISSING, _DATA_TYPE, _CHARACTER_SET, _INTERNAL = "100", "101", "102", "103", "207"
_TYPE_UNSUPPORTED, _EVENT_UNSUPPORTED, _VERSION_UNSUPPORTED = "200", "201", "203"


_CONTROL: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{DIRECTING}]")
_MOST_ORDERS: Final = 100  # each is synced to disk before the answer, which should take seconds, not minutes


_NAME_IT: Final = "name it there (HL7 table 0211), or set orders.character_set on the node"


Numbers = tuple[PatientNumber, ...]


class OrderRefused(NodeError):
    """A message without a usable order, and the answer for its sender."""

    def __init__(self, code: AcknowledgmentCode, complaint: Complaint) -> None:
        super().__init__(complaint.text)
        self.code, self.complaint = code, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """An order that is placed, changed or cancelled."""

    order: Order
    is_cancelled: bool


def read_orders(message: Message) -> tuple[OrderChange, ...]:
    """Read every order of a message.

    Raises OrderRefused: AR for a message that the node never accepts (HL7 2.5.1 2.9.2), AE for missing fields.
    """
    kind, trigger = message.header.text(9), message.header.text(9, 2)
    if kind == "ADT":
        raise _rejected(_TYPE_UNSUPPORTED, "updates and merges of patients (ADT) are not offered; send orders alone")
    if kind not in _MESSAGES:
        raise _rejected(_TYPE_UNSUPPORTED, "only ORM^O01 and OMI^O23 are accepted here")
    if trigger != _MESSAGES[kind]:
        raise _rejected(_EVENT_UNSUPPORTED, f"of {kind} only {kind}^{_MESSAGES[kind]} is accepted here")
    if not message.header.text(12).startswith("2."):
        raise _rejected(_VERSION_UNSUPPORTED, "only version 2 is read here (MSH-12)")
    if not message.header.text(10):
        raise _wrong(_FIELD_MISSING, "the message has no control id (MSH-10)")
    groups = _groups(message)
    if not groups:
        raise _wrong(_SEGMENT_SEQUENCE, "the message has no order (ORC)")
    if len(groups) > _MOST_ORDERS:
        raise _wrong(_INTERNAL, f"more than {_MOST_ORDERS} orders (ORC) in one message; send them in several")
    changes = tuple(_change(group, numbers) for group, numbers in groups)
    if message.doubt and not message.is_utf_8:
        pairs = zip(groups, changes, strict=True)
        if any(_may_be_garbled(group, numbers, change.order) for (group, numbers), change in pairs):
            raise _wrong(_CHARACTER_SET, f"{message.doubt}; {_NAME_IT}")
    return changes


def _groups(message: Message) -> list[tuple[list[Segment], Numbers]]:
    """Split a message into its orders, each with the identifiers of its patient.

    An order begins with ORC, and the PID before it counts.
    """
    groups: list[tuple[list[Segment], Numbers]] = []
    patient: Numbers = ()
    for segment in message.segments:
        if segment.name == "PID":
            patient = numbers_in(segment, 3) or numbers_in(segment, 2)
        if segment.name == "ORC":
            groups.append(([], patient))
        if groups:
            groups[-1][0].append(segment)
    return groups


def _may_be_garbled(group: list[Segment], patient: Numbers, order: Order) -> bool:
    """Return whether an order's stored text may be wrong, because its message's character set is unknown.

    A number beyond ASCII is. So is one behind a character whose last byte may be a delimiter, as in GB 18030.
    """
    identifiers = [number.number for number in patient]
    numbers = (order.accession, *order.placer_number, *order.filler_number, *identifiers)
    return not "".join(numbers).isascii() or any(map(_ends_in_delimiter, group))


def _ends_in_delimiter(segment: Segment) -> bool:
    """Return whether a byte beyond ASCII stands before a delimiter."""
    signs = "".join(astuple(segment.delimiters))
    return re.search(f"[^\\x00-\\x7f][{re.escape(signs)}]", signs[0].join(segment.fields)) is not None


def _change(group: list[Segment], patient: Numbers) -> OrderChange:
    accession, study_uid = _first(group, ("IPC", 1, 1), ("OBR", 18, 1)), _study_uid(group)
    filler = _entity(group, ("ORC", 3), ("OBR", 3))
    if not (accession or study_uid):
        accession = filler[0] if filler else ""  # where departments use one number for both
    placer = _entity(group, ("ORC", 2), ("OBR", 2))
    if _CONTROL.search("".join((accession, *placer, *filler))):
        raise _wrong(_DATA_TYPE, "a number of the order has a control character; nobody could match it")
    if "\\" in accession:  # no film can have it (PS3.5 6.2)
        raise _wrong(_DATA_TYPE, "an accession number has no backslash")
    if not (accession or study_uid):
        raise _wrong(
            _FIELD_MISSING, "an order needs an accession number (IPC-1, OBR-18) or a Study Instance UID (IPC-3)"
        )
    if not patient:
        raise _wrong(_FIELD_MISSING, "an order needs an identifier of its patient (PID-3), the one in the films")
    return OrderChange(
        order=Order(
            accession=accession,
            study_uid=study_uid,
            placer_number=placer,
            filler_number=filler,
            priority=_priority(group),
            patient=tuple(dict.fromkeys(map(hashed, patient))),
        ),
        is_cancelled=_is_cancelled(group[0]),
    )


def _is_cancelled(order: Segment) -> bool:
    """Whether an order is withdrawn: by its control code (ORC-1) or its status (ORC-5); either suffices."""
    return order.text(1).upper() in _CANCELLED or order.text(5).upper() in _STATUS_CANCELLED


def _study_uid(group: list[Segment]) -> str:
    """Return the Study Instance UID: IPC-3, or ZDS-1 as in IHE RAD TF-2 4.4 for messages without IPC."""
    found = _first(group, ("IPC", 3, 1), ("ZDS", 1, 1))
    return found if is_uid(found) else ""


def _priority(group: list[Segment]) -> Priority:
    """Return the priority: TQ1-9, before version 2.5 the sixth component of the timing fields, in older ones OBR-5."""
    said = _first(group, ("TQ1", 9, 1), ("ORC", 7, 6), ("OBR", 27, 6), ("OBR", 5, 1))
    return _PRIORITIES.get(said.upper(), Priority.ROUTINE)


def _first(group: list[Segment], *places: tuple[str, int, int]) -> str:
    """Return the first value that is present: segment, field, component."""
    for name, field, component in places:
        for segment in group:
            if segment.name == name and (value := segment.text(field, component)):
                return value
    return ""


def _entity(group: list[Segment], *places: tuple[str, int]) -> tuple[str, ...]:
    """Return the first entity identifier (EI) that is present."""
    for name, field in places:
        for segment in group:
            if segment.name == name and segment.text(field):
                return segment.components(field)
    return ()


def _rejected(condition: str, text: str) -> OrderRefused:
    return OrderRefused(AcknowledgmentCode.REJECT, Complaint(condition=condition, text=text))


def _wrong(condition: str, text: str) -> OrderRefused:
    return OrderRefused(AcknowledgmentCode.ERROR, Complaint(condition=condition, text=text))
