"""A webhook and a mail server of a house, which keep what they were told; the webhook may refuse it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.support.peers import LOOPBACK, free_port


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


@contextmanager
def mail_house() -> Iterator[tuple[int, list[EmailMessage]]]:
    """Run a mail server on this machine: its port, and the mails that came."""
    mails: list[EmailMessage] = []

    class Handler:
        async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  # aiosmtpd's name
            mails.append(message_from_bytes(cast(bytes, envelope.content), policy=policy.default))
            return "250 kept"

    port = free_port()
    controller = Controller(Handler(), hostname=LOOPBACK, port=port)
    controller.start()
    try:
        yield port, mails
    finally:
        controller.stop()
