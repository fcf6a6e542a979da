r"""Escapes, cutting of messages, acknowledgments and frames: what HL7 2.5.1 chapter 2 says of text."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import hl7
import pytest
from hl7apy.consts import VALIDATION_LEVEL
from hl7apy.exceptions import HL7apyException
from hl7apy.parser import parse_message
from hypothesis import given
from hypothesis import strategies as st

from node.hl7 import mllp
from node.hl7.acknowledgment import AcknowledgmentCode, Complaint, acknowledge, read_acknowledgment
from node.hl7.order import Priority
from node.hl7.text import Delimiters, TooManyRepetitions, escape, read, unescape
from node.orders.messages import read_orders

NOW = datetime(2024, 1, 31, 12, tzinfo=UTC)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ORDER = rb"MSH|^~\&|RIS|CLINIC|CHEX|XRAY|20240131||ORM^O01|77|P|2.3" + b"\rPID|1||4711\rORC|NW|P1\r"
PATIENT, ORDERED = "PID|||7^^^H\r", "ORC|NW|P-1^RIS|F-1\rOBR|1|P-1|F-1|XR\r"
STUDY = "IPC|A-17|1|1.2.3\r"


@given(ANY_TEXT)
def test_what_is_escaped_can_be_read_again(text: str) -> None:
    assert unescape(escape(text), Delimiters()) == text


@given(ANY_TEXT)
def test_escaped_text_holds_no_delimiter_or_control_character(text: str) -> None:
    escaped = escape(text)

    assert not set("|^~&") & set(escaped)
    assert all(ord(letter) >= 0x20 and not 0x7F <= ord(letter) < 0xA0 for letter in escaped)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"a\F\b\S\c\T\d\R\e\E\f", r"a|b^c&d~e\f"),
        (r"line\X0D\line", "line\rline"),
        (r"line\.br\line", "line\nline"),
        (r"\H\loud\N\ voice", "loud voice"),
        (r"\XC3A4\rger", "ärger"),
        (r"left \Q\ alone \ ", r"left \Q\ alone \ "),
    ],
)
def test_escape_sequences_of_others_are_read(written: str, meant: str) -> None:
    assert unescape(written, Delimiters()) == meant


def test_a_message_is_split_at_the_delimiters_of_its_header() -> None:
    message = read(b"MSH#*+!%#RIS#A*B%C+second##x!S!y\rZZZ#1\n")

    assert message.header.text(3) == "RIS"
    assert (message.header.text(4), message.header.text(4, 2), message.header.text(4, 2, 2)) == ("A", "B", "C")
    assert message.header.text(6) == "x*y"
    assert [segment.text(1) for segment in message.named("ZZZ")] == ["1"]


def test_an_older_character_set_is_read_too() -> None:
    assert read("MSH|^~\\&|Röntgen".encode("iso8859-1")).header.text(3) == "Röntgen"


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"MSH|^~\\&|" + rest))
def test_whatever_comes_is_a_message_or_none(content: bytes) -> None:
    try:
        message = read(content)
    except ValueError:
        return
    assert message.header.name == "MSH"
    assert isinstance(message.header.text(9, 2), str)


def test_an_acknowledgment_names_the_message_and_swaps_addresses() -> None:
    answer = hl7.parse(acknowledge(read(ORDER), AcknowledgmentCode.ACCEPT, now=NOW).decode())

    header, verdict = answer.segment("MSH"), answer.segment("MSA")
    assert [str(header[field]) for field in (3, 4, 5, 6)] == ["CHEX", "XRAY", "RIS", "CLINIC"]
    assert str(header[9]) == "ACK^O01^ACK"
    assert (str(verdict[1]), str(verdict[2])) == ("AA", "77")


def test_a_complaint_is_read_as_it_was_written() -> None:
    content = acknowledge(
        read(ORDER), AcknowledgmentCode.ERROR, now=NOW, complaint=Complaint(condition="101", text="no | number")
    )

    answer = read_acknowledgment(content)

    assert (answer.code, answer.control_id, answer.conditions) == ("AE", "77", ("101",))
    assert b"4711" not in content


@pytest.mark.parametrize(
    "error", ["MSA|AE|1|text|||207^x^HL70357", "MSA|AE|1\rERR|PID^1^3^207&x&HL70357", "MSA|AE|1\rERR|||207^x^HL70357|E"]
)
def test_an_error_code_is_found_wherever_a_version_has_it(error: str) -> None:
    answer = read_acknowledgment(f"MSH|^~\\&|A\r{error}\r".encode())

    assert answer.conditions == ("207",)


def test_an_answer_in_enhanced_mode_means_the_same() -> None:
    assert [read_acknowledgment(f"MSH|^~\\&|A\rMSA|{code}|1".encode()).code for code in ("CA", "CE", "CR")] == [
        "AA",
        "AE",
        "AR",
    ]


def test_an_answer_without_a_verdict_is_none() -> None:
    with pytest.raises(ValueError, match="MSA"):
        read_acknowledgment(ORDER)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, mllp.Frames]]:
    """A peer and what reads from it."""
    here, there = socket.socketpair()
    with here, there:
        yield there, mllp.Frames(here, limit_bytes=1000)


def following(frames: mllp.Frames) -> bytes | None:
    return frames.next(idle_seconds=60, frame_seconds=60)


@given(st.lists(st.binary(max_size=50).filter(lambda content: not set(content) & {0x0B, 0x1C}), max_size=5))
def test_frames_come_out_as_they_were_sent(contents: list[bytes]) -> None:
    with connected() as (peer, frames):
        peer.sendall(b"".join(map(mllp.frame, contents)))
        peer.shutdown(socket.SHUT_WR)

        assert [following(frames) for _ in contents] == contents
        assert following(frames) is None


@pytest.mark.parametrize("content", [b"\x0bhalf", b"no mark\x1c\r", b"\x0b" + b"x" * 2000])
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    with connected() as (peer, frames):
        peer.sendall(content)
        peer.shutdown(socket.SHUT_WR)

        with pytest.raises(mllp.BrokenFrame):
            following(frames)


def test_a_frame_that_never_ends_holds_nobody() -> None:
    with connected() as (peer, frames):
        peer.sendall(b"\x0bslow")

        with pytest.raises(mllp.BrokenFrame, match="in time"):
            frames.next(idle_seconds=60, frame_seconds=0.05)


def test_a_message_with_a_mark_inside_cannot_be_framed() -> None:
    with pytest.raises(ValueError, match="frame characters"):
        mllp.frame(b"a\x1cb")


def header(version: str = "2.5.1", *, kind: str = "ORM^O01", delimiters: str = "^~\\&") -> str:
    return f"MSH|{delimiters}|RIS|WEST|CHEX|WEST|20240131||{kind}|1|P|{version}\r"


def by_hl7apy(message: str) -> str:
    """The message as hl7apy understood it."""
    return str(parse_message(message, find_groups=False, validation_level=VALIDATION_LEVEL.TOLERANT).to_er7())


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (header("2.9") + PATIENT + ORDERED + STUDY, "version 2.9 is not supported"),
        (header("2.7.1") + PATIENT + ORDERED + STUDY, "version 2.7.1 is not supported"),
        (header("2.4", kind="OMI^O23") + PATIENT + ORDERED + STUDY, "Invalid name for Segment: IPC"),
        (header("2.5.1") + "NPU|1\r" + PATIENT + ORDERED + STUDY + "XRI|room 3\r", "Invalid name for Segment: XRI"),
        (header("2.5.1", delimiters="^~\\&#") + PATIENT + ORDERED + STUDY, "Found 5 encoding chars"),
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
    message = header("2.3.1") + PATIENT + ORDERED + "TQ1|||||||||S\r" + "ZDS|1.2.3^A^Application^DICOM\r"

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
    message = header() + PATIENT.strip() + more * (1_000_000 // len(more)) + "\r" + (ORDERED + STUDY) * 100
    began = time.process_time()

    changes = read_orders(read(message.encode()))

    assert [change.order.accession for change in changes] == ["A-17"] * 100
    assert time.process_time() - began < 3


@pytest.mark.parametrize("repeated", ["~", "~a"])
def test_a_field_without_end_is_refused(repeated: str) -> None:
    """One order took four seconds and a hundred of them minutes: each asks for all identifiers of its patient."""
    message = header() + PATIENT.strip() + repeated * 400_000 + "\r" + (ORDERED + STUDY) * 100
    began = time.process_time()

    with pytest.raises(TooManyRepetitions, match="more than 200 repetitions of field PID-3"):
        read_orders(read(message.encode()))
    assert time.process_time() - began < 3
