r"""Escapes, cutting of messages, acknowledgments, frames and character sets: what HL7 2.5.1 chapter 2 says of text."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import hl7
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from node.deliver.hl7 import address
from node.hl7 import mllp
from node.hl7.acknowledgment import AcknowledgmentCode, Complaint, acknowledge, read_acknowledgment
from node.hl7.order import Priority
from node.hl7.text import CODECS, Delimiters, TooManyRepetitions, escape, read, unescape
from node.orders.messages import OrderRefused, read_orders
from node.outputs import oru
from node.settings.destinations import Hl7Destination
from tests.support import peers, samples

NOW = datetime(2024, 1, 31, 12, tzinfo=UTC)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ORDER = rb"MSH|^~\&|RIS|CLINIC|CHEX|XRAY|20240131||ORM^O01|77|P|2.3" + b"\rPID|1||4711\rORC|NW|P1\r"
PATIENT, ORDERED = "PID|||7^^^H\r", "ORC|NW|P-1^RIS|F-1\rOBR|1|P-1|F-1|XR\r"
STUDY = "IPC|A-17|1|1.2.3\r"


def header(version: str = "2.5.1", *, kind: str = "ORM^O01", delimiters: str = "^~\\&") -> str:
    return f"MSH|{delimiters}|RIS|WEST|CHEX|WEST|20240131||{kind}|1|P|{version}\r"


@given(ANY_TEXT)
def test_escaped_text_can_be_read_again_and_holds_no_delimiter_or_control_character(text: str) -> None:
    escaped = escape(text)

    assert unescape(escaped, Delimiters()) == text
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


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"MSH|^~\\&|" + rest))
def test_whatever_comes_is_a_message_or_none(content: bytes) -> None:
    with suppress(ValueError):
        message = read(content)
        assert (message.header.name, type(message.header.text(9, 2))) == ("MSH", str)


def test_an_acknowledgment_names_the_message_and_swaps_addresses() -> None:
    complaint = Complaint(condition="101", text="no | number")

    answer = hl7.parse(acknowledge(read(ORDER), AcknowledgmentCode.ACCEPT, now=NOW).decode())
    refusal = acknowledge(read(ORDER), AcknowledgmentCode.ERROR, now=NOW, complaint=complaint)

    header, verdict = answer.segment("MSH"), answer.segment("MSA")
    assert [str(header[field]) for field in (3, 4, 5, 6)] == ["CHEX", "XRAY", "RIS", "CLINIC"]
    assert (str(header[7]), str(header[9])) == ("20240131120000+0000", "ACK^O01^ACK")
    assert (str(verdict[1]), str(verdict[2])) == ("AA", "77")
    again = read_acknowledgment(refusal)
    assert (again.code, again.control_id, again.conditions) == ("AE", "77", ("101",))
    assert b"4711" not in refusal


@pytest.mark.parametrize("version", ["2.3", "2.5.1"])  # an engine stamps 2.3 on what it writes as 2.5 does
@pytest.mark.parametrize(
    "error", ["MSA|AE|1|text|||207^x^HL70357", "MSA|AE|1\rERR|PID^1^3^207&x&HL70357", "MSA|AE|1\rERR|||207^x^HL70357|E"]
)
def test_an_error_code_is_found_wherever_a_version_has_it(error: str, version: str) -> None:
    answer = read_acknowledgment(f"{header(version, kind='ACK')}{error}\r".encode())

    assert answer.conditions == ("207",)


def test_an_answer_in_enhanced_mode_means_the_same_and_one_without_a_verdict_is_none() -> None:
    codes = [read_acknowledgment(f"MSH|^~\\&|A\rMSA|{code}|1".encode()).code for code in ("CA", "CE", "CR")]
    assert codes == ["AA", "AE", "AR"]
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


def test_what_is_no_frame_or_never_ends_is_refused() -> None:
    for content in (b"\x0bhalf", b"no mark\x1c\r", b"\x0b" + b"x" * 2000):
        with connected() as (peer, frames):
            peer.sendall(content)
            peer.shutdown(socket.SHUT_WR)
            with pytest.raises(mllp.BrokenFrame):
                following(frames)
    with connected() as (peer, frames):
        peer.sendall(b"\x0bslow")
        with pytest.raises(mllp.BrokenFrame, match="in time"):
            frames.next(idle_seconds=60, frame_seconds=0.05)
    with pytest.raises(ValueError, match="frame characters"):
        mllp.frame(b"a\x1cb")


@pytest.mark.parametrize(
    "message",
    [
        header("2.9") + PATIENT + ORDERED + STUDY,
        header("2.7.1") + PATIENT + ORDERED + STUDY,
        header("2.4", kind="OMI^O23") + PATIENT + ORDERED + STUDY,
        header("2.5.1") + "NPU|1\r" + PATIENT + ORDERED + STUDY + "XRI|room 3\r",
        header("2.5.1", delimiters="^~\\&#") + PATIENT + ORDERED + STUDY,
        header("2.3.1") + PATIENT + ORDERED + "TQ1|||||||||S\r" + "IPC|A-17\rZDS|1.2.3^A^Application^DICOM\r",
    ],
    ids=[
        "2.9",
        "2.7.1",
        "IPC before 2.5",
        "a segment of their own",
        "a fifth delimiter before 2.7",
        "TQ1 before 2.5",
    ],
)
def test_an_order_that_hl7apy_refuses_is_read(message: str) -> None:
    (change,) = read_orders(read(message.encode()))

    assert (change.order.accession, change.order.study_uid) == ("A-17", "1.2.3")
    assert change.order.placer_number == ("P-1", "RIS")
    assert (change.order.priority is Priority.STAT) is ("TQ1" in message)


@pytest.mark.parametrize(
    ("more", "is_refused"),
    [("|", False), ("^", False), ("&", False), ("\rOBX|1|TX|A^B||text|||||F", False), ("~", True), ("~a", True)],
)
def test_a_hostile_message_costs_no_seconds(more: str, is_refused: bool) -> None:
    """One order took four seconds and a hundred of them minutes: each asks for all identifiers of its patient."""
    message = header() + PATIENT.strip() + more * (1_000_000 // len(more)) + "\r" + (ORDERED + STUDY) * 100
    began = time.process_time()

    if is_refused:
        with pytest.raises(TooManyRepetitions, match="more than 200 repetitions of field PID-3"):
            read_orders(read(message.encode()))
    else:
        assert [change.order.accession for change in read_orders(read(message.encode()))] == ["A-17"] * 100
    assert time.process_time() - began < 3


RIS = Hl7Destination(name="ris", host=peers.LOOPBACK, port=2575)
LATIN, UTF, CHINESE = "latin-1", "utf-8", "gb18030"


def message(name: str) -> bytes:
    """The result of a patient of this name, as it lies on disk."""
    source: Dataset = samples.cr()
    source.SpecificCharacterSet = "ISO_IR 192"
    source.PatientName = name
    report = samples.report(samples.several())
    return oru.write(report, samples.sources(source), samples.BERLIN, order=None, documents=[])[1]


@pytest.mark.parametrize(
    ("character_set", "encoding", "name", "seen"),
    [
        ("UNICODE UTF-8", "utf-8", "Łukasz^Ж=山田^太郎", ["Łukasz^Ж^^^^^L^A", "山田^太郎^^^^^L^I"]),
        ("8859/1", "latin-1", "Müller^José", ["Müller^José^^^^^L^A"]),
        ("8859/2", "iso8859-2", "Łukasz^Ж", ["Łukasz^?^^^^^L^A"]),
        ("8859/5", "iso8859-5", "Жуков^Łu", ["Жуков^?u^^^^^L^A"]),
        ("8859/15", "iso8859-15", "Œuvre^€", ["Œuvre^€^^^^^L^A"]),
        ("KS X 1001", "euc_kr", "Hong^Gildong=洪^길동", ["Hong^Gildong^^^^^L^A", "洪^길동^^^^^L^I"]),
        ("ASCII", "ascii", "Müller^José=山田^太郎", ["M?ller^Jos?^^^^^L^A", "??^??^^^^^L^I"]),
    ],
)
def test_a_receiver_reads_its_own_set_and_sees_what_that_lacks(
    character_set: str, encoding: str, name: str, seen: list[str]
) -> None:
    content, destination = message(name), dataclasses.replace(RIS, character_set=character_set)

    sent, again = address(content, destination), address(content, destination)

    assert sent == again
    assert read(sent).header.text(10) == read(content).header.text(10)
    parsed = hl7.parse(sent, encoding=encoding)  # as another library reads it
    assert [str(repetition) for repetition in parsed.segment("PID")[5]] == seen
    assert str(parsed.segment("MSH")[18]) == character_set


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), character_set=st.sampled_from(sorted(CODECS))
)
def test_no_text_breaks_a_message_in_any_set(name: str, character_set: str) -> None:
    line = f"MSH|^~\\&|A|B|C|D|20240131||ORU^R01|1|P|2.5.1||||||UNICODE UTF-8\rZZZ|{escape(name)}|end\r"

    sent = address(line.encode(), dataclasses.replace(RIS, character_set=character_set))

    assert mllp.frame(sent)
    raw = sent.split(b"\r")[1].split(b"|")
    assert (len(raw), raw[2]) == (3, b"end")  # also for those that cut bytes before they decode
    text = name.encode(CODECS[character_set], errors="replace").decode(CODECS[character_set])
    assert unescape(raw[1].decode(CODECS[character_set]), Delimiters()) == text or "\\X" in escape(name)


KANJI = "山田^太郎"
REQUEST = "MSH|^~\\&|RIS|A|CHEX|B|20240131||ORM^O01|M1|P|2.5.1||||||{}\rPID|||P-1||王^小明\rORC|NW|P1|F1\rOBR|1|||{}\r"


def said(character_set: str, encoding: str, name: str) -> bytes:
    """A message about a patient of a name."""
    return REQUEST.replace("王^小明", name).format(character_set, "Thorax").encode(encoding)


@pytest.mark.parametrize(
    ("character_set", "encoding", "name"),
    [
        ("GB 18030-2000", CHINESE, "王^小明"),
        ("UNICODE UTF-8", UTF, "王^小明"),
        ("utf-8", UTF, "王^小明"),
        ("BIG-5", "big5", "王^小明"),
        ("8859/1", LATIN, "Müller^Jörg"),
        ("8859/2", "iso8859-2", "Łódź^Żaneta"),  # where two would fit
        ("8859/1~8859/5", LATIN, "Müller^Jörg"),
        ("KS X 1001", "euc_kr", "김^철수"),
        ("", "ascii", "Smith^John"),
        ("ASCII~ISO IR87", "iso2022_jp", f"{KANJI}^^^^^L^I"),
        ("~ISO IR87", "iso2022_jp", f"Yamada^Tarou^^^^^L^A~{KANJI}^^^^^L^I"),
        ("ISO IR14~ISO IR87~ISO IR159", "iso2022_jp", f"{KANJI}^^^^^L^I"),
    ],
)  # fmt: skip
def test_a_message_is_read_in_the_set_that_it_names(character_set: str, encoding: str, name: str) -> None:
    found = read(said(character_set, encoding, name))

    assert (found.doubt, next(found.named("PID")).fields[5]) == ("", name)


@pytest.mark.parametrize(
    "encoded",
    [
        said("", UTF, "王^小明"),  # ASCII, as the standard has it
        said("", LATIN, "Müller"),
        said("ASCII", UTF, "王^小明"),
        said("UNICODE UTF-8", CHINESE, "王^小明"),
        said("8859/1", UTF, "Müller"),
        said("8859/5", UTF, "Иванов"),
        said("GB 18030-2000", UTF, "王^小明"),
        said("8859/3", "iso8859-1", "Ã^Ñ"),  # no such byte there
        said("CNS 11643-1992", "ascii", "SMITH"),
        said("UNICODE UTF-16", "ascii", "SMITH"),
        said("UNICODE UTF-8~KLINGON", "ascii", "SMITH"),
        said("UNICODE UTF-8~ISO IR87", "iso2022_jp", KANJI),
        said("8859/1~8859/5", LATIN, "M\x1b-L\xd9"),
        said("8859/1", LATIN, "\\C2D4C\\Müller"),
    ],
)  # fmt: skip
def test_a_message_in_a_doubtful_set_says_so(encoded: bytes) -> None:
    assert read(encoded).doubt


@pytest.mark.parametrize(
    ("character_set", "encoding", "procedure"),
    [
        ("GB 18030-2000", CHINESE, "胸部|^|"),
        ("GB 18030-2000", CHINESE, "亅"),  # its second byte is that of the field separator
        ("", UTF, "胸部"),
        ("", LATIN, "Röntgen"),
        ("ASCII", UTF, "Röntgen"),
        ("UNICODE UTF-8", LATIN, "Röntgen"),
        ("KLINGON", LATIN, "Röntgen"),
    ],
)
def test_an_order_is_taken_where_its_numbers_are_certain(character_set: str, encoding: str, procedure: str) -> None:
    content = REQUEST.replace("王^小明", "Smith").format(character_set, procedure).encode(encoding)

    found = read(content)
    [change] = read_orders(found)

    assert (change.order.placer_number, change.order.filler_number) == (("P1",), ("F1",))
    assert next(found.named("OBR")).fields[4] == procedure.partition("|")[0], "in the set that it has"


@pytest.mark.parametrize(
    ("character_set", "part", "garbled"),
    [
        ("KLINGON", b"Thorax", b"\x81\x7c"),
        ("", b"Thorax", b"\x81\x7c"),
        ("", b"|F1", b"|F\xfc1"),
        ("CNS 11643-1992", b"|F1", b"|F\xc4\xa11"),
        ("CNS 11643-1992", b"|P-1|", b"|P\xfc-1|"),
        ("CNS 11643-1992", b"|P-1|", b"|\xb1\x69-1|"),
    ],
)
def test_an_order_that_may_be_garbled_is_refused(character_set: str, part: bytes, garbled: bytes) -> None:
    content = REQUEST.format(character_set, "Thorax").encode(CHINESE).replace(part, garbled)

    with pytest.raises(OrderRefused) as caught:
        read_orders(read(content))

    assert (caught.value.code, caught.value.complaint.condition) == (AcknowledgmentCode.ERROR, "103")
