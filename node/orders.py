"""Orders that an information system announces: ORM^O01 and OMI^O23, read into what a study needs of them. Pure.

Only numbers, the accession number, the study's UID and the priority are taken; the patient stays in the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from node.domain import Order, Priority, is_uid
from node.errors import NodeError
from node.hl7.acknowledgment import Code, Complaint
from node.hl7.text import Message, Segment

_MESSAGES: Final = {"ORM": "O01", "OMI": "O23"}
# HL7 table 0119: cancel, discontinue, order cancelled, order discontinued
_CANCELLED: Final = frozenset(("CA", "DC", "OC", "OD"))
# HL7 table 0485, and the words that older systems write; whatever else is said is routine
_PRIORITIES: Final = {"S": Priority.STAT, "STAT": Priority.STAT, "A": Priority.ASAP, "ASAP": Priority.ASAP}

# HL7 table 0357
_SEGMENT_SEQUENCE, _FIELD_MISSING, _INTERNAL = "100", "101", "207"
_TYPE_UNSUPPORTED, _EVENT_UNSUPPORTED, _VERSION_UNSUPPORTED = "200", "201", "203"


_MOST_ORDERS: Final = 100  # each is synced to disk before the one answer: seconds, not minutes


class OrderRefused(NodeError):
    """A message that holds no order for us; what the sender is told."""

    def __init__(self, code: Code, complaint: Complaint) -> None:
        super().__init__(complaint.text)
        self.code, self.complaint = code, complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderChange:
    """An order that is placed or changed, or one that is cancelled."""

    order: Order
    is_cancelled: bool


def read_orders(message: Message) -> tuple[OrderChange, ...]:
    """Take every order out of a message.

    Raises OrderRefused: AR for what is never taken here (HL7 2.5.1 2.9.2), AE for what the message lacks.
    """
    kind, trigger = message.header.text(9), message.header.text(9, 2)
    if kind not in _MESSAGES:
        raise _rejected(_TYPE_UNSUPPORTED, "only ORM^O01 and OMI^O23 are taken here")
    if trigger != _MESSAGES[kind]:
        raise _rejected(_EVENT_UNSUPPORTED, f"of {kind} only {kind}^{_MESSAGES[kind]} is taken here")
    if not message.header.text(12).startswith("2."):
        raise _rejected(_VERSION_UNSUPPORTED, "only version 2 is read here (MSH-12)")
    if not message.header.text(10):
        raise _wrong(_FIELD_MISSING, "the message has no control id (MSH-10)")
    groups = list(_groups(message))
    if not groups:
        raise _wrong(_SEGMENT_SEQUENCE, "the message has no order (ORC)")
    if len(groups) > _MOST_ORDERS:
        raise _wrong(_INTERNAL, f"more than {_MOST_ORDERS} orders (ORC) in one message; send them in several")
    return tuple(_change(group) for group in groups)


def _groups(message: Message) -> Iterator[list[Segment]]:
    """Part a message into its orders: each begins with ORC; what comes before is about the patient."""
    group: list[Segment] = []
    for segment in message.segments:
        if segment.name == "ORC":
            if group:
                yield group
            group = []
        if group or segment.name == "ORC":
            group.append(segment)
    if group:
        yield group


def _change(group: list[Segment]) -> OrderChange:
    accession, study_uid = _first(group, ("IPC", 1, 1), ("OBR", 18, 1)), _study_uid(group)
    filler = _entity(group, ("ORC", 3), ("OBR", 3))
    if not (accession or study_uid):
        accession = filler[0] if filler else ""  # where departments have one number for both
    if not (accession or study_uid):
        raise _wrong(
            _FIELD_MISSING, "an order needs an accession number (IPC-1, OBR-18) or a Study Instance UID (IPC-3)"
        )
    return OrderChange(
        order=Order(
            accession=accession,
            study_uid=study_uid,
            placer_number=_entity(group, ("ORC", 2), ("OBR", 2)),
            filler_number=filler,
            priority=_priority(group),
        ),
        is_cancelled=group[0].text(1) in _CANCELLED,
    )


def _study_uid(group: list[Segment]) -> str:
    """The Study Instance UID: IPC-3, or ZDS-1, where IHE RAD TF-2 4.4 has it in messages without IPC."""
    found = _first(group, ("IPC", 3, 1), ("ZDS", 1, 1))
    return found if is_uid(found) else ""


def _priority(group: list[Segment]) -> Priority:
    """TQ1-9, or the sixth component of the timing fields before version 2.5, or OBR-5 of still earlier ones."""
    said = _first(group, ("TQ1", 9, 1), ("ORC", 7, 6), ("OBR", 27, 6), ("OBR", 5, 1))
    return _PRIORITIES.get(said.upper(), Priority.ROUTINE)


def _first(group: list[Segment], *places: tuple[str, int, int]) -> str:
    """The first value that is there: segment, field, component."""
    for name, field, component in places:
        for segment in group:
            if segment.name == name and (value := segment.text(field, component)):
                return value
    return ""


def _entity(group: list[Segment], *places: tuple[str, int]) -> tuple[str, ...]:
    """The first entity identifier (EI) that is there."""
    for name, field in places:
        for segment in group:
            if segment.name == name and segment.text(field):
                return segment.components(field)
    return ()


def _rejected(condition: str, text: str) -> OrderRefused:
    return OrderRefused(Code.REJECT, Complaint(condition=condition, text=text))


def _wrong(condition: str, text: str) -> OrderRefused:
    return OrderRefused(Code.ERROR, Complaint(condition=condition, text=text))
