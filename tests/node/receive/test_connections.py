"""Connections that misbehave or are of strangers: each is ended in time, costs little, and keeps nobody else out."""

from __future__ import annotations

import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from pynetdicom.pdu import A_ASSOCIATE_AC
from structlog.testing import capture_logs

from node.config import Caller, ListenerSettings
from node.receive.listener import PendingConnections
from tests.support import films, pdus, peers
from tests.support.listening import Node, connect, is_clean, listening
from tests.support.pdus import Recording, context, item, request
from tests.support.peers import ELSEWHERE, LOOPBACK, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with listening(tmp_path, settings=ListenerSettings(max_object_mib=1), request_seconds=60.0) as running:
        yield running


def until_the_end(connection: socket.socket) -> list[bytes]:
    return list(iter(lambda: pdus.read_pdu(connection), b""))


@pytest.mark.parametrize("said", [b"", b"\1\0\0\0\1\0half of a request"], ids=["nothing", "half a request"])
def test_who_asks_for_no_association_in_time_is_refused(tmp_path: Path, said: bytes) -> None:
    with listening(tmp_path, request_seconds=0.2) as node, connect(node.listener.port) as silent:
        silent.sendall(said)

        node.wait_for_refusal("silent")
        assert until_the_end(silent) == []


def test_who_is_refused_gets_no_more_time_than_a_pending_request(tmp_path: Path, recording: Recording) -> None:
    settings = ListenerSettings(idle_seconds=600.0, callers=(Caller(ae_title="OTHER", hosts=(LOOPBACK,)),))
    with listening(tmp_path, settings=settings, request_seconds=0.5) as node, connect(node.listener.port) as stranger:
        stranger.sendall(recording.request + recording.store[0][:20])

        until_the_end(stranger)  # raises TimeoutError when it does not come
        node.wait_for_refusal("caller")
        assert node.count("cxr_associations_aborted_total", reason="stalled") == 0


def test_who_only_looks_whether_somebody_listens_is_not_reported(node: Node, recording: Recording) -> None:
    connect(node.listener.port).close()

    with pdus.associate(recording, port=node.listener.port) as good:
        good.sendall(recording.release)
        until_the_end(good)
    assert [node.count("cxr_associations_refused_total", reason=why) for why in ("silent", "protocol")] == [0, 0]


def test_at_the_limit_the_longest_pending_connection_is_closed() -> None:
    pending, ended = PendingConnections(), list[str]()

    def enter(host: str, name: str) -> Callable[[], None]:
        return pending.enter(host, lambda: ended.append(name))

    leave = [enter("known-1", str(number)) for number in range(1000)]
    bound = 1000 - len(ended)
    assert bound < 100
    assert ended == [str(number) for number in range(1000 - bound)]
    for _ in range(bound):
        enter("known-2", "of another host")
    assert len(ended) == 1000 - bound

    leave[-1]()
    leave[-1]()
    enter("known-1", "new")
    assert len(ended) == 1000 - bound
    enter("known-1", "newer")
    assert ended[-1] == str(1000 - bound)


def test_films_pass_beside_silent_connections_of_the_same_host(tmp_path: Path, recording: Recording) -> None:
    with listening(tmp_path, request_seconds=30.0) as node, ExitStack() as silent:
        for number in range(200):
            half = silent.enter_context(connect(node.listener.port))
            half.sendall(recording.request[: number % 60])
        began = time.monotonic()

        assert peers.send(films.thumbnail(), port=node.listener.port) == 0x0000

        assert time.monotonic() - began < 10
        node.wait_for_refusal("silent", count=100)
        assert node.count("cxr_associations_refused_total", reason="limit") == 0


@pytest.mark.parametrize("reason", ["stalled", "idle"])
def test_who_stops_in_a_pdu_or_says_nothing_more_is_cut_off(tmp_path: Path, recording: Recording, reason: str) -> None:
    settings = ListenerSettings(idle_seconds=3.0)
    with listening(tmp_path, settings=settings) as node, pdus.associate(recording, port=node.listener.port) as slow:
        if reason == "stalled":
            slow.sendall(recording.store[0] + recording.store[1][:1000])

        node.wait_for_abort(reason)
        said = until_the_end(slow)

    assert reason == "stalled" or said[0][:1] == b"\7"


@pytest.mark.parametrize(
    ("is_begun", "part"),
    [
        pytest.param(False, b"\4\0\xff\xff\xff\xff" + bytes(1000), id="a declared length of 4 GB"),
        pytest.param(True, pdus.data(bytes(100_000), control=0), id="a dataset"),
        pytest.param(False, pdus.data(bytes(100_000), control=1), id="a command"),
    ],
)
def test_what_has_no_end_takes_no_memory(node: Node, recording: Recording, is_begun: bool, part: bytes) -> None:
    with pdus.associate(recording, port=node.listener.port) as endless:
        tracemalloc.start()
        endless.sendall(recording.store[0] if is_begun else b"")
        with pytest.raises(OSError):  # a connection that is gone
            for _ in range(10_000):
                endless.sendall(part)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    node.wait_for_abort("length")
    assert peak < 10_000_000


def test_a_sender_that_does_not_wait_for_answers_gets_them_all(node: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=node.listener.port) as hasty:
        hasty.sendall(b"".join(recording.store) * 5)
        statuses = [pdus.status_of(pdus.read_pdu(hasty)) for _ in range(5)]

    assert statuses == [0x0000] * 5
    assert [node.count("cxr_instances_total", outcome=outcome) for outcome in ("kept", "repeated")] == [1, 4]


def test_aborted_and_half_open_associations_leave_nothing_behind(node: Node, recording: Recording) -> None:
    def resources() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = resources()
    for number in range(200):
        match number % 4:
            case 0:  # nothing said
                connect(node.listener.port).close()
            case 1:  # half a request
                with connect(node.listener.port) as half:
                    half.sendall(recording.request[:30])
            case 2:  # gone within an object
                with pdus.associate(recording, port=node.listener.port) as cut:
                    cut.sendall(recording.store[0] + recording.store[1][:500])
            case 3:  # aborted
                with pdus.associate(recording, port=node.listener.port) as aborted:
                    aborted.sendall(b"\7\0\0\0\0\4\0\0\0\0")

    wait_until(lambda: resources() <= before, what="everything is given back", limit_seconds=60.0)
    assert is_clean(node)
    assert peers.send(films.thumbnail(), port=node.listener.port) == 0x0000


def test_a_listener_that_closes_waits_for_nobody(tmp_path: Path, recording: Recording) -> None:
    with listening(tmp_path) as node:
        silent, open_one = connect(node.listener.port), pdus.associate(recording, port=node.listener.port)
        stalled = pdus.associate(recording, port=node.listener.port)
        stalled.sendall(recording.store[0] + recording.store[1][:1000])
        before = threading.active_count()

        began = time.monotonic()
        node.listener.close()

        assert time.monotonic() - began < 30  # far below the 60 s for which a stalled PDU is waited for
        assert until_the_end(open_one)[0][:1] == b"\7"
        assert until_the_end(silent) == []
        assert threading.active_count() < before
        assert is_clean(node)
        for connection in (silent, open_one, stalled):
            connection.close()


def test_a_caller_that_waits_for_its_answer_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(tmp_path, settings=ListenerSettings(idle_seconds=1.0)) as node:
        intake, keep = node.listener.intake, node.listener.intake.keep
        monkeypatch.setattr(intake, "keep", lambda *given, **more: (keep(*given, **more), threading.Event().wait(1.5)))
        sent = [films.as_another(films.thumbnail(), f"slow {number}") for number in range(3)]

        assert peers.send_all(sent, port=node.listener.port) == [0, 0, 0]
    assert node.count("cxr_associations_aborted_total", reason="idle") == 0


UNKNOWN_CALLER = bytes.fromhex("03 00 00000004 00 01 01 03")
USUAL, LONG = (item(0x50, pdus.USER + more) for more in (b"", item(0x77, b"x" * 60_000)))


@pytest.mark.parametrize(
    ("address", "calling", "called", "user"),
    [
        pytest.param(ELSEWHERE, b"TESTER", b"CHEX", USUAL, id="another address"),
        pytest.param(ELSEWHERE, b"OTHER", b"OTHER", USUAL, id="all is unknown"),
        pytest.param(ELSEWHERE, b"OTHER", b"CHEX", LONG, id="another address that says much"),
        pytest.param(LOOPBACK, b"OTHER", b"CHEX", USUAL, id="another title"),
        pytest.param(LOOPBACK, b"OTHER", b"CHEX", LONG, id="another title that says much"),
    ],
)
def test_a_stranger_is_refused_and_logged(node: Node, address: str, calling: bytes, called: bytes, user: bytes) -> None:
    with capture_logs() as said, pdus.calling_from(address, node.listener.port) as caller:
        caller.settimeout(20)
        caller.sendall(request(calling=calling, called=called, user=user))

        assert pdus.read_pdu(caller) == UNKNOWN_CALLER

    (line,) = [line for line in said if line["event"] == "association.refused"]
    assert (line["reason"], line["host"], line["calling_aet"]) == ("caller", address, calling.decode())


IMAGES, COMMITMENT = b"1.2.840.10008.5.1.4.1.1.1.1", b"1.2.840.10008.1.20.1"
HEAD_BYTES = 74


@pytest.mark.parametrize(
    ("calling", "address", "accepted"), [(b"TESTER", LOOPBACK, {1, 3}), (b"ARCHIVE", ELSEWHERE, {1, 5})]
)
def test_destinations_report_but_do_not_send(tmp_path: Path, calling: bytes, address: str, accepted: set[int]) -> None:
    sent = request(calling=calling, contexts=context() + context(3, IMAGES) + context(5, COMMITMENT))
    archive = {"calling_aet": "ARCHIVE", "host": ELSEWHERE, "is_caller": False}
    with (
        listening(tmp_path, commitments=Mock(may_report=lambda **who: who == archive)) as node,
        pdus.calling_from(address, node.listener.port) as caller,
    ):
        caller.settimeout(20)
        caller.sendall(sent[:HEAD_BYTES])
        time.sleep(0.2)
        caller.sendall(sent[HEAD_BYTES:])
        answer = A_ASSOCIATE_AC()
        answer.decode(pdus.read_pdu(caller))
        caller.sendall(pdus.echo())
        assert pdus.status_of(pdus.read_pdu(caller)) == 0x0000

    assert {item.context_id for item in answer.presentation_context if item.result == 0} == accepted


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


def divided(content: bytes, size: int, together: int) -> bytes:
    """A dataset as PDUs of so many fragments of so many bytes."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    pieces = [pdus.data(part, control=2 if number == len(parts) - 1 else 0)[6:] for number, part in enumerate(parts)]
    groups = [b"".join(pieces[at : at + together]) for at in range(0, len(pieces), together)]
    return b"".join(bytes([pdus.DATA, 0]) + len(group).to_bytes(4, "big") + group for group in groups)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda film: divided(film, 1, 10_000), id="bytes in few PDUs"),
        pytest.param(lambda film: divided(film, 1, 1), marks=pytest.mark.drill(part="soak"), id="a PDU for each byte"),
        pytest.param(lambda film: divided(film, 9, 50), id="9 bytes each"),
        pytest.param(lambda _film: bytes([pdus.DATA, 0, 0, 0, 0, 0]) * 20_000, id="PDUs of nothing"),
    ],
)
def test_a_film_in_crumbs_ends_in_an_abort(node: Node, recording: Recording, write: Callable[[bytes], bytes]) -> None:
    film = b"".join(pdu[12:] for pdu in recording.store[1:])
    with pdus.associate(recording, port=node.listener.port) as sender, suppress(OSError):
        sender.sendall(recording.store[0] + write(film))
        assert until_the_end(sender)[-1][:1] == bytes([pdus.ABORT])
    node.wait_for_abort("pieces")


def test_a_film_of_the_longest_size_or_in_small_pieces_is_kept(node: Node, recording: Recording) -> None:
    longest = films.thumbnail({"PixelData": bytes(1024 * 1024 - 10_000)})
    assert peers.send(longest, port=node.listener.port) == 0x0000

    film = b"".join(pdu[12:] for pdu in recording.store[1:])
    with pdus.associate(recording, port=node.listener.port) as sender:
        for size in (300, 100):  # the latter is no more than the pieces that every message may have
            sender.sendall(recording.store[0] + divided(film, size, 3))
            assert pdus.status_of(pdus.read_pdu(sender)) == 0x0000
