"""Reads updates (ADT^A08) and merges (ADT^A40) of patients. Pure.

Of a merge, each MRG segment is about the PID segment before it (HL7 2.5.1 3.3.40).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from node.hl7.acknowledgment import AcknowledgmentCode, Complaint
from node.hl7.patient import PatientNumber, PatientUpdate
from node.hl7.text import Message, Segment
from node.orders.messages import OrderRefused

_UPDATE, _MERGE = "A08", "A40"
_SEXES: Final = ("M", "F", "O")  # what table 0001 has more has no place in a film (PS3.3 C.7.1.1)
_DATE: Final = re.compile(r"\d{8}")

# HL7 table 0357
_SEGMENT_SEQUENCE, _FIELD_MISSING, _EVENT_UNSUPPORTED, _VERSION_UNSUPPORTED = "100", "101", "201", "203"


def is_about_patient(message: Message) -> bool:
    """Say whether a message is an ADT message."""
    return message.header.text(9) == "ADT"


def read_updates(message: Message) -> tuple[PatientUpdate, ...]:
    """Read every update of an ADT message.

    Raises OrderRefused: AR for an event or version that is not followed, AE for what is missing in the message.
    """
    event = message.header.text(9, 2)
    if event not in (_UPDATE, _MERGE):
        raise _refused(AcknowledgmentCode.REJECT, _EVENT_UNSUPPORTED, "of ADT only A08 and A40 are followed here")
    if not message.header.text(12).startswith("2."):
        raise _refused(AcknowledgmentCode.REJECT, _VERSION_UNSUPPORTED, "only version 2 is read here (MSH-12)")
    if not message.header.text(10):
        raise _wrong(_FIELD_MISSING, "the message has no control id (MSH-10)")
    updates = tuple(_updates(message) if event == _UPDATE else _merges(message))
    if not updates:
        raise _wrong(_SEGMENT_SEQUENCE, f"the message has no {'PID' if event == _UPDATE else 'PID with MRG'} segment")
    return updates


def _updates(message: Message) -> Iterator[PatientUpdate]:
    for patient in message.named("PID"):
        numbers = _numbers(patient, 3) or _numbers(patient, 2)
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
        prior, staying = _numbers(segment, 1), _numbers(patient, 3)
        if not prior or not staying:
            raise _wrong(_FIELD_MISSING, "a merge needs the identifiers that stay (PID-3) and that end (MRG-1)")
        for number in prior:
            yield _update(_MERGE, patient, prior=(number,), merged_into=_fitting(number, staying))


def _update(
    event: str, patient: Segment, *, prior: tuple[PatientNumber, ...], merged_into: PatientNumber | None = None
) -> PatientUpdate:
    sex = patient.text(8).upper()
    return PatientUpdate(
        event=event,
        prior=prior,
        merged_into=merged_into,
        name=_name(patient),
        birth_date=_date(patient.text(7)),
        sex=sex if sex in _SEXES else "",
    )


def _numbers(segment: Segment, field: int) -> tuple[PatientNumber, ...]:
    """Return the identifiers of a field (CX): of the authority (CX-4) its name and its universal id."""
    return tuple(
        PatientNumber(number=number, issuers=tuple(filter(None, (alone.text(field, 4), alone.text(field, 4, 2)))))
        for alone in segment.repetitions(field)
        if (number := alone.text(field))
    )


def _fitting(prior: PatientNumber, staying: tuple[PatientNumber, ...]) -> PatientNumber:
    """Return the identifier that stays of the authority that assigned the one that ends, else the first."""
    return next((number for number in staying if set(number.issuers) & set(prior.issuers)), staying[0])


def _name(patient: Segment) -> str:
    """Return the name as PN: family, given, middle, prefix, suffix (PS3.5 6.2.1); XPN has the suffix first."""
    family, given, middle, suffix, prefix = (patient.text(5, component) for component in range(1, 6))
    parts = (part.translate({ord(sign): " " for sign in "^=\\"}) for part in (family, given, middle, prefix, suffix))
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
