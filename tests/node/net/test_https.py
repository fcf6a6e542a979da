"""HTTPS: who speaks it is answered, whoever does not is closed in time, and a renewed certificate is used."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from node.check_result import CheckState
from node.config import Settings, StorageSettings
from node.errors import ConfigError
from node.health.checks import check_certificates
from node.jobs import processes
from node.jobs.processes import Process
from node.net.http_connections import Limits
from node.net.tls import check_files, server_context
from node.settings.http import HttpSettings, HttpTlsSettings
from tests.support.certificates import Authority, Identity
from tests.support.peers import LOOPBACK, wait_until
from tests.support.serving import LIVE, LIVE_AND_CLOSE, Served, read_answer, read_to_end, serving

QUICK = Limits(connections=64, header_seconds=0.5, stalled_seconds=0.5)
NARROW = Limits(connections=8)
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


def test_requests_are_answered_by_https(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(tls=tls) as served, connected(served, authority) as connection:
        for _ in range(3):
            connection.sendall(LIVE)
            assert read_answer(connection).startswith(ANSWERED)
        connection.sendall(LIVE_AND_CLOSE)

        assert read_to_end(connection).startswith(ANSWERED)
        assert served.metrics.registry.get_sample_value("cxr_certificate_days", {"name": "http"}) == pytest.approx(
            30, abs=0.1
        )


def test_a_request_that_ends_the_handshake_is_answered(authority: Authority, tls: HttpTlsSettings) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=authority.certificate)
    client = context.wrap_bio(incoming, outgoing, server_hostname=LOOPBACK)
    with serving(tls=tls) as served, served.connect() as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        client.write(LIVE_AND_CLOSE)
        connection.sendall(outgoing.read())
        incoming.write(read_to_end(connection))

    assert client.read().startswith(ANSWERED)


@pytest.mark.parametrize(
    "said", [LIVE, b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 100], ids=["plain HTTP", "half a hello", "zeros"]
)
def test_whoever_speaks_no_tls_gets_nothing(authority: Authority, tls: HttpTlsSettings, said: bytes) -> None:
    with serving(limits=QUICK, tls=tls) as served:
        with served.connect(said) as connection:
            assert not read_to_end(connection).startswith(b"HTTP")
        with connected(served, authority) as connection:
            connection.sendall(LIVE)
            assert read_answer(connection).startswith(ANSWERED)


def test_only_modern_tls_is_spoken_and_no_certificate_asked_for(tls: HttpTlsSettings) -> None:
    context = server_context(tls)

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE


def test_a_handshake_that_does_not_end_is_closed_as_silent(tls: HttpTlsSettings) -> None:
    with serving(limits=QUICK, tls=tls) as served, served.connect() as connection:
        served.wait_for_close("silent")

        assert read_to_end(connection) == b""


@pytest.mark.parametrize("said", [b"", b"GET /re"], ids=["nothing", "half a line"])
def test_no_header_after_the_handshake_is_closed_as_silent(
    authority: Authority, tls: HttpTlsSettings, said: bytes
) -> None:
    with serving(limits=QUICK, tls=tls) as served, connected(served, authority) as connection:
        connection.sendall(said)

        served.wait_for_close("silent")
        assert read_to_end(connection) == b""


def test_an_idle_connection_by_https_stays_open(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(limits=QUICK, tls=tls) as served, connected(served, authority) as kept, served.connect():
        kept.sendall(LIVE)
        assert read_answer(kept).startswith(ANSWERED)
        served.wait_for_close("silent")

        kept.sendall(LIVE)

        assert read_answer(kept).startswith(ANSWERED)
        assert served.closed("silent") == 1


def test_silent_handshakes_hold_no_other_client(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(limits=NARROW, tls=tls) as served, ExitStack() as clients:
        for _ in range(3 * NARROW.connections):
            clients.enter_context(served.connect())
        with connected(served, authority) as connection:
            connection.sendall(LIVE)

            assert read_answer(connection).startswith(ANSWERED)

        assert served.closed("limit") > 0


def test_a_client_that_resets_within_its_handshake_is_forgotten(authority: Authority, tls: HttpTlsSettings) -> None:
    with serving(limits=QUICK, tls=tls) as served:
        for _ in range(20):
            connection = served.connect(b"\x16\x03\x01")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        with connected(served, authority) as asking:
            asking.sendall(LIVE)
            assert read_answer(asking).startswith(ANSWERED)
            with served.connect():
                served.wait_for_close("silent")

        assert served.closed("silent") == 1


def test_a_stop_ends_open_handshakes(authority: Authority, tls: HttpTlsSettings) -> None:
    with ExitStack() as clients, serving(tls=tls) as served:
        connection = clients.enter_context(served.connect())
        kept = clients.enter_context(connected(served, authority))
        kept.sendall(LIVE)
        read_answer(kept)
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


def test_status_asks_a_process_that_speaks_https(tmp_path: Path, tls: HttpTlsSettings) -> None:
    storage = StorageSettings(directory=tmp_path / "storage")
    storage.directory.mkdir()
    with serving(tls=tls) as served, processes.published(storage, Process(), ports={"http_port": served.port}):
        (state,) = processes.states(storage, HttpSettings(port=served.port, tls=tls))

    assert (state.ready, state.answers) == (True, True)


def test_doctor_and_check_look_at_the_certificate(tmp_path: Path, tls: HttpTlsSettings) -> None:
    settings = Settings(storage=StorageSettings(directory=tmp_path), http=HttpSettings(tls=tls))

    (found,) = check_certificates(settings)

    assert (found.name, found.state) == ("certificate http.tls", CheckState.NOTE)
    tls.key.unlink()
    assert [check.state for check in check_certificates(settings)] == [CheckState.FAULT]
    with pytest.raises(ConfigError, match=r"http\.tls\.key: .* does not exist"):
        check_files(settings)
