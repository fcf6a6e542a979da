"""Odd association requests, one row each: taken as dcmtk's storescp takes them, or refused, told and counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pynetdicom import evt
from structlog.testing import capture_logs

from node.deliver import dicom
from node.deliver.kinds import Calling
from node.net.association_pdus import readable, readable_acceptance
from node.receive.dimse import Reception
from node.receive.listener import Listener
from node.settings.destinations import DicomDestination
from tests.support import pdus
from tests.support.listening import Node, connect, listening
from tests.support.pdus import USER, VERIFICATION, context, item, request
from tests.support.peers import wait_until

STORAGE, DICOM = b"1.2.840.10008.5.1.4.1.1.1", b"1.2.840.10008.3.1.1.1"
LONGEST, CLASS = USER[:8], USER[8:19]
HEAD = 42
"""Bytes of a PDU as far as the titles, which mean nothing in an acceptance."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with listening(tmp_path_factory.mktemp("faults"), request_seconds=5.0) as running:
        yield running


def saying(more: bytes) -> bytes:
    """A request whose user information says more than it has to."""
    return request(user=item(0x50, USER + more))


def role(uid: bytes = VERIFICATION, *, scu: int = 1, scp: int = 1, length: int | None = None) -> bytes:
    """A role selection (PS3.7 D.3.3.4); length: that of the UID, if it is to be untrue."""
    said = len(uid) if length is None else length
    return item(0x54, said.to_bytes(2, "big") + uid + bytes([scu, scp]))


def identity(kind: int, *, answer: int = 0, primary: bytes = b"user") -> bytes:
    """A user identity (PS3.7 D.3.3.7) without a secondary field."""
    return item(0x58, bytes([kind, answer]) + len(primary).to_bytes(2, "big") + primary + bytes(2))


def syntaxes(count: int) -> list[bytes]:
    return [*(b"1.2.3.%d" % number for number in range(count - 1)), pdus.IMPLICIT]


TAKEN = {
    "a good request": request(),
    "rubbish after the zero of the calling title": request(calling=b"TESTER\0\xff\xfe\x01junk"),
    "letters after the zero of the called title": request(called=b"CHEX\0MODALITY"),
    "blanks before a title": request(calling=b"  TESTER", called=b" CHEX"),
    "protocol version with more bits": request(version=0x0003),
    "no application context": request(name=b""),
    "an unknown item": request(more=item(0x99, b"abc")),
    "an unknown item first": request(name=item(0x60, b"")),
    "an unknown user item": saying(item(0x77, b"hello")),
    "a user item of 60,000 bytes": saying(item(0x77, b"x" * 60_000)),
    "a version name of 300": request(user=item(0x50, LONGEST + CLASS + item(0x55, b"A" * 300))),
    "a version name without letters": request(user=item(0x50, LONGEST + CLASS + item(0x55, b"\0\xc4\xff"))),
    "an implementation class that is no UID": request(user=item(0x50, LONGEST + item(0x52, b"hello\xff"))),
    "no implementation class": request(user=item(0x50, LONGEST)),
    "no maximum length": request(user=item(0x50, CLASS)),
    "a maximum length of 2 bytes": request(user=item(0x50, item(0x51, b"\x40\0") + CLASS)),
    "a maximum length of 0": request(user=item(0x50, item(0x51, bytes(4)) + CLASS)),
    "no user information": request(user=b""),
    "user information twice": request(more=item(0x50, USER)),
    "user identity of type 0 that asks for an answer": saying(identity(0, answer=1)),
    "a user identity of 1 byte": saying(item(0x58, b"\1")),
    "user identity twice": saying(identity(1) + identity(2)),
    "a role that is neither yes nor no": saying(role(scu=2, scp=255)),
    "a role of a UID that is not there": saying(role(length=500)),
    "a role twice": saying(role() + role(scp=0)),
    "a role of what is no UID": saying(role(b"hello\xff")),
    "an asynchronous window of 1 byte": saying(item(0x53, b"\0")),
    "an extended negotiation of 1 byte": saying(item(0x56, b"\0")),
    "an unknown item in a context": request(contexts=item(0x20, context()[4:] + item(0x41, b"xx"))),
    "the same context twice": request(contexts=context() + context()),
    "a context without abstract syntax beside a good one": request(contexts=context(3, None) + context()),
    "a context of an abstract syntax of 71": request(contexts=context(3, b"1." * 35 + b"1") + context()),
    "a context of what is no UID": request(contexts=context(3, b"\xff\xfe") + context()),
    "a context without transfer syntax beside a good one": request(contexts=context(3, STORAGE, ()) + context()),
    "an empty transfer syntax beside a good one": request(contexts=context(syntaxes=(b"", pdus.IMPLICIT))),
    "a transfer syntax that is no text": request(contexts=context(syntaxes=(b"\xff", pdus.IMPLICIT))),
    "a zero after the UIDs": request(contexts=context(1, VERIFICATION + b"\0", (pdus.IMPLICIT + b"\0",))),
    "128 contexts": request(contexts=b"".join(context(2 * number + 1) for number in range(128))),
    "64 syntaxes in each of 128 contexts": request(
        contexts=context() + b"".join(context(2 * number + 1, STORAGE, syntaxes(64)) for number in range(1, 128))
    ),
    "300 items of user information": saying(item(0x77, b"hello") * 300),
}
TOO_MUCH = {
    "14,000 contexts": request(contexts=item(0x20, b"\1\0\0\0") * 14_000),
    "129 contexts": request(contexts=context() * 129),
    "600 syntaxes in a context": request(contexts=context(1, STORAGE, syntaxes(600))),
    "600 items that mean nothing": request(more=item(0x99, b"") * 600),
    "600 items of user information": request(user=item(0x50, item(0x77, b"") * 600)),
    "600 items in two of user information": request(user=item(0x50, item(0x77, b"") * 300) * 2),
}
# PS3.8 9.3.4 and 9.3.8: rejections by their numbers, and an abort
CALLING, CALLED, VERSION, NO_REASON = (
    bytes([pdus.ASSOCIATE_REJECT, 0, 0, 0, 0, 4, 0, *numbers])
    for numbers in ((1, 1, 3), (1, 1, 7), (1, 2, 2), (1, 2, 1))
)
ABORTED = bytes.fromhex("07 00 00000004 00 00 02 01")
REFUSED = {
    "no calling title": (request(calling=b""), CALLING, "caller", ""),
    "a calling title of zeros": (request(calling=bytes(16)), CALLING, "caller", ""),
    "a control character in the calling title": (request(calling=b"TES\x07TER"), CALLING, "caller", "TES?TER"),
    "a letter that no title has": (request(calling=b"T\xc9STER"), CALLING, "caller", "T\xc9STER"),
    "no called title": (request(called=b""), CALLED, "called_ae", "TESTER"),
    "a control character in the called title": (request(called=b"CH\x1bEX"), CALLED, "called_ae", "TESTER"),
    "protocol version 2": (request(version=2), VERSION, "protocol", "TESTER"),
    "an even context id": (request(contexts=context(2)), NO_REASON, "protocol", "TESTER"),
    "two contexts of one id": (request(contexts=context(1) + context(1, STORAGE)), NO_REASON, "protocol", "TESTER"),
    "no context": (request(contexts=b""), NO_REASON, "protocol", "TESTER"),
    "an empty context": (request(contexts=item(0x20, b"") + context()), ABORTED, "protocol", "TESTER"),
    "zeros after the last item": (request(more=bytes(6)), ABORTED, "protocol", "TESTER"),
    "an item that is longer than the request": (request(more=b"\x99\0\xff\xff"), ABORTED, "protocol", "TESTER"),
    "a user item that is longer than all of them": (saying(b"\x55\0\xff\xffAB"), ABORTED, "protocol", "TESTER"),
    "titles alone": (b"\1\0\0\0\0\x44" + request()[6:74], NO_REASON, "protocol", "TESTER"),
    "a request of 16 bytes": (b"\1\0\0\0\0\x10" + bytes(16), ABORTED, "protocol", ""),
    "an empty request": (b"\1\0\0\0\0\0", ABORTED, "protocol", ""),
    "a request of 4 GB": (b"\1\0\xff\xff\xff\xff" + bytes(68), ABORTED, "protocol", ""),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", ABORTED, "protocol", ""),
    "data before a request": (pdus.data(b"film"), ABORTED, "protocol", ""),
    **{name: (sent, ABORTED, "protocol", "TESTER") for name, sent in TOO_MUCH.items()},
}


def answer_to(sent: bytes, node: Node) -> bytes:
    with connect(node.listener.port) as peer:
        peer.sendall(sent)
        return pdus.read_pdu(peer)


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN)
def test_an_odd_request_is_taken_as_dcmtk_takes_it(node: Node, sent: bytes) -> None:
    accepted = node.count("cxr_associations_accepted_total")

    with connect(node.listener.port) as peer:
        peer.sendall(sent)
        answer = pdus.read_pdu(peer)
        peer.sendall(pdus.echo())
        status = pdus.status_of(pdus.read_pdu(peer))

    assert answer[:1] == bytes([pdus.ASSOCIATE_ACCEPT])
    assert item(0x51, (128 * 1024).to_bytes(4, "big")) in answer, "the longest PDU that the node wants"
    assert status == 0x0000
    assert node.count("cxr_associations_accepted_total") == accepted + 1


def test_what_is_passed_on_of_a_request_is_all_that_counts_in_the_form_of_the_standard() -> None:
    odd_context = context(1, VERIFICATION + b" ", (pdus.IMPLICIT + b"\0", b"1.2.3"))
    odd = request(
        calling=b" TESTER\0old",
        version=3,
        name=item(0x99, b""),
        contexts=odd_context + odd_context + context(3, None, ()),
        user=item(0x50, CLASS + role(b"hello\xff") + role() + item(0x77, b"x")),
        more=item(0x50, role(scu=2)),
    )

    assert readable(odd, syntaxes={pdus.IMPLICIT}) == request(
        contexts=context() + context(3, DICOM, (DICOM,)), user=item(0x50, LONGEST + role())
    )


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_is_answered_told_and_counted(tmp_path: Path, name: str) -> None:
    sent, expected, reason, title = REFUSED[name]

    with capture_logs() as said, listening(tmp_path, request_seconds=5.0) as node:
        answer = answer_to(sent, node)
        node.wait_for_refusal(reason)

    assert answer == expected
    (line,) = [line for line in said if line["event"] == "association.refused"]
    assert (line["reason"], line["host"], line.get("calling_aet", "")) == (reason, "127.0.0.1", title)
    assert ("more than" in str(line["message"])) == (name in TOO_MUCH)


def test_a_context_that_lacks_a_syntax_is_refused_alone(node: Node) -> None:
    for proposed, result in (
        (context(1, None), 3),
        (context(1, b""), 3),
        (context(1, b"\xff"), 3),
        (context(1, VERIFICATION, ()), 4),
        (context(1, STORAGE, ()), 4),
        (context(1, VERIFICATION, (b"",)), 4),
    ):
        answer = answer_to(request(contexts=proposed), node)

        assert answer[:1] == bytes([pdus.ASSOCIATE_ACCEPT])
        start = answer.index(b"\x21\0")  # PS3.8 9.3.3.2: the context's id, then what became of it
        assert (answer[start + 4], answer[start + 6]) == (1, result)


@pytest.mark.parametrize(
    ("fault", "refused", "aborted"),
    [("before the association", 1, 0), ("before its answer", 1, 0), ("after its answer", 0, 1)],
)
def test_a_fault_of_the_node_leaves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, refused: int, aborted: int
) -> None:
    def requested(_listener: Listener, event: evt.Event) -> None:
        if fault == "before its answer":
            event.assoc.is_aborted = True  # pynetdicom does not negotiate then
        else:
            event.assoc.dul.kill_dul()

    monkeypatch.setattr(Listener, "_on_requested", requested)
    if fault == "before the association":
        monkeypatch.setattr(Reception, "__init__", Mock(side_effect=RuntimeError("can't start new thread")))
    with listening(tmp_path, request_seconds=5.0) as node:
        answer_to(request(), node)

        def told() -> tuple[float, float]:
            refusals = node.count("cxr_associations_refused_total", reason="failed")
            return refusals, node.count("cxr_associations_aborted_total", reason="protocol")

        wait_until(lambda: any(told()), what="the end is told")

    assert told() == (refused, aborted)


TINY = request(user=item(0x50, item(0x51, (1).to_bytes(4, "big")) + CLASS))


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        pytest.param(request(), b"\x63\0\0\0\0\4abcd", id="an unknown PDU"),
        pytest.param(request(), request(), id="a second request"),
        pytest.param(request(), b"\6\0\0\0\0\4" + bytes(4), id="an answer to no release"),
        pytest.param(request(), b"\2\0\0\0\0\0", id="an empty acceptance"),
        pytest.param(TINY, pdus.echo(), id="PDUs that no answer fits into"),
    ],
)
def test_a_pdu_that_is_out_of_place_ends_it_with_a_trace(tmp_path: Path, asked: bytes, sent: bytes) -> None:
    with capture_logs() as said, listening(tmp_path) as node, connect(node.listener.port) as peer:
        peer.sendall(asked)
        pdus.read_pdu(peer)
        peer.sendall(sent)
        answer = pdus.read_pdu(peer)
        node.wait_for_abort("protocol")

    assert answer[:1] == bytes([pdus.ABORT]) or (asked == TINY and answer == b"")
    (line,) = [line for line in said if line["event"] == "association.aborted"]
    assert (line["host"], line["calling_aet"]) == ("127.0.0.1", "TESTER")


def acceptance(user: bytes, *, result: bytes = b"") -> bytes:
    """An A-ASSOCIATE-AC (PS3.8 9.3.3) with this user information; result: other items of its context."""
    accepted = item(0x21, bytes([1, 0, 0, 0]) + (result or item(0x40, pdus.IMPLICIT)))
    content = b"\0\1\0\0" + b" " * 32 + bytes(32) + item(0x10, DICOM) + accepted + user
    return b"\2\0" + len(content).to_bytes(4, "big") + content


ACCEPTANCES = {
    "a good one": acceptance(item(0x50, USER)),
    "an implementation class of 80": acceptance(item(0x50, LONGEST + item(0x52, b"1." * 40))),
    "an unknown user item": acceptance(item(0x50, USER + item(0x77, b"hello"))),
    "no maximum length": acceptance(item(0x50, CLASS)),
    "no user information": acceptance(b""),
    "a role of 2 bytes": acceptance(item(0x50, USER + item(0x54, b"\0\5"))),
    "a zero after the transfer syntax": acceptance(item(0x50, USER), result=item(0x40, pdus.IMPLICIT + b"\0")),
    "an unknown item in its context": acceptance(item(0x50, USER), result=item(0x40, pdus.IMPLICIT) + item(0x41, b"x")),
}


def test_what_is_passed_on_of_an_acceptance_is_all_that_counts_in_the_form_of_the_standard() -> None:
    odd = item(0x40, b"") + item(0x40, pdus.IMPLICIT + b"\0") + item(0x40, b"1.2.3") + item(0x41, b"x")

    read = readable_acceptance(acceptance(item(0x50, CLASS), result=odd))

    assert read[HEAD:] == acceptance(item(0x50, LONGEST))[HEAD:]


@pytest.mark.parametrize("answer", ACCEPTANCES.values(), ids=ACCEPTANCES)
def test_an_archive_is_reached_however_it_accepts(answer: bytes) -> None:
    received: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with listening.accept()[0] as peer:
            peer.settimeout(20)
            pdus.read_pdu(peer)
            peer.sendall(answer)
            received.append(pdus.read_pdu(peer))
            peer.sendall(pdus.echo_answer())
            pdus.read_pdu(peer)
            peer.sendall(b"\6\0\0\0\0\4" + bytes(4))

    with socket.create_server(("127.0.0.1", 0)) as archive:
        serving = threading.Thread(target=serve, args=(archive,))
        serving.start()
        port = archive.getsockname()[1]
        dicom.echo(
            DicomDestination(name="pacs", ae_title="ARCHIVE", host="127.0.0.1", port=port), Calling(ae_title="CHEX")
        )
        serving.join(20)

    assert [pdu[0] for pdu in received] == [pdus.DATA]
