"""HTTP and HTTPS clients that are slow, silent, many or malformed: each is closed in time, and probes are answered."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from node.check_result import CheckState
from node.config import Settings, StorageSettings
from node.errors import ConfigError
from node.health.checks import check_certificates
from node.jobs import processes
from node.jobs.processes import Process
from node.net.http_connections import Connection, Limits, has_left
from node.net.tls import check_files
from node.settings.http import HttpSettings, HttpTlsSettings
from tests.support.certificates import Authority, Identity
from tests.support.peers import ELSEWHERE, LOOPBACK, wait_until
from tests.support.serving import LIVE, LIVE_AND_CLOSE, Served, read_answer, read_to_end, serving

QUICK = Limits(connections=64, header_seconds=0.5, stalled_seconds=0.5)
NARROW = Limits(connections=8)
READY = b"GET /ready HTTP/1.1\r\nHost: node\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
ANSWERED = b"HTTP/1.1 200 OK"


@pytest.fixture
def tls(tmp_path: Path, authority: Authority) -> HttpTlsSettings:
    files = HttpTlsSettings(certificate=tmp_path / "node.pem", key=tmp_path / "node.key")
    install(authority.issue("node", days=30), files)
    return files


def install(identity: Identity, files: HttpTlsSettings) -> None:
    shutil.copy(identity.certificate, files.certificate)
    shutil.copy(identity.key, files.key)


@contextmanager
def connected(served: Served, authority: Authority) -> Iterator[ssl.SSLSocket]:
    """A client that has done the handshake."""
    context = ssl.create_default_context(cafile=authority.certificate)
    with served.connect() as plain, context.wrap_socket(plain, server_hostname=LOOPBACK) as connection:
        yield connection


def is_live(connection: socket.socket) -> bool:
    """Whether a request is answered, by a connection that stays open."""
    connection.sendall(LIVE)
    return read_answer(connection).startswith(ANSWERED)


@pytest.mark.parametrize(
    "said",
    [[b""], [b"GET /re"], [b"GET /ready HTTP/1.1\r\nHost: node\r\n"], [LIVE + b"GET /re"], [LIVE, b"GET /re"]],
    ids=["nothing", "half a line", "half a header", "half a line with a request", "half a line after an answer"],
)
@pytest.mark.parametrize("by_https", [False, True], ids=["http", "https"])
def test_a_connection_without_a_complete_header_is_closed(
    authority: Authority, tls: HttpTlsSettings, said: list[bytes], *, by_https: bool
) -> None:
    with (
        serving(limits=QUICK, tls=tls if by_https else None) as served,
        connected(served, authority) if by_https else served.connect() as connection,
    ):
        for part in said:
            connection.sendall(part)
            if part.startswith(LIVE):
                assert read_answer(connection).startswith(ANSWERED)
        served.wait_for_close("silent")

        assert read_to_end(connection) == b""


async def say(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def read_body(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await say(send)


ENDLESS = b"Host: node\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100


@pytest.mark.parametrize(
    ("said", "application"),
    [
        pytest.param(b"GET /live HTTP/1.1\r\nX: ", None, id="a header"),
        pytest.param(b"POST /live HTTP/1.1\r\n" + ENDLESS, None, id="a body that was refused"),
        pytest.param(b"POST /films HTTP/1.1\r\n" + ENDLESS, read_body, id="a body that slows down"),
    ],
)
def test_what_comes_byte_by_byte_has_no_more_time(said: bytes, application: ASGIApp | None) -> None:
    limits = replace(QUICK, body_bytes=50)
    with serving(limits=limits, application=application) as served, served.connect(said) as connection:
        if said.startswith(b"POST /live"):
            assert read_answer(connection).startswith(b"HTTP/1.1 405")
        served.send_byte_by_byte(connection)

        assert served.closed("silent") == 1


def test_a_body_that_goes_on_slowly_is_read_to_its_end() -> None:
    limits = Limits(connections=8, stalled_seconds=2.0, body_bytes=50)
    request = b"POST /films HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 300\r\n\r\n"
    with serving(limits=limits, application=read_body) as served, served.connect(request) as connection:
        for _ in range(6):
            time.sleep(0.4)
            connection.sendall(b"x" * 50)

        assert read_to_end(connection).startswith(ANSWERED)


def test_who_waits_for_a_late_answer_is_not_silent() -> None:
    async def answer_late(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.wait([asyncio.ensure_future(receive())], timeout=0.3)  # for the client to leave
        await say(send)

    with serving(limits=Limits(connections=8, stalled_seconds=0.1), application=answer_late) as served:
        assert served.ask(b"GET /films HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").startswith(ANSWERED)


def test_a_client_that_takes_a_long_answer_slowly_is_not_stalled() -> None:
    unread = iter((0, 90, 90, 60, 60, 30, 0))  # bytes that wait for the client, each time that its transport is asked

    async def seen() -> list[bool]:
        connection = Connection(uvicorn.Config(lambda: None, log_config=None), ServerState(), LOOPBACK, QUICK, {})
        connection.transport = cast(asyncio.Transport, SimpleNamespace(get_write_buffer_size=unread.__next__))
        later = time.monotonic() + 1000.0
        return [connection.taken_at(later + second) == later + second for second in range(7)]

    assert asyncio.run(seen()) == [True, False, False, True, False, True, True]


@pytest.mark.parametrize("by_https", [False, True], ids=["http", "https"])
def test_an_idle_connection_stays_open(authority: Authority, tls: HttpTlsSettings, *, by_https: bool) -> None:
    with (
        serving(limits=QUICK, tls=tls if by_https else None) as served,
        connected(served, authority) if by_https else served.connect() as kept,
        served.connect(b"" if by_https else b"GET /re"),
    ):
        kept.sendall(LIVE)
        answer = read_answer(kept)
        assert answer.startswith(ANSWERED) and b"server:" not in answer.lower()
        served.wait_for_close("silent")
        time.sleep(2 * QUICK.header_seconds)

        assert is_live(kept)
        assert served.closed("silent") == 1


def test_an_endless_answer_ends_when_its_client_leaves() -> None:
    ended = threading.Event()

    async def stream(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"event", "more_body": True})
        while not has_left(scope):
            await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    with serving(application=stream) as served:
        with served.connect(b"GET /events HTTP/1.1\r\nHost: node\r\n\r\n") as connection:
            assert connection.recv(65536).startswith(ANSWERED)
        assert ended.wait(30)


def test_a_header_that_is_too_long_is_refused() -> None:
    with serving() as served:
        answer = served.ask(b"GET /live HTTP/1.1\r\nX: " + b"x" * 40_000)

        assert served.closed("silent") == 0, "nothing waits for its end"
    assert answer[:12] in (b"HTTP/1.1 400", b"")  # nothing where the system dropped the answer with the unread rest


@pytest.mark.parametrize("said", [b"", b"GET /re", LIVE], ids=["silent", "half a request", "idle"])
def test_probes_pass_while_idle_connections_have_every_place(said: bytes) -> None:
    with serving(limits=NARROW) as served, ExitStack() as clients:
        for _ in range(5 * NARROW.connections):
            clients.enter_context(served.connect(said))

            assert served.ask().startswith(ANSWERED)

        assert served.closed("limit") > 0


def test_a_connection_that_is_being_answered_or_of_an_address_with_few_is_closed_last() -> None:
    with serving(limits=NARROW) as served, ExitStack() as clients:
        other = clients.enter_context(served.connect(host=ELSEWHERE))
        assert is_live(other)
        served.ready.hold = threading.Event()
        waiting = clients.enter_context(served.connect(READY))
        assert served.ready.begun.wait(30)
        for _ in range(3 * NARROW.connections):
            clients.enter_context(served.connect(LIVE))
        served.wait_for_close("limit", count=2 * NARROW.connections)

        served.ready.hold.set()

        assert read_answer(waiting).startswith(ANSWERED)
        assert is_live(other)


def test_a_client_that_takes_no_answer_is_closed() -> None:
    with serving(limits=QUICK) as served, served.connect() as connection:
        connection.sendall(METRICS * 1000)
        served.wait_for_close("stalled")


def test_an_answer_spares_a_connection_from_being_closed_next() -> None:
    with serving(limits=NARROW) as served, ExitStack() as clients:
        kept, idle, *others = [clients.enter_context(served.connect()) for _ in range(NARROW.connections)]
        for connection in (kept, idle, *others):  # one after the other, so that `idle` waits longest
            assert is_live(connection)
        assert is_live(kept)

        clients.enter_context(served.connect())

        assert read_to_end(idle) == b""
        assert is_live(kept)


def test_closed_connections_leave_no_descriptor_behind() -> None:
    with serving(limits=QUICK) as served:
        assert served.ask().startswith(ANSWERED)
        before = len(os.listdir("/proc/self/fd"))
        with ExitStack() as clients:
            for said in (b"", b"GET /re", LIVE, METRICS) * 5:
                clients.enter_context(served.connect(said))

        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, what="every descriptor is given back")


def test_without_descriptors_an_idle_connection_is_closed() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as served, served.connect(b"GET /re") as idle, ExitStack() as hoard:
        assert served.ask().startswith(ANSWERED)
        probe = hoard.enter_context(socket.socket())
        probe.settimeout(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    hoard.callback(os.close, os.dup(0))
            probe.connect(("127.0.0.1", served.port))
            probe.sendall(LIVE)

            assert read_answer(probe).startswith(ANSWERED)
            assert read_to_end(idle) == b""
            assert served.closed("limit") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


MALFORMED = (
    b"\r\n\r\n",
    b"GET /live\r\n\r\n",
    b"GET /live HTTP/9.9\r\nHost: node\r\n\r\n",
    b"GET /live HTTP/1.1\r\nHost: node\r\nContent-Length: -1\r\n\r\n",
    b"GET /live HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /live HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    LIVE + b"nonsense\r\n\r\n",
)


def test_malformed_requests_stop_nothing_and_write_no_log(caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(11)
    parts = (*MALFORMED, LIVE, METRICS, LIVE_AND_CLOSE)
    with serving(limits=QUICK) as served:
        for said in MALFORMED:
            with served.connect(said) as connection, suppress(OSError):
                time.sleep(0.05)  # so that the rest comes behind an answer
                connection.sendall(b"nonsense\r\n\r\n")
                read_to_end(connection)
        for _ in range(200):
            bent = bytearray(b"".join(draw.choices(parts, k=draw.randint(1, 3))))
            for _ in range(draw.randint(0, 4)):
                bent[draw.randrange(len(bent))] = draw.randrange(256)
            with suppress(OSError), served.connect() as connection:
                connection.sendall(bent[: draw.randint(1, len(bent))])
                connection.shutdown(socket.SHUT_WR)
                read_to_end(connection)

        assert served.ask().startswith(ANSWERED)

    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"transfer-encoding: Chunked\r\nCONTENT-LENGTH: 0",
        b"Content-Length: 3\r\nTransfer-Encoding : chunked",
        b"Content-Length: 3\r\nContent-Length: 5",
    ],
)
@pytest.mark.parametrize("before", [b"", LIVE], ids=["first", "on a kept connection"])
def test_a_request_of_two_lengths_closes_the_connection(fields: bytes, before: bytes) -> None:
    head = b"POST /live HTTP/1.1\r\nHost: node\r\n" + fields + b"\r\n\r\n"
    with serving() as served:
        answers = served.ask(before + head + b"0\r\n\r\n" + LIVE)

    assert (answers.count(b"HTTP/1.1 200"), answers.count(b"HTTP/1.1 400")) == (1 if before else 0, 1)


@pytest.mark.parametrize(
    ("said", "is_silent"),
    [(LIVE, False), (b"\0" * 100, False), (b"\x16\3\1\2\0\1\0", True), (b"", True)],
    ids=["plain HTTP", "zeros", "half a hello", "nothing"],
)
def test_who_speaks_no_tls_is_closed(authority: Authority, tls: HttpTlsSettings, said: bytes, is_silent: bool) -> None:
    with serving(limits=QUICK, tls=tls) as served:
        with served.connect(said) as connection:
            assert not read_to_end(connection).startswith(b"HTTP")
        assert served.closed("silent") == is_silent
        with connected(served, authority) as connection:
            assert is_live(connection)


def test_silent_handshakes_hold_no_other_client(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(limits=NARROW, tls=tls) as served, ExitStack() as clients:
        for _ in range(3 * NARROW.connections):
            clients.enter_context(served.connect())
        with connected(served, authority) as connection:
            assert is_live(connection)

        assert served.closed("limit") > 0


def test_a_client_that_resets_within_its_handshake_is_forgotten(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(limits=QUICK, tls=tls) as served:
        for _ in range(20):
            connection = served.connect(b"\x16\x03\x01")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        with connected(served, authority) as asking:
            assert is_live(asking)
            with served.connect():
                served.wait_for_close("silent")

        assert served.closed("silent") == 1


def test_a_stop_ends_open_handshakes(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(tls=tls) as served, served.connect() as connection, connected(served, authority) as kept:
        assert is_live(kept)
        began = time.monotonic()
        served.server.close()

        assert time.monotonic() - began < 4.0
        assert read_to_end(connection) == b""


def test_a_renewed_certificate_is_shown_without_a_restart(authority: Authority, tls: HttpTlsSettings) -> None:
    def shown() -> bytes | None:
        with connected(served, authority) as connection:
            return connection.getpeercert(binary_form=True)

    with serving(tls=tls) as served:
        first = shown()
        install(authority.issue("renewed"), tls)
        wait_until(lambda: shown() != first, what="the renewed certificate")

        tls.key.write_text("no key", encoding="utf-8")

        assert shown() != first


def test_status_doctor_and_check_know_https(tmp_path: Path, tls: HttpTlsSettings) -> None:
    storage = StorageSettings(directory=tmp_path)
    with serving(tls=tls) as served, processes.published(storage, Process(), ports={"http_port": served.port}):
        (state,) = processes.states(storage, HttpSettings(port=served.port, tls=tls))
    assert (state.ready, state.answers) == (True, True)
    days = served.metrics.registry.get_sample_value("cxr_certificate_days", {"name": "http"})
    assert days == pytest.approx(30, abs=0.1)

    settings = Settings(storage=storage, http=HttpSettings(tls=tls))
    (found,) = check_certificates(settings)
    assert (found.name, found.state) == ("certificate http.tls", CheckState.NOTE)
    tls.key.unlink()
    assert [check.state for check in check_certificates(settings)] == [CheckState.FAULT]
    with pytest.raises(ConfigError, match=r"http\.tls\.key: .* does not exist"):
        check_files(settings)
