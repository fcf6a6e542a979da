"""Messages that real systems send and that hl7apy cannot read, tolerant and without groups: why `node.hl7.text` reads.

When one of these tests fails because hl7apy reads a message, look at docs/develop/decisions/hl7-reading.md again.
"""

from __future__ import annotations

import time

import pytest
from hl7apy.consts import VALIDATION_LEVEL
from hl7apy.exceptions import HL7apyException
from hl7apy.parser import parse_message

from node.hl7.acknowledgment import read_acknowledgment
from node.hl7.order import Priority
from node.hl7.text import TooManyRepetitions, read
from node.orders.messages import read_orders

PATIENT, ORDER = "PID|||7^^^H\r", "ORC|NW|P-1^RIS|F-1\rOBR|1|P-1|F-1|XR\r"
STUDY = "IPC|A-17|1|1.2.3\r"


def header(version: str = "2.5.1", *, kind: str = "ORM^O01", delimiters: str = "^~\\&") -> str:
    return f"MSH|{delimiters}|RIS|WEST|CHEX|WEST|20240131||{kind}|1|P|{version}\r"


def by_hl7apy(message: str) -> str:
    """The message as hl7apy understood it."""
    return str(parse_message(message, find_groups=False, validation_level=VALIDATION_LEVEL.TOLERANT).to_er7())


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (header("2.9") + PATIENT + ORDER + STUDY, "version 2.9 is not supported"),
        (header("2.7.1") + PATIENT + ORDER + STUDY, "version 2.7.1 is not supported"),
        (header("2.4", kind="OMI^O23") + PATIENT + ORDER + STUDY, "Invalid name for Segment: IPC"),
        (header("2.5.1") + "NPU|1\r" + PATIENT + ORDER + STUDY + "XRI|room 3\r", "Invalid name for Segment: XRI"),
        (header("2.5.1", delimiters="^~\\&#") + PATIENT + ORDER + STUDY, "Found 5 encoding chars"),
    ],
    ids=["2.9", "2.7.1", "IPC before 2.5", "a segment of their own", "the fifth delimiter before 2.7"],
)
def test_an_order_that_hl7apy_refuses_is_read(message: str, refusal: str) -> None:
    (change,) = read_orders(read(message.encode()))

    assert (change.order.accession, change.order.study_uid) == ("A-17", "1.2.3")
    assert change.order.placer_number == ("P-1", "RIS")
    with pytest.raises(HL7apyException, match=refusal):
        by_hl7apy(message)


def test_a_priority_in_a_newer_segment_is_read() -> None:
    message = header("2.3.1") + PATIENT + ORDER + "TQ1|||||||||S\r" + "ZDS|1.2.3^A^Application^DICOM\r"

    (change,) = read_orders(read(message.encode()))

    assert change.order.priority is Priority.STAT
    with pytest.raises(HL7apyException, match="Invalid name for Segment: TQ1"):
        by_hl7apy(message)


def test_the_code_of_an_error_is_read_where_hl7apy_moves_it() -> None:
    """An engine that stamps 2.3 on its answer and writes the error as 2.5 does: hl7apy makes ERR-2 of its ERR-3."""
    message = header("2.3", kind="ACK") + "MSA|AE|1\r" + "ERR|||101^Required field missing^HL70357|E\r"

    answer = read_acknowledgment(message.encode())

    assert (answer.code, answer.conditions) == ("AE", ("101",))
    assert "ERR|||101" in message and "ERR||101" in by_hl7apy(message)


@pytest.mark.parametrize("more", ["|", "^", "&", "\rOBX|1|TX|A^B||text|||||F"])
def test_a_hostile_message_costs_no_seconds(more: str) -> None:
    """hl7apy takes a quarter of a millisecond for each delimiter: minutes for a message of the allowed size."""
    message = header() + PATIENT.strip() + more * (1_000_000 // len(more)) + "\r" + (ORDER + STUDY) * 100
    began = time.process_time()

    changes = read_orders(read(message.encode()))

    assert [change.order.accession for change in changes] == ["A-17"] * 100
    assert time.process_time() - began < 3


@pytest.mark.parametrize("repeated", ["~", "~a"])
def test_a_field_without_end_is_refused(repeated: str) -> None:
    """One order took four seconds and a hundred of them minutes: each asks for all identifiers of its patient."""
    message = header() + PATIENT.strip() + repeated * 400_000 + "\r" + (ORDER + STUDY) * 100
    began = time.process_time()

    with pytest.raises(TooManyRepetitions, match="more than 200 repetitions of field PID-3"):
        read_orders(read(message.encode()))
    assert time.process_time() - began < 3
