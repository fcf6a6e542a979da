"""A webhook of a house, which keeps what it was told, and may refuse it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.peers import LOOPBACK


@dataclass(kw_only=True)
class Webhook:
    """Posts that came, also those that were refused; status: what it answers; location: where a redirect leads."""

    port: int = 0
    status: int = 204
    location: str = ""
    posts: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/hook/of/the/house"


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Run an HTTP server on this machine."""
    kept = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            kept.tokens.append(self.headers["Authorization"])
            self.send_response(kept.status)
            if kept.location:
                self.send_header("Location", kept.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        kept.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield kept
        server.shutdown()
        thread.join()
