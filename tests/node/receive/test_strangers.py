"""What is read of unknown addresses, and asked for by anybody, is bounded: strangers cost known callers nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from node.deliver.commitment import Commitments
from tests.support import films, pdus, peers, strangers
from tests.support.listening import Node, connect, is_clean, listening
from tests.support.pdus import Recording, context, item, request
from tests.support.peers import LOOPBACK, wait_until
from tests.support.strangers import ELSEWHERE, Plan

STORAGE = b"1.2.840.10008.5.1.4.1.1.1.1"
UNKNOWN_CALLER = bytes.fromhex("03 00 00000004 00 01 01 03")
HEAD_BYTES = 74
LONG = item(0x50, pdus.USER + item(0x77, b"x" * 60_000))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with listening(tmp_path, request_seconds=60.0) as running:
        yield running


def syntaxes(count: int) -> list[bytes]:
    return [*(b"1.2.3.%d" % number for number in range(count - 1)), pdus.IMPLICIT]


@pytest.mark.parametrize(
    ("address", "calling", "called"),
    [(ELSEWHERE, b"TESTER", b"CHEX"), (ELSEWHERE, b"OTHER", b"OTHER"), (LOOPBACK, b"OTHER", b"CHEX")],
    ids=["another address", "all is unknown", "another title"],
)
def test_a_stranger_is_refused_and_its_titles_are_logged(
    node: Node, address: str, calling: bytes, called: bytes
) -> None:
    with capture_logs() as said, pdus.calling_from(address, node.listener.port) as caller:
        caller.settimeout(20)
        caller.sendall(request(calling=calling, called=called))

        assert pdus.read_pdu(caller) == UNKNOWN_CALLER

    (line,) = [line for line in said if line["event"] == "association.refused"]
    assert (line["reason"], line["host"], line["calling_aet"]) == ("caller", address, calling.decode())


class Reports:
    """Lets an archive report from one address."""

    def may_report(self, *, calling_aet: str, host: str, is_caller: bool) -> bool:
        return (calling_aet, host, is_caller) == ("ARCHIVE", ELSEWHERE, False)


def test_a_destination_that_is_no_caller_may_report(tmp_path: Path) -> None:
    with (
        listening(tmp_path, commitments=cast(Commitments, Reports())) as node,
        pdus.calling_from(ELSEWHERE, node.listener.port) as archive,
    ):
        archive.settimeout(20)
        sent = request(calling=b"ARCHIVE")
        archive.sendall(sent[:HEAD_BYTES])
        time.sleep(0.2)
        archive.sendall(sent[HEAD_BYTES:])
        assert pdus.read_pdu(archive)[:1] == bytes([pdus.ASSOCIATE_ACCEPT])
        archive.sendall(pdus.echo())
        assert pdus.status_of(pdus.read_pdu(archive)) == 0x0000


@pytest.mark.parametrize("address", [ELSEWHERE, LOOPBACK])
def test_a_refused_caller_that_sent_much_gets_its_answer(node: Node, address: str) -> None:
    with pdus.calling_from(address, node.listener.port) as caller:
        caller.sendall(request(calling=b"OTHER", user=LONG))

        assert pdus.read_pdu(caller) == UNKNOWN_CALLER


@pytest.mark.parametrize("said", [b"", b"\1", request(calling=b"OTHER")[:60]], ids=["nothing", "a byte", "half"])
def test_silent_strangers_hide_no_other_stranger(node: Node, said: bytes) -> None:
    with ExitStack() as silent:
        for _ in range(3 if said else 100):
            silent.enter_context(pdus.calling_from(ELSEWHERE, node.listener.port)).sendall(said)
        with capture_logs() as lines, pdus.calling_from("127.0.0.3", node.listener.port) as caller:
            caller.settimeout(20)
            caller.sendall(request(calling=b"NEWROOM"))
            assert pdus.read_pdu(caller) == UNKNOWN_CALLER

    assert [line["host"] for line in lines if line.get("calling_aet") == "NEWROOM"] == ["127.0.0.3"]


def test_most_of_many_strangers_are_closed_unread(node: Node) -> None:
    with ExitStack() as waiting:
        for _ in range(40):
            waiting.enter_context(pdus.calling_from(ELSEWHERE, node.listener.port))
        node.wait_for_refusal("caller", count=20)

        assert peers.send(films.thumbnail(), port=node.listener.port) == 0x0000


TOO_MUCH = {
    "300 contexts of one id": request(contexts=context() * 300),
    "300 contexts of all ids": request(contexts=b"".join(context(number % 256 | 1) for number in range(300))),
    "14,000 contexts": request(contexts=item(0x20, b"\1\0\0\0") * 14_000),
    "129 contexts": request(contexts=context() * 129),
    "600 syntaxes in a context": request(contexts=context(1, STORAGE, syntaxes(600))),
    "600 empty items in a context": request(contexts=item(0x20, b"\1\0\0\0" + item(0x41, b"") * 600)),
    "600 items that mean nothing": request(more=item(0x99, b"") * 600),
    "600 items of user information": request(user=item(0x50, item(0x77, b"") * 600)),
    "600 items in two of user information": request(user=item(0x50, item(0x77, b"") * 300) * 2),
}

MUCH = {
    "128 contexts": request(contexts=b"".join(context(2 * number + 1) for number in range(128))),
    "one context 128 times": request(contexts=context() * 128),
    "64 syntaxes in each of 128 contexts": request(
        contexts=b"".join(context(2 * number + 1, STORAGE, syntaxes(64)) for number in range(128))
    ),
    "300 items of user information": request(user=item(0x50, pdus.USER + item(0x77, b"hello") * 300)),
}


@pytest.mark.parametrize("sent", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_request_for_too_much_is_refused_at_once(node: Node, sent: bytes) -> None:
    with capture_logs() as said, connect(node.listener.port) as caller:
        caller.settimeout(20)
        caller.sendall(sent)
        answer = pdus.read_pdu(caller)
        node.wait_for_refusal("protocol")
        # It is counted first.
        wait_until(lambda: "association.refused" in [line["event"] for line in said], what="the log says so")

    assert answer[0] in (pdus.ASSOCIATE_REJECT, pdus.ABORT)
    (line,) = [line for line in said if line["event"] == "association.refused"]
    assert "more than" in str(line["message"])


@pytest.mark.parametrize("sent", MUCH.values(), ids=MUCH)
def test_a_request_for_all_that_the_standard_has_is_taken(node: Node, sent: bytes) -> None:
    with connect(node.listener.port) as caller:
        caller.settimeout(20)
        caller.sendall(sent)
        answer = pdus.read_pdu(caller)

    assert answer[:1] == bytes([pdus.ASSOCIATE_ACCEPT])
    assert pdus.IMPLICIT in answer


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    with listening(tmp_path_factory.mktemp("recording")) as node:
        return pdus.record(films.thumbnail(), port=node.listener.port)


def divided(content: bytes, size: int, together: int) -> bytes:
    """A dataset as PDUs of so many fragments of so many bytes."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    pieces = [pdus.data(part, control=2 if number == len(parts) - 1 else 0)[6:] for number, part in enumerate(parts)]
    groups = [b"".join(pieces[at : at + together]) for at in range(0, len(pieces), together)]
    return b"".join(bytes([pdus.DATA, 0]) + len(group).to_bytes(4, "big") + group for group in groups)


def empty(_content: bytes) -> bytes:
    return bytes([pdus.DATA, 0, 0, 0, 0, 0]) * 20_000


@pytest.mark.parametrize(
    "write",
    [
        lambda film: divided(film, 1, 10_000),
        pytest.param(lambda film: divided(film, 1, 1), marks=pytest.mark.drill(part="flood")),
        lambda film: divided(film, 9, 50),
        empty,
    ],
    ids=["bytes in few PDUs", "a PDU for each byte", "9 bytes each", "PDUs of nothing"],
)
def test_a_film_in_crumbs_ends_the_association(
    node: Node, recording: Recording, write: Callable[[bytes], bytes]
) -> None:
    film = b"".join(pdu[12:] for pdu in recording.store[1:])
    with pdus.associate(recording, port=node.listener.port) as sender, pytest.raises(OSError):
        sender.settimeout(20)
        sender.sendall(recording.store[0] + write(film))
        while pdus.read_pdu(sender)[:1] != bytes([pdus.ABORT]):
            pass
        raise ConnectionError

    wait_until(lambda: node.count("cxr_associations_aborted_total", reason="pieces") == 1, what="it is told")
    wait_until(lambda: is_clean(node), what="nothing is left of the object")


def test_a_film_in_small_pieces_is_kept(node: Node, recording: Recording) -> None:
    film = b"".join(pdu[12:] for pdu in recording.store[1:])
    with pdus.associate(recording, port=node.listener.port) as sender:
        for size in (300, 100):  # the latter is no more than the pieces that every message may have
            sender.sendall(recording.store[0] + divided(film, size, 3))
            assert pdus.status_of(pdus.read_pdu(sender)) == 0x0000


@pytest.mark.drill(part="flood")
def test_a_stranger_slows_no_known_sender(tmp_path: Path) -> None:
    figures = strangers.measure(Plan(bytes_per_second=1e6, syntaxes=14_000, seconds=1.0, rounds=3), tmp_path)

    assert figures["passed"], str(figures)
