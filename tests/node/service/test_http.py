"""The pages as probes and Prometheus see them, also while the disk or the database hangs or fails."""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from node.config import ListenerSettings
from node.service.http import limits_for
from tests.support.peers import LOOPBACK, wait_until
from tests.support.serving import LIVE, Served, read_to_end, serving

METRICS = b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
READY = b"GET /ready HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


def ask(
    served: Served, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, host: str = LOOPBACK
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(host, served.port, timeout=30)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def reset(connection: socket.socket) -> None:
    """Be gone at once, as a process that is killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> dict[str, object]:
    body: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return body


def test_pages_answer_get_and_head_and_nothing_else(served: Served) -> None:
    for path in ("/live", "/ready", "/metrics"):
        answer, content = ask(served, path, method="HEAD")
        assert (answer.status, content, answer.getheader("Server")) == (200, b"", None)
    for path in ("/", "/live/", "/ready/x", "/openapi.json", "/favicon.ico", "//live"):
        answer, content = ask(served, path)
        assert (answer.status, answer.getheader("Server")) == (404, None)
        assert json.loads(content) == {"paths": ["/metrics", "/live", "/ready"]}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
        answer, _ = ask(served, "/live", method=method)
        assert answer.status == 405
        assert set(str(answer.getheader("Allow")).split(", ")) == {"GET", "HEAD"}


def test_metrics_come_in_the_text_format_and_compressed_for_who_asks_for_it(served: Served) -> None:
    plain, content = ask(served, "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    zipped, smaller = ask(served, "/metrics", headers={"Accept-Encoding": "gzip"})

    assert plain.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b"cxr_build_info" in content
    assert zipped.getheader("Content-Encoding") == "gzip"
    assert b"cxr_build_info" in gzip.decompress(smaller)


def test_ready_answers_503_and_names_the_part_that_is_not() -> None:
    with serving() as served:
        good = served.ask(READY)
        served.parts["disk"] = False
        answer = served.ask(READY)

    assert status_of(good) == 200
    assert (status_of(answer), body_of(answer)) == (503, {"ready": False, "disk": False})


def test_a_hanging_page_is_answered_in_time_and_holds_one_thread_and_not_the_page_of_life() -> None:
    hold, before = threading.Event(), threading.active_count()
    with capture_logs() as said, serving(page_seconds=0.2) as served:
        served.ready.hold = served.scrape.hold = hold

        answers = [served.ask(request) for _ in range(5) for request in (READY, METRICS)]

        assert status_of(served.ask()) == 200, "it lives"
        assert {status_of(answer) for answer in answers} == {503}
        assert body_of(answers[0]) == {
            "ready": False,
            "error": "/ready took more than 0.2 s; check the disk and the database",
        }
        assert threading.active_count() <= before + 3  # the server, and one for each page
        hold.set()
        wait_until(lambda: status_of(served.ask(READY)) == 200, what="the page is back")
    told = [line for line in said if line["event"] == "page.failed" and "times" not in line]
    assert {str(line["reason"]) for line in told} == {f"/{page} took more than 0.2 s" for page in ("ready", "metrics")}


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_requests_that_wait_share_one_computation(end: Callable[[socket.socket], None]) -> None:
    hold = threading.Event()
    with serving(page_seconds=60.0) as served:
        served.ready.hold = hold
        for _ in range(21):
            end(served.connect(READY))  # closed by a client that may still listen, as Prometheus does, or reset
        assert served.ready.begun.wait(timeout=30)
        for _ in range(5):  # by then the server has noticed what came before
            served.ask()
        served.ready.hold = None
        hold.set()

        assert status_of(served.ask(READY)) == 200

        assert served.ready.count <= 2


def test_a_failing_page_answers_500_and_logs_no_error_text() -> None:
    with capture_logs() as said, serving() as served:
        served.scrape.error = ValueError("Doe^Jane")

        answer = served.ask(METRICS)

    assert status_of(answer) == 500
    assert b"Doe" not in answer
    (line,) = said
    assert (line["event"], line["host"]) == ("page.failed", LOOPBACK)
    assert str(line["reason"]).startswith("/metrics failed: ValueError at serving.py")


def test_closing_takes_at_most_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    hold = threading.Event()
    with serving(page_seconds=60.0) as served:
        served.ready.hold = hold
        connections = [served.connect(said) for said in (b"", b"GET /re", LIVE, READY)]
        assert served.ready.begun.wait(timeout=30)
        began = time.monotonic()

        served.server.close()

        assert time.monotonic() - began < 2.0
        for connection in connections:
            read_to_end(connection)
            connection.close()
        hold.set()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_closing_server_ends_only_idle_connections_at_once() -> None:
    hold = threading.Event()
    with serving() as served:
        served.ready.hold = hold
        with served.connect(READY) as connection, served.connect(b"GET /re") as idle:
            assert served.ready.begun.wait(timeout=30)
            closing = threading.Thread(target=served.server.close)
            closing.start()

            assert read_to_end(idle) == b""
            hold.set()
            assert status_of(read_to_end(connection)) == 200
            closing.join(timeout=30)


def test_it_serves_on_ipv6_and_an_address_in_use_is_an_error_at_once(served: Served) -> None:
    with serving(host="::1") as other:
        answer, _ = ask(other, "/live", host="::1")
        assert answer.status == 200

    with pytest.raises(OSError, match="in use"), serving(port=served.port):
        pass


@pytest.mark.parametrize(
    ("descriptors", "associations", "connections"),
    [(1024, 20, 256), (1024, 200, 174), (1024, 1000, 32), (512, 20, 202), (4096, 20, 256)],
)
def test_films_have_the_first_claim_on_descriptors(descriptors: int, associations: int, connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        limits = limits_for(ListenerSettings(max_associations=associations))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert limits.connections == connections
