"""A DICOMweb archive or a webhook that answers what a test wants: any status and body, late, in drops or not at all."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.peers import LOOPBACK


@dataclass(kw_only=True)
class WebArchive:
    """What it answers, and what came: method, path, headers and body of each request.

    drops: seconds between the bytes of the body, None to send it at once
    closes: end the connection without an answer
    """

    port: int = 0
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    drops: float | None = None
    closes: bool = False
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is reached as a webhook."""
        return f"http://{LOOPBACK}:{self.port}/hook/of/the/house"

    @property
    def posts(self) -> list[dict[str, Any]]:
        """The JSON of each request that came, also of those that were refused."""
        return [json.loads(body) for *_, body in list(self.requests)]

    def fail(self, reason: int) -> None:
        """Answer that an object is not stored, and why (PS3.18 I.2.2)."""
        failed = {"00081197": {"vr": "US", "Value": [reason]}}
        self.status, self.body = 409, json.dumps({"00081198": {"vr": "SQ", "Value": [failed]}}).encode()


@contextmanager
def web_archive(*, tls: ssl.SSLContext | None = None) -> Iterator[WebArchive]:
    """Run an archive on a free port."""
    archive = WebArchive()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            archive.requests.append((self.command, self.path, dict(self.headers), body))
            self.close_connection = True
            if archive.closes:
                return
            self.send_response(archive.status)
            for name, value in archive.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(archive.body)))
            self.end_headers()
            if archive.drops is None:
                self.wfile.write(archive.body)
                return
            for byte in archive.body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(archive.drops)

        do_GET = do_POST = _answer  # noqa: N815  # the names that the library calls

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...

    server = Server((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    archive.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield archive
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
