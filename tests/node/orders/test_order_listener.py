"""The order port, plain and with TLS: what is answered to whom, who is let in, and that nobody holds it."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock
from zoneinfo import ZoneInfo

import hl7
import pytest
from structlog.testing import capture_logs

from node.config import OrdersSettings, OrdersTlsSettings
from node.hl7.acknowledgment import read_acknowledgment
from node.metrics import Metrics
from node.net import callers
from node.orders import listener as listener_module
from node.orders.listener import OrderListener
from node.orders.store import OrderStore
from tests.node.orders.test_orders import OMI, ORM, PATIENT, STUDY
from tests.node.test_metrics import samples
from tests.support import mllp, peers
from tests.support.certificates import Authority, Identity
from tests.support.mllp import BEFORE
from tests.support.ordered import find, ordered


@pytest.fixture
def store(tmp_path: Path) -> OrderStore:
    return OrderStore(tmp_path)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def listener(store: OrderStore, metrics: Metrics) -> Iterator[OrderListener]:
    with listening(store, metrics) as listener:
        yield listener


@contextmanager
def listening(
    store: OrderStore,
    metrics: Metrics,
    *,
    hosts: tuple[str, ...] = (peers.LOOPBACK,),
    tls: OrdersTlsSettings | None = None,
    patience_seconds: float = 30.0,
    character_set: str = "",
) -> Iterator[OrderListener]:
    settings = OrdersSettings(port=0, hosts=hosts, tls=tls, character_set=character_set)
    with (
        mock.patch.object(listener_module, "_PATIENCE_SECONDS", patience_seconds),
        closing(OrderListener(settings, store, metrics, zone=ZoneInfo("Europe/Berlin"))) as listener,
    ):
        yield listener


def refused(metrics: Metrics) -> dict[str, float]:
    """How often something was refused, by reason, where it was at all."""
    found = samples(metrics.registry, "cxr_orders_refused_total")
    return {reason: count for (reason,), count in found.items() if count}


def codes(answers: Sequence[hl7.Message]) -> list[str]:
    """The acknowledgment code of each answer."""
    return [str(answer.segment("MSA")[1]) for answer in answers]


def test_orders_are_answered_in_turn_once_they_are_kept(
    listener: OrderListener, store: OrderStore, metrics: Metrics
) -> None:
    answers = mllp.ask(listener.port, ORM.encode(), f"{OMI}\rNTE|1||{'x' * 900_000}".encode())

    assert codes(answers) == ["AA", "AA"]
    assert [str(answer.segment("MSA")[2]) for answer in answers] == ["C1", "C2"]
    assert find(store, study_uid="1.9", accession="A-18") is not None
    assert samples(metrics.registry, "cxr_orders_total") == {("kept",): 2.0, ("cancelled",): 0.0, ("refused",): 0.0}
    assert refused(metrics) == {}


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (ORM.replace("ORM^O01", "ADT^A08"), "AR", "updates and merges of patients (ADT) are not offered"),
        (ORM.replace("ORC|NW", "ZZZ|NW"), "AE", ""),
        (ORM.replace(PATIENT, "PID|||7" + "~a" * 200), "AE", "102"),  # identifiers without end
        ("GET / HTTP/1.1", "AR", ""),
        (PATIENT, "AR", ""),
    ],
)
def test_a_bad_message_is_answered_without_a_word_of_the_patient(
    listener: OrderListener, store: OrderStore, metrics: Metrics, content: str, code: str, words: str
) -> None:
    answers = mllp.ask(listener.port, content.encode(), OMI.encode())

    assert codes(answers) == [code, "AA"]
    assert words in str(answers[0])
    assert not any(secret in str(answers) for secret in ("Zyxwvu", "PID-7788"))
    assert find(store, study_uid="1.9", accession="A-17") is None
    assert refused(metrics) == {"content": 1.0}


def test_a_message_that_names_no_set_is_read_in_that_of_the_site(store: OrderStore, metrics: Metrics) -> None:
    with listening(store, metrics, character_set="GB 18030-2000") as listener:
        answers = mllp.ask(listener.port, ORM.replace("F1^RIS", "王1^RIS").encode("gb18030"))

    found = find(store, study_uid=STUDY, accession="A-17")
    assert (codes(answers), found and found.filler_number) == (["AA"], ("王1", "RIS"))


def test_an_order_that_cannot_be_kept_is_not_accepted(
    listener: OrderListener, metrics: Metrics, tmp_path: Path
) -> None:
    (tmp_path / "orders").write_text("no folder", encoding="utf-8")

    (answer,) = mllp.ask(listener.port, ORM.encode())

    verdict = read_acknowledgment(str(answer).encode())
    assert (verdict.code, verdict.conditions) == ("AR", ("207",))
    assert refused(metrics) == {"not_kept": 1.0}


def test_what_is_no_frame_ends_its_own_connection_only(listener: OrderListener) -> None:
    for content in (b"\x0bMSH|^~\\&|half", b"\x16\x03\x01 TLS", b"no mark\x1c\r", b""):
        with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
            connection.sendall(content)

        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]


def test_an_order_from_elsewhere_is_not_taken(store: OrderStore, metrics: Metrics) -> None:
    with listening(store, metrics, hosts=("192.0.2.1",)) as listener:
        assert mllp.ask(listener.port, ORM.encode()) == []
    assert store.counts() == {"stat": 0, "asap": 0, "routine": 0}
    assert refused(metrics) == {"caller": 1.0}

    with listening(store, metrics, hosts=(f"::ffff:{peers.LOOPBACK}",)) as listener:  # however its address is written
        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]


def test_an_open_connection_ends_with_the_node(listener: OrderListener) -> None:
    with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        assert connection.recv(65536)
        (ours,) = listener._open
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "one that is gone is noticed"

        listener.close()

        assert connection.recv(65536) == b""
        assert not listener.is_listening


def test_the_longest_silent_connection_makes_room_for_the_21st(listener: OrderListener, metrics: Metrics) -> None:
    with ExitStack() as everything:
        address = (peers.LOOPBACK, listener.port)
        open_ones = [everything.enter_context(socket.create_connection(address, timeout=60)) for _ in range(20)]
        for busy in (open_ones[-1], open_ones[0]):  # in this order: once the last is answered, all were let in
            busy.sendall(mllp.START + OMI.encode() + mllp.END)
            assert busy.recv(65536)

        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]
        assert open_ones[1].recv(65536) == b""
        assert refused(metrics) == {"silent": 1.0}
        open_ones[0].sendall(mllp.START + OMI.encode() + mllp.END)
        assert open_ones[0].recv(65536)
        assert samples(metrics.registry, "cxr_order_connections_open")[()] in (19.0, 20.0)  # one may not have ended yet

    listener.close()
    assert samples(metrics.registry, "cxr_order_connections_open") == {(): 0.0}


def test_refused_messages_keep_no_order_behind_them_out(listener: OrderListener, metrics: Metrics) -> None:
    with mock.patch.object(callers, "_TOLD_EVERY_SECONDS", 0.0), capture_logs() as lines:
        answers = mllp.ask(listener.port, *[b"GET / HTTP/1.1"] * 12, ORM.encode())

        def told() -> int:
            return sum(line.get("times", 1) for line in lines if line["event"] == "order.refused")

        peers.wait_until(lambda: told() == 12, what="each is in the log")

    assert codes(answers) == ["AR"] * 12 + ["AA"]
    assert refused(metrics) == {"content": 12.0}


def test_who_never_reads_an_answer_is_left(store: OrderStore, metrics: Metrics) -> None:
    message = mllp.START + ORM.replace("|C1|", f"|{'C' * 900_000}|").encode() + mllp.END  # its answer is as long
    with (
        listening(store, metrics, patience_seconds=0.5) as listener,
        socket.create_connection((peers.LOOPBACK, listener.port), timeout=20) as connection,
        pytest.raises(ConnectionError),
    ):
        for _ in range(100):
            connection.sendall(message)

    assert refused(metrics) == {"connection": 1.0}


@pytest.mark.drill(part="processes")
def test_a_disk_that_hangs_does_not_hold_up_the_end(listener: OrderListener, store: OrderStore, tmp_path: Path) -> None:
    store.keep(ordered(accession="A-17"))
    (path,) = tmp_path.rglob("*.json")
    path.unlink()
    os.mkfifo(path)
    with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        hand = _writer(path)  # the order is in hand from here on
        try:
            before = time.monotonic()
            listener.close()
            assert time.monotonic() - before < 8.0
        finally:
            os.close(hand)


def _writer(fifo: Path) -> int:
    """Open a pipe for writing as soon as somebody reads it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError):
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise AssertionError("nobody read the order within 60 s")


def test_an_order_is_read_behind_what_others_send_first(listener: OrderListener) -> None:
    for name, before in BEFORE.items():
        (answer,) = mllp.ask(listener.port, before + ORM.encode())

        assert (str(answer.segment("MSA")[1]), str(answer.segment("MSA")[2])) == ("AA", "C1"), name


BATCHES = (
    f"FHS|^~\\&|RIS\rBHS|^~\\&|RIS\r{ORM}\rBTS|1\rFTS|1",
    f"BHS|^~\\&|RIS\r{ORM}\rBTS|1",
    "BHS|^~\\&|RIS\rBTS|0",
    f"{ORM}\r{ORM.replace('A-17', 'A-99')}",
    f"{ORM}\rBTS|1",
    f"BHS|^~\\&|RIS\n{ORM}\nBTS|1",
)


def test_a_batch_is_refused_in_words(listener: OrderListener, store: OrderStore, metrics: Metrics) -> None:
    for content in BATCHES:
        batch, single = mllp.ask(listener.port, content.encode(), ORM.replace("A-17", "A-18").encode())

        assert codes([batch, single]) == ["AR", "AA"], content
        assert "send each message in its own frame" in str(batch.segment("MSA")[3])
        assert str(batch.segment("ERR")[3][0][0]) == "200"
    assert refused(metrics) == {"content": len(BATCHES)}
    assert find(store, study_uid="", accession="A-17") is None


def test_a_cancelled_order_is_removed_and_counted(
    listener: OrderListener, store: OrderStore, metrics: Metrics, tmp_path: Path
) -> None:
    answers = mllp.ask(listener.port, ORM.encode(), ORM.replace("ORC|NW|", "ORC|CA|").encode())

    assert codes(answers) == ["AA", "AA"]
    assert find(store, study_uid=STUDY, accession="A-17") is None
    assert list((tmp_path / "orders").glob("*.json")) == []
    assert samples(metrics.registry, "cxr_orders_total") == {("kept",): 1.0, ("cancelled",): 1.0, ("refused",): 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A listener with TLS, the authority that it believes, and the certificate of one whom that knows."""

    listener: OrderListener
    metrics: Metrics
    authority: Authority
    theirs: Identity

    def ask(self, identity: Identity | None, content: str = ORM) -> bytes:
        """Send a message with a certificate or none; what comes back, nothing where the connection ends."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        with (
            socket.create_connection((peers.LOOPBACK, self.listener.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=peers.LOOPBACK) as connection,
        ):
            connection.sendall(mllp.START + content.encode() + mllp.END)
            return connection.recv(65536)


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[Secured]:
    metrics = Metrics()
    own, theirs = authority.issue("node"), authority.issue("ris")
    tls = OrdersTlsSettings(certificate=own.certificate, key=own.key, ca=authority.certificate)
    with listening(OrderStore(tmp_path / "storage"), metrics, tls=tls, patience_seconds=20) as listener:
        yield Secured(listener=listener, metrics=metrics, authority=authority, theirs=theirs)


def test_an_order_comes_in_from_whom_the_authority_knows(secured: Secured) -> None:
    assert b"MSA|AA|C1" in secured.ask(secured.theirs)
    assert b"MSA|AA|C2" in secured.ask(secured.theirs, OMI)
    assert refused(secured.metrics) == {}
    assert 0 < samples(secured.metrics.registry, "cxr_certificate_days")[("orders",)] < 1000


def test_a_sender_without_a_good_certificate_or_in_plain_text_is_refused(secured: Secured, tmp_path: Path) -> None:
    for identity in (None, Authority.found(tmp_path / "stranger").issue("stranger")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secured.ask(identity)
    with socket.create_connection((peers.LOOPBACK, secured.listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        assert b"MSA" not in b"".join(iter(lambda: receive(connection), b""))

    peers.wait_until(lambda: refused(secured.metrics) == {"tls": 3.0}, what="each is counted", limit_seconds=60)


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
