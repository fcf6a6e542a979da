"""Reads updates (ADT^A08) and merges (ADT^A40) of patients. Pure.

Of a merge, each MRG segment is about the PID segment before it (HL7 2.5.1 3.3.40).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from node.character_sets import DIRECTING
from node.hl7.acknowledgment import AcknowledgmentCode, Complaint
from node.hl7.patient import PatientNumber, PatientUpdate, numbers_in
from node.hl7.text import Message, Segment
from node.orders.messages import NAME_IT, OrderRefused

_UPDATE, _MERGE = "A08", "A40"
_SEXES: Final = ("M", "F", "O")  # what table 0001 has more has no place in a film (PS3.3 C.7.1.1)
_DATE: Final = re.compile(r"\d{8}")

# HL7 table 0357
_SEGMENT_SEQUENCE, _FIELD_MISSING, _CHARACTER_SET = "100", "101", "103"
_EVENT_UNSUPPORTED, _VERSION_UNSUPPORTED = "201", "203"

_REPRESENTATIONS: Final = "AIP"  # alphabetic, ideographic, phonetic (table 0465): the groups of a PN, in their order
_NOT_IN_IDENTITY: Final = re.compile(rf"[\\\x00-\x1f\x7f-\x9f\ufffd{DIRECTING}]")


def is_about_patient(message: Message) -> bool:
    """Say whether a message is an ADT message."""
    return message.header.text(9) == "ADT"


def read_updates(message: Message) -> tuple[PatientUpdate, ...]:
    """Read every update of an ADT message.

    Raises OrderRefused: AR for an event or version that is not followed, AE for what is missing in the message, and for
    text that cannot be decoded for certain.
    """
    event = message.header.text(9, 2)
    if event not in (_UPDATE, _MERGE):
        raise _refused(AcknowledgmentCode.REJECT, _EVENT_UNSUPPORTED, "of ADT only A08 and A40 are followed here")
    if not message.header.text(12).startswith("2."):
        raise _refused(AcknowledgmentCode.REJECT, _VERSION_UNSUPPORTED, "only version 2 is read here (MSH-12)")
    if not message.header.text(10):
        raise _wrong(_FIELD_MISSING, "the message has no control id (MSH-10)")
    if message.doubt:
        raise _wrong(_CHARACTER_SET, f"{message.doubt}; nothing was changed: {NAME_IT}")
    updates = tuple(_updates(message) if event == _UPDATE else _merges(message))
    if not updates:
        raise _wrong(_SEGMENT_SEQUENCE, f"the message has no {'PID' if event == _UPDATE else 'PID with MRG'} segment")
    return updates


def _updates(message: Message) -> Iterator[PatientUpdate]:
    for patient in message.named("PID"):
        numbers = numbers_in(patient, 3) or numbers_in(patient, 2)
        if not numbers:
            raise _wrong(_FIELD_MISSING, "the patient has no identifier (PID-3)")
        yield _update(_UPDATE, patient, prior=numbers)


def _merges(message: Message) -> Iterator[PatientUpdate]:
    patient: Segment | None = None
    for segment in message.named("PID", "MRG"):
        if segment.name == "PID":
            patient = segment
            continue
        if patient is None:
            raise _wrong(_SEGMENT_SEQUENCE, "a patient that ends (MRG) has no patient that stays (PID) before it")
        prior, staying = numbers_in(segment, 1), numbers_in(patient, 3)
        if not prior or not staying:
            raise _wrong(_FIELD_MISSING, "a merge needs the identifiers that stay (PID-3) and that end (MRG-1)")
        for number in prior:
            yield _update(_MERGE, patient, prior=(number,), merged_into=_fitting(number, staying))


def _update(
    event: str, patient: Segment, *, prior: tuple[PatientNumber, ...], merged_into: PatientNumber | None = None
) -> PatientUpdate:
    sex = patient.text(8).upper()
    name, has_groups = _name(patient)
    _require_text(name, *(number.number for number in (*prior, *filter(None, (merged_into,)))))
    return PatientUpdate(
        event=event,
        prior=prior,
        merged_into=merged_into,
        name=name,
        has_groups=has_groups,
        birth_date=_date(patient.text(7)),
        sex=sex if sex in _SEXES else "",
    )


def _require_text(*texts: str) -> None:
    """Refuse an identity with an escape sequence that was not understood, or with control characters."""
    if any(map(_NOT_IN_IDENTITY.search, texts)):
        said = "a name or number has an escape sequence or a control character that is not read here"
        raise _wrong(_CHARACTER_SET, f"{said}; nothing was changed: send the characters themselves")


def _fitting(prior: PatientNumber, staying: tuple[PatientNumber, ...]) -> PatientNumber:
    """Return the identifier that stays of the authority that assigned the one that ends, else the first."""
    return next((number for number in staying if set(number.issuers) & set(prior.issuers)), staying[0])


def _name(patient: Segment) -> tuple[str, bool]:
    """Return the name as PN, and whether it says which groups it has.

    Its repetitions are groups by their representation (XPN-8), if they are of the type of the first (XPN-7, legal if it
    is blank): another type is another name, such as an alias. Of several of one representation the first counts; one
    without it is alphabetic beside others.
    """
    names = [alone for alone in patient.repetitions(5) if _group(alone)]
    own = [alone for alone in names if _type(alone) == _type(names[0])]
    groups = dict.fromkeys(_REPRESENTATIONS, "")
    for alone in own:
        said = alone.text(5, 8).upper() or _REPRESENTATIONS[0]
        groups[said] = groups.get(said) or _group(alone)
    has_groups = any(alone.text(5, 8) for alone in own)
    return "=".join(groups[said] for said in _REPRESENTATIONS).rstrip("="), has_groups


def _type(alone: Segment) -> str:
    return alone.text(5, 7).upper() or "L"


def _group(alone: Segment) -> str:
    """Return a group of a PN: family, given, middle, prefix, suffix (PS3.5 6.2.1); XPN has the suffix first."""
    family, given, middle, suffix, prefix = (alone.text(5, component) for component in range(1, 6))
    parts = (part.translate({ord(sign): " " for sign in "^="}) for part in (family, given, middle, prefix, suffix))
    return "^".join(parts).rstrip("^")


def _date(value: str) -> str:
    """Return the day of a time (TS) as DA, or "" if it is not a day."""
    if not _DATE.fullmatch(value[:8]):
        return ""
    try:
        datetime.strptime(value[:8], "%Y%m%d")
    except ValueError:
        return ""
    return value[:8]


def _wrong(condition: str, text: str) -> OrderRefused:
    return _refused(AcknowledgmentCode.ERROR, condition, text)


def _refused(code: AcknowledgmentCode, condition: str, text: str) -> OrderRefused:
    return OrderRefused(code, Complaint(condition=condition, text=text))
