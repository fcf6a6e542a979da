"""A webhook and a mail server of a house, which keep what they were told and may refuse it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.certificates import Identity
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


@dataclass(kw_only=True)
class MailHouse:
    """Mails that came; logins: with which password; refusal: an answer instead of taking one."""

    port: int
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    refusal: str = ""

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  # aiosmtpd's name
        """Keep a mail, or refuse it."""
        if self.refusal:
            return self.refusal
        content = cast(bytes, envelope.content)
        self.mails.append(message_from_bytes(content, policy=policy.default))
        self.recipients += envelope.rcpt_tos
        return "250 kept"

    def login(self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: object) -> AuthResult:
        """Take any password."""
        said = cast(LoginPassword, data)
        self.logins.append((said.login.decode(), said.password.decode()))
        return AuthResult(success=True)


@contextmanager
def mail_house(identity: Identity | None = None) -> Iterator[MailHouse]:
    """Run a mail server on this machine; identity: its certificate, which it has clients ask for by STARTTLS."""
    kept = MailHouse(port=free_port())
    context = None
    if identity is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.certificate, identity.key)
    controller = Controller(
        kept,
        hostname=LOOPBACK,
        port=kept.port,
        tls_context=context,
        require_starttls=context is not None,
        authenticator=kept.login,
        auth_require_tls=context is not None,
    )
    controller.start()
    try:
        yield kept
    finally:
        controller.stop()
