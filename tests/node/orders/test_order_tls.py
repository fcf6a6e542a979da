"""The order port with TLS: who gets in, what an observer sees, and that a slow handshake holds nobody."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.config import OrdersTlsSettings
from node.metrics import Metrics
from node.orders.listener import OrderListener
from node.orders.store import OrderStore
from tests.node.orders.test_order_listener import listening, refused
from tests.node.orders.test_orders import OMI, ORM
from tests.support import mllp, peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A listener with TLS, the files it uses, and the certificate of the one who may speak to it."""

    listener: OrderListener
    metrics: Metrics
    own: tuple[Path, Path]
    theirs: tuple[Path, Path]

    def context(self, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
        """What a sender uses: it believes the node, and shows a certificate or none."""
        context = ssl.create_default_context(cafile=self.own[0])
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def ask(self, certificate: tuple[Path, Path] | None, content: str = ORM) -> bytes:
        """Send a message and return what comes back; nothing where the connection ends."""
        with (
            socket.create_connection((peers.LOOPBACK, self.listener.port), timeout=60) as plain,
            self.context(certificate).wrap_socket(plain, server_hostname=peers.LOOPBACK) as connection,
        ):
            connection.sendall(mllp.START + content.encode() + mllp.END)
            return connection.recv(65536)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    own, theirs = mllp.certificate(tmp_path, "node"), mllp.certificate(tmp_path, "ris")
    metrics = Metrics()
    tls = OrdersTlsSettings(certificate=own[0], key=own[1], ca=theirs[0])
    with listening(OrderStore(tmp_path / "storage"), metrics, tls=tls, patience_seconds=20) as listener:
        yield Secured(listener=listener, metrics=metrics, own=own, theirs=theirs)


def test_an_order_comes_in_from_whom_the_authority_knows(secured: Secured) -> None:
    assert b"MSA|AA|C1" in secured.ask(secured.theirs)
    assert b"MSA|AA|C2" in secured.ask(secured.theirs, OMI)
    assert refused(secured.metrics) == {}


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
def test_a_sender_without_a_good_certificate_is_refused(secured: Secured, tmp_path: Path, who: str) -> None:
    certificate = mllp.certificate(tmp_path, "stranger") if who == "a stranger" else None

    with pytest.raises((ssl.SSLError, ConnectionError)):
        secured.ask(certificate)

    peers.wait_until(lambda: refused(secured.metrics) == {"tls": 1.0}, what="one is counted", limit_seconds=60)


def test_an_order_in_plain_text_is_not_answered(secured: Secured) -> None:
    with socket.create_connection((peers.LOOPBACK, secured.listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        received = b"".join(iter(lambda: receive(connection), b""))

    assert b"MSA" not in received
    peers.wait_until(lambda: refused(secured.metrics) == {"tls": 1.0}, what="one is counted", limit_seconds=60)


def receive(connection: socket.socket) -> bytes:
    """The next bytes; none at the end, however it came."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def test_a_handshake_that_never_begins_delays_nothing(secured: Secured) -> None:
    with socket.create_connection((peers.LOOPBACK, secured.listener.port), timeout=60) as silent:
        assert b"MSA|AA" in secured.ask(secured.theirs)

        secured.listener.close()

        assert receive(silent) == b""


def test_a_certificate_that_was_renewed_is_shown_to_the_next_one(secured: Secured, tmp_path: Path) -> None:
    before = shown(secured)
    (tmp_path / "new").mkdir()
    for path, newer in zip(secured.own, mllp.certificate(tmp_path / "new", "node"), strict=True):
        shutil.move(newer, path)

    assert b"MSA|AA" in secured.ask(secured.theirs)
    assert shown(secured) != before


def shown(secured: Secured) -> bytes:
    """The certificate that the node shows."""
    with (
        socket.create_connection((peers.LOOPBACK, secured.listener.port), timeout=60) as plain,
        secured.context(secured.theirs).wrap_socket(plain, server_hostname=peers.LOOPBACK) as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""
