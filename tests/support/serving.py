"""The HTTP server with its three pages, without the rest of a node, and clients that speak to it in bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from starlette.types import ASGIApp

from node.metrics import Metrics
from node.net.http_connections import Limits
from node.service.http import HttpServer, Readiness
from node.settings.http import HttpSettings, HttpTlsSettings
from tests.support.peers import LOOPBACK, wait_until

LIVE = b"GET /live HTTP/1.1\r\nHost: node\r\n\r\n"
LIVE_AND_CLOSE = b"GET /live HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
ROOMY = Limits(connections=64)


@dataclass(kw_only=True)
class Hook:
    """What a page does before it is computed; without `hold` it goes on at once."""

    hold: threading.Event | None = None
    error: Exception | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    count: int = 0

    def run(self) -> None:
        self.count += 1
        self.begun.set()
        if self.hold is not None:
            self.hold.wait(timeout=60)
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server. `ready` and `metrics` hook into the computation of these pages; parts: those of `/ready`."""

    server: HttpServer
    metrics: Metrics
    parts: dict[str, bool]
    ready: Hook
    scrape: Hook

    @property
    def port(self) -> int:
        return self.server.port

    def closed(self, reason: str) -> float:
        """How many connections the limits closed for a reason."""
        labels = {"reason": reason}
        return self.metrics.registry.get_sample_value("cxr_http_connections_closed_total", labels) or 0.0

    def wait_for_close(self, reason: str, *, count: int = 1) -> None:
        wait_until(lambda: self.closed(reason) >= count, what=f"{count} connections closed: {reason}")

    def connect(self, said: bytes = b"", *, host: str = LOOPBACK) -> socket.socket:
        """Connect from an address, and send something."""
        connection = socket.create_connection((LOOPBACK, self.port), timeout=30, source_address=(host, 0))
        connection.sendall(said)
        return connection

    def send_byte_by_byte(self, connection: socket.socket) -> None:
        """Send a byte now and then until the connection was closed for its silence, 20 s at most."""
        began = time.monotonic()
        with suppress(OSError):
            while self.closed("silent") == 0 and time.monotonic() - began < 20.0:
                connection.sendall(b"x")
                time.sleep(0.05)

    def ask(self, request: bytes = LIVE_AND_CLOSE, *, host: str = LOOPBACK) -> bytes:
        """Send a request, and read until the server closes."""
        with self.connect(request, host=host) as connection:
            return read_to_end(connection)


@contextmanager
def serving(
    *,
    limits: Limits = ROOMY,
    page_seconds: float | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    application: ASGIApp | None = None,
    tls: HttpTlsSettings | None = None,
) -> Iterator[Served]:
    """Serve until the block ends; page_seconds: limit of `/ready` and `/metrics`; application: see `HttpServer`."""
    metrics, ready, scrape, parts = Metrics(), Hook(), Hook(), {"disk": True}
    metrics.associations_open.set_function(_zero_after(scrape.run))

    def readiness() -> Readiness:
        ready.run()
        return Readiness(parts=parts)

    with pytest.MonkeyPatch.context() as changed:
        if page_seconds is not None:
            changed.setattr("node.service.http._READY_SECONDS", page_seconds)
            changed.setattr("node.service.http._METRICS_SECONDS", page_seconds)
        server = HttpServer(
            HttpSettings(host=host, port=port, tls=tls), metrics, readiness, limits=limits, application=application
        )
    try:
        yield Served(server=server, metrics=metrics, parts=parts, ready=ready, scrape=scrape)
    finally:
        server.close()


def _zero_after(run: Callable[[], None]) -> Callable[[], float]:
    def value() -> float:
        run()
        return 0.0

    return value


def read_to_end(connection: socket.socket) -> bytes:
    """Read until the other side closes or resets."""
    content = bytearray()
    try:
        while piece := connection.recv(65536):
            content += piece
    except ConnectionResetError:
        pass
    return bytes(content)


def read_answer(connection: socket.socket) -> bytes:
    """Read one answer with a Content-Length."""
    content = bytearray()
    while b"\r\n\r\n" not in content:
        piece = connection.recv(65536)
        assert piece, f"the connection ended within {bytes(content)!r}"
        content += piece
    head, _, body = bytes(content).partition(b"\r\n\r\n")
    (length,) = (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
