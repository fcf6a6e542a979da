"""HL7 and STOW-RS at the wire, as others speak them: one odd peer a row, and what the node makes of it."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.uid import JPEG2000Lossless

from node.errors import GiveUp, RetryLater
from node.hl7 import mllp as frames
from node.metrics import Metrics
from node.orders.listener import OrderListener
from node.orders.store import OrderStore
from node.settings.destinations import Hl7Destination
from tests.node.deliver import test_hl7_delivery
from tests.node.deliver.test_dicomweb import deliver as stow
from tests.node.deliver.test_dicomweb import to as web
from tests.node.orders import test_order_listener
from tests.node.orders.test_order_listener import refused
from tests.node.orders.test_orders import ORM, STUDY
from tests.node.web import test_web_submit
from tests.node.web.test_web_submit import RELATED, Node, film, kept, reasons, related, uids
from tests.support import films, mllp, peers, senders
from tests.support.mllp import END, START
from tests.support.ordered import find
from tests.support.web_archive import WebArchive, web_archive

store, metrics, listener = test_order_listener.store, test_order_listener.metrics, test_order_listener.listener
result, node_of_http = test_hl7_delivery.content, test_web_submit.node

BOM = b"\xef\xbb\xbf"
BEFORE = {
    "nothing": b"",
    "a byte order mark": BOM,
    "blanks": b"  \t",
    "line ends": b"\r\n\r\n",
    "two more starts": START + START,
    "all of it": START + BOM + b" \r" + START + b"\n ",
    "zeros": b"\0\0",
}


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Run an information system that answers every message with the same bytes; yields its port, and what came."""
    came: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection: socket.socket = self.request
            came.append(frames.Frames(connection).next(idle_seconds=60, frame_seconds=60) or b"")
            connection.sendall(answer)

    with socketserver.ThreadingTCPServer((peers.LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield int(server.server_address[1]), came
        server.shutdown()
        thread.join()


def acknowledgment(control_id: str, *, code: str = "AA") -> bytes:
    return f"MSH|^~\\&|RIS|H|CHEX|H|20260101||ACK|1|P|2.5.1\rMSA|{code}|{control_id}\r".encode()


def send(content: bytes, port: int) -> None:
    senders.deliver(
        content, Hl7Destination(name="ris", host=peers.LOOPBACK, port=port, answer_seconds=5.0), calling_aet="CHEX"
    )


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("named", [True, False], ids=["named", "without MSA-2"])
def test_an_acknowledgment_counts_as_others_write_it(result: bytes, before: bytes, named: bool) -> None:
    control_id = result.split(b"|", 10)[9].decode() if named else ""

    with answering(START + before + acknowledgment(control_id) + END) as (port, came):
        send(result, port)

    assert len(came) == 1


@pytest.mark.parametrize("missing", ["MSA|AA", "MSA|AA|", 'MSA|AA|""', "MSA|CA||done"])
def test_an_acknowledgment_without_a_control_id_counts(result: bytes, missing: str) -> None:
    answer = acknowledgment("").replace(b"MSA|AA|", missing.encode())

    with answering(START + answer + END) as (port, came):
        send(result, port)

    assert len(came) == 1


def test_a_refusal_without_a_control_id_counts_too(result: bytes) -> None:
    with answering(START + acknowledgment("", code="AE") + END) as (port, _), pytest.raises(RetryLater, match="AE"):
        send(result, port)


def test_an_acknowledgment_of_another_message_does_not_count(result: bytes) -> None:
    with (
        answering(START + acknowledgment("OTHER") + END) as (port, _),
        pytest.raises(RetryLater, match="acknowledged another message"),
    ):
        send(result, port)


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_an_order_is_read_behind_what_others_send_first(
    listener: OrderListener,
    store: OrderStore,
    before: bytes,
) -> None:
    (answer,) = mllp.ask(listener.port, before + ORM.encode())

    assert (str(answer.segment("MSA")[1]), str(answer.segment("MSA")[2])) == ("AA", "C1")
    assert find(store, study_uid=STUDY, accession="A-17") is not None


BATCHES = {
    "a file": f"FHS|^~\\&|RIS\rBHS|^~\\&|RIS\r{ORM}\rBTS|1\rFTS|1",
    "a batch": f"BHS|^~\\&|RIS\r{ORM}\rBTS|1",
    "a batch without messages": "BHS|^~\\&|RIS\rBTS|0",
    "two messages": f"{ORM}\r{ORM.replace('A-17', 'A-99')}",
    "a message and a trailer": f"{ORM}\rBTS|1",
    "line feeds": f"BHS|^~\\&|RIS\n{ORM}\nBTS|1",
}


@pytest.mark.parametrize("content", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_refused_in_words(
    listener: OrderListener,
    store: OrderStore,
    metrics: Metrics,
    content: str,
) -> None:
    batch, single = mllp.ask(listener.port, content.encode(), ORM.replace("A-17", "A-18").encode())

    assert (str(batch.segment("MSA")[1]), str(single.segment("MSA")[1])) == ("AR", "AA")
    assert "send each message in its own frame" in str(batch.segment("MSA")[3])
    assert str(batch.segment("ERR")[3][0][0]) == "200"
    assert refused(metrics) == {"content": 1.0}
    assert find(store, study_uid="", accession="A-17") is None


@pytest.mark.parametrize(
    ("control", "status", "is_cancelled"),
    [
        ("SC", "CA", True),
        ("XO", "CA", True),
        ("NW", "CA", True),
        ("SC", "ca", True),
        ("SC", "DC", True),
        ("", "CA", True),
        ("CA", "", True),
        ("OC", "", True),
        ("DC", "", True),
        ("OD", "", True),
        ("CR", "", True),
        ("CA", "IP", True),
        ("SC", "IP", False),
        ("SC", "CM", False),
        ("NW", "", False),
        ("UC", "", False),
    ],
)
def test_an_order_is_cancelled_by_control_code_or_status(
    listener: OrderListener,
    store: OrderStore,
    control: str,
    status: str,
    is_cancelled: bool,
) -> None:
    order = ORM.replace("ORC|NW|P1^RIS|F1^RIS|", f"ORC|{control}|P1^RIS|F1^RIS||{status}")
    mllp.ask(listener.port, ORM.encode())

    (answer,) = mllp.ask(listener.port, order.encode())

    assert str(answer.segment("MSA")[1]) == "AA"
    assert (find(store, study_uid=STUDY, accession="A-17") is None) == is_cancelled


def test_a_cancelled_order_leaves_nothing(
    listener: OrderListener,
    store: OrderStore,
    tmp_path: Path,
) -> None:
    mllp.ask(listener.port, ORM.encode(), ORM.replace("ORC|NW|P1^RIS|F1^RIS|", "ORC|SC|P1^RIS|F1^RIS||CA").encode())

    assert store.counts() == {"stat": 0, "asap": 0, "routine": 0}
    assert not list((tmp_path / "orders").glob("*.json"))


def without(content: bytes, *elements: str) -> bytes:
    """A file without some elements of its file meta information, and without its length."""
    part = dcmread(BytesIO(content))
    meta = b""
    for element in part.file_meta:
        if element.keyword not in elements and element.tag != 0x00020000:
            value = element.value if element.VR == "OB" else str(element.value).encode()
            value += b"\0" * (len(value) % 2)
            length = struct.pack("<HL", 0, len(value)) if element.VR == "OB" else struct.pack("<H", len(value))
            meta += struct.pack("<HH", element.tag.group, element.tag.element) + element.VR.encode() + length + value
    return content[:132] + meta + films.body_of(content)


def wrong_length(content: bytes) -> bytes:
    return content[:140] + struct.pack("<L", 9999) + content[144:]


FILES = {
    "a preamble with something in it": lambda content: b"II*\0" + b"x" * 124 + content[128:],
    "no group length": lambda content: without(content),
    "a group length that is wrong": wrong_length,
    "no preamble": lambda content: content[132:],
    "no SOP Instance UID in the meta": lambda content: without(content, "MediaStorageSOPInstanceUID"),
    "no SOP Class UID in the meta": lambda content: without(content, "MediaStorageSOPClassUID"),
    "no names in the meta": lambda content: without(content, "MediaStorageSOPClassUID", "MediaStorageSOPInstanceUID"),
    "no transfer syntax": lambda content: without(content, "TransferSyntaxUID"),
    "a dataset alone": films.body_of,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["single", "related"])
def test_a_file_is_stored_as_dcmtk_reads_it(node_of_http: Node, name: str, kind: str) -> None:
    sent = film(f"{name} {kind}")
    content = FILES[name](films.file_bytes(sent))

    if kind == "related":
        answer = node_of_http.submit(related([content]), kind=RELATED)
    else:
        answer = node_of_http.submit(content)

    assert (answer.status_code, uids(answer, "00081199")) == (200, [sent.SOPInstanceUID])
    stored = kept(node_of_http, sent)
    assert films.body_of(stored) == films.body_of(films.file_bytes(sent))
    assert dcmread(BytesIO(stored)).file_meta.TransferSyntaxUID == sent.file_meta.TransferSyntaxUID


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no film",
        b"\0" * 2000,
        b"x" * 128 + b"DICM",
        b"x" * 128 + b"DICX" + b"\2\0\0\0",
        without(films.file_bytes(films.compressed(films.thumbnail(), JPEG2000Lossless)))[:500],
        b"\0\10\0\5" + b"big endian" * 20,
        films.file_bytes(films.thumbnail())[:150],
    ],
)
def test_what_cannot_be_completed_is_refused(node_of_http: Node, content: bytes) -> None:
    answer = node_of_http.submit(content)

    assert answer.status_code == 409
    assert (reasons(answer, "0008119A") or reasons(answer, "00081198")) == [0xC000]


def body(
    *parts: bytes,
    end: bytes = b"\r\n",
    headers: bytes = b"Content-Type: application/dicom\r\n",
    before: bytes = b"",
    padding: bytes = b"",
) -> bytes:
    """A multipart body whose lines end so; before: the first boundary; padding: behind each."""
    lines = b"".join(b"--end-of-film" + padding + end + headers + end + part + end for part in parts)
    return before + lines + b"--end-of-film--"


BODIES: dict[str, dict[str, bytes]] = {
    "line feeds": {"end": b"\n", "headers": b"Content-Type: application/dicom\n"},
    "line feeds in the headers": {"headers": b"Content-Type: application/dicom\nContent-Length: 7\n"},
    "no headers": {"headers": b""},
    "no headers and line feeds": {"headers": b"", "end": b"\n"},
    "an empty line first": {"before": b"\r\n"},
    "a text first": {"before": b"This is a message in MIME format.\r\n\r\n"},
    "a text and line feeds": {"before": b"This is a message in MIME format.\n", "end": b"\n"},
    "a text with something like the boundary": {"before": b"--end-of-film-not-yet\r\n"},
    "blanks behind the boundary": {"padding": b" \t "},
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("after", [b"", b"\r\n", b"\nand more text\r\n--end-of-film\r\n"], ids=["cut", "line", "text"])
def test_a_multipart_body_is_read_as_others_write_it(node_of_http: Node, name: str, after: bytes) -> None:
    sent = [film(f"{name} {after!r} {number}") for number in range(2)]

    answer = node_of_http.submit(body(*map(films.file_bytes, sent), **BODIES[name]) + after, kind=RELATED)

    assert (answer.status_code, uids(answer, "00081199")) == (200, [each.SOPInstanceUID for each in sent])
    assert [films.body_of(kept(node_of_http, each)) for each in sent] == [
        films.body_of(films.file_bytes(each)) for each in sent
    ]


@pytest.fixture
def archive() -> Iterator[WebArchive]:
    with web_archive() as archive:
        yield archive


@pytest.mark.parametrize("status", [200, 201, 202, 203, 204])
def test_every_success_means_stored(archive: WebArchive, status: int) -> None:
    archive.status, archive.body = status, b""

    stow(web(archive.port))

    assert len(archive.requests) == 1


def reason(value: object, *, sequence: str = "00081198") -> bytes:
    failed = {"00081197": {"vr": "US", "Value": [value]}}
    return json.dumps({sequence: {"vr": "SQ", "Value": [failed]}}).encode()


XML = """<?xml version="1.0"?><NativeDicomModel xmlns="http://dicom.nema.org/PS3.19/models/NativeDICOM">
<DicomAttribute tag="00081198" vr="SQ" keyword="FailedSOPSequence"><Item number="1"><DicomAttribute tag="00081197"
vr="US"><Value number="1">{}</Value></DicomAttribute></Item></DicomAttribute></NativeDicomModel>"""


@pytest.mark.parametrize(
    ("status", "said", "error", "words"),
    [
        (200, reason("43264"), GiveUp, "A900"),
        (201, reason("A900"), GiveUp, "A900"),
        (202, reason("0xA900"), GiveUp, "A900"),
        (409, reason(" a900 "), GiveUp, "A900"),
        (409, reason(43264.0), GiveUp, "A900"),
        (409, reason("A700"), RetryLater, "A700"),
        (202, reason("272"), RetryLater, "0110"),
        (202, reason("0110"), RetryLater, "0110"),
        (409, reason("no space"), RetryLater, "0110"),
        (409, reason(None), RetryLater, "0110"),
        (409, reason(-1), RetryLater, "0110"),
        (409, reason(True), RetryLater, "0110"),
        (202, reason(43264, sequence="0008119A"), GiveUp, "A900"),
        (409, XML.format(43264).encode(), GiveUp, "A900"),
        (202, XML.format(42752).encode(), RetryLater, "A700"),
        (406, b"", GiveUp, "406"),
        (414, b"", GiveUp, "414"),
        (406, b"Transfer Syntax not supported", GiveUp, "406 (transfer syntax not supported)"),
        (400, b"<html><h1>Bad Request</h1><p>Invalid <b>SOP Class</b></p></html>", GiveUp, "invalid sop class"),
        (409, b'{"Message": "The instance already exists"}', GiveUp, "the instance already exists"),
        (500, b"No space left on device", RetryLater, "500 (no space left on device)"),
        (507, b"", RetryLater, "507"),
    ],
)
def test_the_reason_of_an_archive_is_read_and_told(
    archive: WebArchive, status: int, said: bytes, error: type[Exception], words: str
) -> None:
    archive.status, archive.body = status, said

    with pytest.raises(error) as caught:
        stow(web(archive.port))

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["Meier^Hans 19700101 PID-7788 already exists", "Patient MEIER, Hans: duplicate of PID-7788"]
)
def test_what_an_archive_quotes_of_a_patient_is_not_told(archive: WebArchive, text: str) -> None:
    archive.status, archive.body = 400, text.encode() * 500

    with pytest.raises(GiveUp) as caught:
        stow(web(archive.port))

    told = str(caught.value).lower()
    assert not any(secret in told for secret in ("meier", "hans", "1970", "7788"))
    assert len(told) < 250
