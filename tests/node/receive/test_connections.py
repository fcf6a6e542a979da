"""Connections and associations that misbehave: each is ended in time, costs little, and keeps nobody else out."""

from __future__ import annotations

import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.config import Caller, ListenerSettings
from node.receive.server import PendingConnections
from tests.support import films, pdus, peers
from tests.support.listening import Node, connect, is_clean, listening
from tests.support.pdus import Recording
from tests.support.peers import LOOPBACK, wait_until

PATIENCE = 3.0
"""What the listener waits here for the next PDU; far longer than a good peer takes between two."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    with listening(tmp_path_factory.mktemp("recording")) as node:
        return pdus.record(films.thumbnail(), port=node.listener.port)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with listening(tmp_path, settings=ListenerSettings(max_object_mib=1)) as running:
        yield running


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Node]:
    with listening(tmp_path, settings=ListenerSettings(idle_seconds=PATIENCE)) as running:
        yield running


def wait_for_abort(node: Node, reason: str) -> None:
    wait_until(
        lambda: node.count("cxr_associations_aborted_total", reason=reason) >= 1,
        what=f"an association is aborted: {reason}",
        limit_seconds=60.0,
    )


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
    assert node.count("cxr_associations_refused_total", reason="silent") == 0
    assert node.count("cxr_associations_refused_total", reason="protocol") == 0


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", pdus.data(b"film"), b"\1\0\xff\xff\xff\xff" + bytes(68)],
    ids=["HTTP", "data before a request", "a request of 4 GB"],
)
def test_a_first_pdu_other_than_a_request_is_aborted(node: Node, said: bytes) -> None:
    with connect(node.listener.port) as odd:
        odd.sendall(said)

        assert pdus.read_pdu(odd)[:1] == b"\7"
    node.wait_for_refusal("protocol")


@pytest.mark.parametrize(
    "title", [b" " * 16, b"\xffTESTER         ", b"TEST\\ER         "], ids=["none", "no text", "two"]
)
def test_what_is_no_title_is_rejected_as_an_unknown_caller(node: Node, recording: Recording, title: bytes) -> None:
    with connect(node.listener.port) as odd:
        odd.sendall(titled(recording.request, title))

        assert pdus.read_pdu(odd) == bytes.fromhex("03 00 00000004 00 01 01 03")
    node.wait_for_refusal("caller")


def test_a_title_that_is_padded_with_zeros_is_the_title(node: Node, recording: Recording) -> None:
    with connect(node.listener.port) as old:
        old.sendall(titled(recording.request, b"TESTER".ljust(16, b"\0")))

        assert pdus.read_pdu(old)[:1] == bytes([pdus.ASSOCIATE_ACCEPT])


def titled(request: bytes, calling: bytes) -> bytes:
    """A request for an association with another calling AE title (PS3.8 9.3.2)."""
    return request[:26] + calling + request[42:]


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


def test_a_declared_length_of_4_gb_is_not_believed(node: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=node.listener.port) as hostile:
        tracemalloc.start()
        hostile.sendall(b"\4\0\xff\xff\xff\xff" + bytes(1000))
        until_the_end(hostile)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    wait_for_abort(node, "length")
    assert peak < 10_000_000


def test_who_stops_within_a_pdu_is_cut_off(impatient: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=impatient.listener.port) as stalled:
        stalled.sendall(recording.store[0])
        stalled.sendall(recording.store[1][:1000])

        wait_for_abort(impatient, "stalled")
        until_the_end(stalled)
    wait_until(lambda: is_clean(impatient), what="nothing is left of the object", limit_seconds=60.0)
    assert is_clean(impatient)


def test_who_says_nothing_more_is_cut_off(impatient: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=impatient.listener.port) as idle:
        wait_for_abort(impatient, "idle")
        assert until_the_end(idle)[0][:1] == b"\7"


@pytest.mark.parametrize("control", [0, 1], ids=["dataset", "command"])
def test_an_object_or_a_command_without_end_is_ended(node: Node, recording: Recording, control: int) -> None:
    fragment = pdus.data(bytes(100_000), control=control)
    with pdus.associate(recording, port=node.listener.port) as endless:
        endless.sendall(recording.store[0] if control == 0 else b"")
        with pytest.raises(OSError):  # a connection that is gone
            for _ in range(10_000):
                endless.sendall(fragment)

    wait_for_abort(node, "length")
    wait_until(lambda: is_clean(node), what="nothing is left of the object", limit_seconds=60.0)


def test_an_object_of_the_longest_size_is_kept(node: Node) -> None:
    film = films.thumbnail()
    film.PixelData = bytes(1024 * 1024 - 10_000)

    assert peers.send(film, port=node.listener.port) == 0x0000


def test_what_is_no_command_ends_the_association(node: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=node.listener.port) as odd:
        odd.sendall(pdus.data(b"no command at all", control=3))

        assert b"\7" in [pdu[:1] for pdu in until_the_end(odd)]
    wait_for_abort(node, "protocol")


def test_a_sender_that_does_not_wait_for_answers_gets_them_all(node: Node, recording: Recording) -> None:
    with pdus.associate(recording, port=node.listener.port) as hasty:
        hasty.sendall(b"".join(recording.store) * 5)
        statuses = [pdus.status_of(pdus.read_pdu(hasty)) for _ in range(5)]

    assert statuses == [0x0000] * 5
    assert node.count("cxr_instances_total", outcome="kept") == 1
    assert node.count("cxr_instances_total", outcome="repeated") == 4


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
