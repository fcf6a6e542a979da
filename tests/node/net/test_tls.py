"""DICOM TLS: who gets in with a certificate, who does not, and how certificates are renewed."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node.config import ListenerSettings, ServerTlsSettings, Settings
from node.errors import ConfigError
from node.net.tls import (
    ServerTls,
    authorities_days_left,
    cause,
    check_files,
    client_context,
    days_left,
    mistakes_in,
    system_context,
)
from node.settings.destinations import TlsSettings
from tests.support import films, peers
from tests.support.certificates import Authority, Identity
from tests.support.listening import Node, connect, listening
from tests.support.service import settings_for


@pytest.fixture(scope="module")
def scanner(authority: Authority) -> Identity:
    return authority.issue("scanner")


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> ServerTlsSettings:
    """Files of the node's own, which a test may change."""
    own = ServerTlsSettings(
        port=0, certificate=tmp_path / "node.pem", key=tmp_path / "node.key", ca=tmp_path / "ca.pem"
    )
    install(authority.issue("node"), own)
    shutil.copy(authority.certificate, own.ca)
    return own


@pytest.fixture
def node(tmp_path: Path, tls: ServerTlsSettings) -> Iterator[Node]:
    with listening(tmp_path / "data", settings=ListenerSettings(tls=tls), request_seconds=60.0) as running:
        yield running


def install(identity: Identity, tls: ServerTlsSettings) -> None:
    shutil.copy(identity.certificate, tls.certificate)
    shutil.copy(identity.key, tls.key)


def tls_port(node: Node) -> int:
    assert node.listener.tls_port is not None
    return node.listener.tls_port


def echo(node: Node, authority: Authority, identity: Identity | None, *, calling_ae: str = "TESTER") -> bool:
    return call(tls_port(node), authority, identity, calling_ae=calling_ae)


def call(port: int, authority: Authority, identity: Identity | None, *, calling_ae: str = "TESTER") -> bool:
    """Ask for an echo with dcmtk; whether it was answered."""
    tls = ["+tla"] if identity is None else ["+tls", str(identity.key), str(identity.certificate)]
    command = [peers.require("echoscu"), *tls, "+cf", str(authority.certificate), "+px", "-to", "60"]
    command += ["-aet", calling_ae, "-aec", "CHEX", peers.LOOPBACK, str(port)]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def handshake(
    node: Node,
    authority: Authority,
    identity: Identity | None = None,
    *,
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> tuple[str | None, str]:
    """Connect with Python's own TLS and wait for the node's first word; version and serial number of its certificate.

    Raises OSError when the node refuses: in TLS 1.3 a client learns only then that its certificate was not taken.
    """
    context = ssl.create_default_context(cafile=authority.certificate)
    context.maximum_version = newest
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    with context.wrap_socket(connect(tls_port(node)), server_hostname=peers.LOOPBACK) as connection:
        connection.sendall(b"\x07\0\0\0\0\4\0\0\0\0")
        connection.recv(1)
        return connection.version(), str((connection.getpeercert() or {})["serialNumber"])


def test_dcmtk_stores_a_film_over_tls(node: Node, authority: Authority, scanner: Identity, tmp_path: Path) -> None:
    film = films.thumbnail()
    path = films.saved(tmp_path, film)
    command = [peers.require("storescu"), "+tls", str(scanner.key), str(scanner.certificate)]
    command += ["+cf", str(authority.certificate), "-aet", "TESTER", "-aec", "CHEX", peers.LOOPBACK]

    sent = subprocess.run([*command, str(tls_port(node)), str(path)], check=False, capture_output=True, timeout=60)

    assert sent.returncode == 0, sent.stderr
    (instance,) = node.spool.instances(film.StudyInstanceUID)
    assert instance.sop_instance_uid == film.SOPInstanceUID
    assert not echo(node, authority, scanner, calling_ae="NOBODY"), "the allow-list holds over TLS, too"
    node.wait_for_refusal("caller")


@pytest.mark.parametrize("kind", ["none", "stranger", "expired"])
def test_a_caller_without_a_good_certificate_stops_no_other(
    node: Node, authority: Authority, scanner: Identity, tmp_path: Path, kind: str
) -> None:
    shown = None
    if kind == "stranger":
        shown = Authority.found(tmp_path / "stranger").issue("scanner")
    elif kind == "expired":
        shown = authority.issue("expired", days=-1)

    with pytest.raises(OSError):  # an alert, or a connection that is gone
        handshake(node, authority, shown)
    assert not echo(node, authority, shown)

    node.wait_for_refusal("tls", count=2)
    assert echo(node, authority, scanner)


HELLO_1_1 = bytes.fromhex("160301002f 0100002b 0302") + bytes(32) + bytes.fromhex("00 0004 c013002f 0100")


@pytest.mark.parametrize(
    "said",
    [b"", b"\x16\3\1", b"\x01\0\0\0\0\xcd" + bytes(205), b"GET / HTTP/1.1\r\n\r\n", HELLO_1_1],
    ids=["nothing", "the beginning of a handshake", "plain DICOM", "HTTP", "TLS 1.1"],
)
def test_who_makes_no_good_handshake_holds_nobody_up_and_is_refused_in_time(
    tmp_path: Path, tls: ServerTlsSettings, authority: Authority, scanner: Identity, said: bytes
) -> None:
    with (
        listening(tmp_path / "data", settings=ListenerSettings(tls=tls), request_seconds=2.0) as node,
        connect(tls_port(node)) as odd,
    ):
        odd.sendall(said)

        assert echo(node, authority, scanner)
        node.wait_for_refusal("tls")
        answer = odd.recv(1000)

    if said in (b"", b"\x16\3\1"):
        assert answer == b""
    if said == HELLO_1_1:
        assert (answer[0], answer[-1]) == (0x15, 70)  # RFC 5246 7.2.2: protocol_version


def test_tls_1_3_is_preferred_and_weak_ciphers_are_refused(node: Node, authority: Authority, scanner: Identity) -> None:
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(scanner.certificate, scanner.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AES:!AESGCM")

    with pytest.raises(ssl.SSLError), connect(tls_port(node)) as plain:
        context.wrap_socket(plain, server_hostname=peers.LOOPBACK)

    node.wait_for_refusal("tls")
    assert handshake(node, authority, scanner)[0] == "TLSv1.3"
    assert handshake(node, authority, scanner, newest=ssl.TLSVersion.TLSv1_2)[0] == "TLSv1.2"


RFC_9325 = {
    f"ECDHE-{key}-{cipher}" for key in ("RSA", "ECDSA") for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384")
}


def test_every_side_of_a_connection_offers_only_what_bcp_195_recommends(tls: ServerTlsSettings) -> None:
    server = ServerTls("listener", tls).context()
    clients = [client_context(TlsSettings(ca=tls.ca)), system_context(), system_context(tls.ca)]

    assert server.options & ssl.OP_NO_RENEGOTIATION
    assert {context.check_hostname for context in clients} == {True}
    for context in (server, *clients):
        assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED)
        assert {str(each["name"]) for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"} == RFC_9325


def test_renewed_files_are_used_without_a_restart_once_they_fit(
    node: Node, authority: Authority, scanner: Identity, tls: ServerTlsSettings, tmp_path: Path
) -> None:
    before = handshake(node, authority, scanner)
    renewed, other = authority.issue("renewed", days=30), Authority.found(tmp_path / "other")

    with capture_logs() as said:
        shutil.copy(renewed.certificate, tls.certificate)
        assert handshake(node, authority, scanner) == before
        tls.ca.unlink()
        assert handshake(node, authority, scanner) == before
        shutil.copy(authority.certificate, tls.ca)
        install(renewed, tls)
        days = node.count("cxr_certificate_days", name="listener")
        assert days == pytest.approx(30, abs=0.1), "before anybody calls"
        assert handshake(node, authority, scanner) != before
        assert not echo(node, authority, other.issue("scanner"))
        tls.ca.write_bytes(tls.ca.read_bytes() + other.certificate.read_bytes())
        assert echo(node, authority, other.issue("scanner")), "an authority that is added counts"

    told = [(line["event"], line["name"]) for line in said if line["event"].startswith("certificate.")]
    kinds = ("certificate.refused", "certificate.refused", "certificate.reloaded", "certificate.reloaded")
    assert told == [(kind, "listener") for kind in kinds]


def test_missing_or_wrong_tls_files_are_named(scanner: Identity, tls: ServerTlsSettings, tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path, archive_port=4242), listener=ListenerSettings(tls=tls))
    check_files(settings)
    own = TlsSettings(ca=tls.ca, certificate=tls.certificate, key=tls.key)
    assert [*mistakes_in("destinations.pacs.tls", own)] == []
    [mistake] = mistakes_in("destinations.pacs.tls", replace(own, key=scanner.key))
    assert mistake.startswith("destinations.pacs.tls: ca, certificate and key cannot be used together (")

    shutil.copy(scanner.key, tls.key)
    assert mistakes(settings) == [
        "listener.tls: ca, certificate and key cannot be used together (key values mismatch); correct the files"
    ]
    tls.ca.write_text("no certificate", encoding="utf-8")
    assert mistakes(settings)[0].startswith("listener.tls: ca, certificate and key cannot be used together (")
    tls.certificate.unlink()
    assert mistakes(settings) == [f"listener.tls.certificate: {tls.certificate} does not exist; correct the path"]


def test_why_a_request_failed_is_told_without_the_text_of_others() -> None:
    outer = RuntimeError("Doe^Jane")
    for inner in (ValueError("Doe^Jane"), KeyError("Doe^Jane")):
        outer.__cause__ = inner
        assert cause(outer) == "RuntimeError"

    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert cause(outer) == "Connection refused"


def mistakes(settings: Settings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_files(settings)
    return list(caught.value.mistakes)


def test_days_are_counted_to_the_end_of_a_certificate(authority: Authority, tmp_path: Path) -> None:
    week, month = (authority.issue(name, days=days).certificate for name, days in (("week", 7), ("month", 30)))
    assert days_left(week) == pytest.approx(7, abs=0.1)
    both = tmp_path / "both.pem"
    both.write_bytes(month.read_bytes() + week.read_bytes())
    assert days_left(both) == pytest.approx(7, abs=0.1), "of a chain, the first that ends"
    assert authorities_days_left(both) == pytest.approx(30, abs=0.1), "of authorities, the last"
    assert days_left(authority.issue("gone", days=-1).certificate) == pytest.approx(-1, abs=0.1)


def test_a_key_with_a_password_is_refused_and_never_asked_for(tls: ServerTlsSettings) -> None:
    command = [peers.require("openssl"), *f"ec -in {tls.key} -out {tls.key} -aes128 -passout pass:secret".split()]
    subprocess.run(command, check=True, capture_output=True)

    with pytest.raises(OSError, match=r"(?i)bad|decrypt|password|pem"):
        ServerTls("listener", tls)
