"""What `doctor` says of certificates and destinations; a destination hears associations and echoes and no more."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.uid import ComprehensiveSRStorage

from node.check_result import Check, CheckState
from node.commands.doctor import check_alerts, check_audit
from node.config import (
    AlertsSettings,
    AuditSettings,
    OrdersSettings,
    OrdersTlsSettings,
    ServerTlsSettings,
    Settings,
    WebhookSettings,
)
from node.health.checks import check_certificates, check_destinations
from node.settings.destinations import DicomDestination, Hl7Destination, TlsSettings
from tests.support import peers
from tests.support.certificates import Authority, Identity
from tests.support.committing import Committing
from tests.support.mllp import InformationSystem
from tests.support.service import settings_for
from tests.support.web_archive import web_archive


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.found(tmp_path_factory.mktemp("lasting"), days=400)


@pytest.fixture(scope="module")
def own(lasting: Authority) -> Identity:
    return lasting.issue("own", days=400)


def with_tls(folder: Path, identity: Identity, authority: Authority) -> Settings:
    """Settings of a node whose port for orders has a certificate."""
    tls = OrdersTlsSettings(certificate=identity.certificate, key=identity.key, ca=authority.certificate)
    settings = settings_for(folder, archive_port=104)
    return replace(settings, orders=OrdersSettings(port=0, hosts=(peers.LOOPBACK,), tls=tls))


def states(checks: Iterable[Check]) -> list[CheckState]:
    return [check.state for check in checks]


def to_archive(port: int, *, storage_commitment: bool = False, tls: TlsSettings | None = None) -> DicomDestination:
    return DicomDestination(
        name="pacs",
        ae_title="ARCHIVE",
        host=peers.LOOPBACK,
        port=port,
        storage_commitment=storage_commitment,
        tls=tls,
    )


def asked(tmp_path: Path, *destinations: DicomDestination | Hl7Destination, limit_seconds: float = 10.0) -> list[Check]:
    named = tuple(replace(each, name=f"{each.name}{number}") for number, each in enumerate(destinations))
    settings = replace(settings_for(tmp_path / "node", archive_port=104), destinations=named)
    return list(check_destinations(settings, limit_seconds=limit_seconds))


def secured(identity: Identity, authority: Authority) -> ssl.SSLContext:
    """The context of a server that asks for a certificate of this authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(identity.certificate, identity.key)
    return context


def shown(identity: Identity, authority: Authority) -> TlsSettings:
    return TlsSettings(ca=authority.certificate, certificate=identity.certificate, key=identity.key)


OK, NOTE, FAULT = CheckState.OK, CheckState.NOTE, CheckState.FAULT
CERTIFICATES: dict[str, tuple[list[CheckState], str]] = {
    "lasting": ([OK, OK], "days"),
    "short": ([NOTE, NOTE], ""),
    "expired": ([OK, FAULT], "expired 1 day ago"),
    "with another key": ([FAULT], "mismatch"),
    "without its key": ([FAULT], "nowhere.key"),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_a_certificate_is_good_short_or_a_fault(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority, case: str
) -> None:
    shown, by = {
        "lasting": lambda: (own, lasting),
        "short": lambda: (authority.issue("short"), authority),
        "expired": lambda: (lasting.issue("expired", days=-1), lasting),
        "with another key": lambda: (replace(own, key=lasting.issue("other").key), lasting),
        "without its key": lambda: (replace(own, key=tmp_path / "nowhere.key"), lasting),
    }[case]()

    checks = list(check_certificates(with_tls(tmp_path, shown, by)))

    found, said = CERTIFICATES[case]
    assert states(checks) == found
    assert said in checks[-1].message
    assert {check.name for check in checks} == {"certificate orders.tls"}


def test_every_tls_table_is_looked_at(tmp_path: Path, lasting: Authority, own: Identity) -> None:
    settings = with_tls(tmp_path, own, lasting)
    listener = ServerTlsSettings(certificate=own.certificate, key=own.key, ca=lasting.certificate)
    believing = to_archive(104, tls=TlsSettings(ca=lasting.certificate))

    checks = check_certificates(
        replace(settings, listener=replace(settings.listener, tls=listener), destinations=(believing,))
    )

    assert [check.name.removeprefix("certificate ") for check in checks] == [
        *["listener.tls"] * 2,
        *["orders.tls"] * 2,
        "destinations[1].tls",
    ]


def test_an_authority_that_only_openssl_reads_hides_no_other_certificate(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority
) -> None:
    odd = tmp_path / "trusted.pem"
    odd.write_text(lasting.certificate.read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    settings = with_tls(tmp_path, authority.issue("short"), lasting)

    checks = list(check_certificates(replace(settings, destinations=(to_archive(104, tls=TlsSettings(ca=odd)),))))

    assert [(check.name, check.state) for check in checks] == [
        ("certificate orders.tls", OK),
        ("certificate orders.tls", NOTE),
        ("certificate destinations[1].tls", FAULT),
    ]


def test_no_destination_is_a_note(tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path, archive_port=104), destinations=())

    (check,) = check_destinations(settings)

    assert (check.state, "nothing is sent" in check.message) == (CheckState.NOTE, True)


ARCHIVES: dict[str, tuple[list[CheckState], list[str]]] = {
    "takes all": ([OK], ["Comprehensive SR", "Storage Commitment"]),
    "rejects": ([FAULT], ["calling AE title not recognised", "CHEX", "ARCHIVE"]),
    "refuses reports and commitment": ([FAULT, FAULT], ["Comprehensive SR Storage", "output sr"]),
    "has no echo": ([NOTE], []),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_an_archive_is_asked_what_it_takes_and_sent_nothing(tmp_path: Path, case: str) -> None:
    archive = peers.ReceivingArchive(handlers=Committing().handlers if case == "takes all" else [])
    if case == "refuses reports and commitment":
        archive.refuse_class(ComprehensiveSRStorage)
    if case == "has no echo":
        archive.verify_nobody()
    with archive:
        if case == "rejects":
            archive.reject()
        checks = asked(tmp_path, to_archive(archive.port, storage_commitment=case != "has no echo"))

    found, said = ARCHIVES[case]
    assert states(checks) == found, checks
    assert [words for words in said if words not in checks[0].message] == []
    assert len(checks) == 1 or "storage_commitment" in checks[1].message
    assert archive.requests == []


def test_every_class_of_a_form_is_asked_for(tmp_path: Path) -> None:
    archive = peers.ReceivingArchive()
    archive.refuse_class(ComprehensiveSRStorage)
    with archive:
        forms, texts = (
            (replace(to_archive(archive.port), outputs=outputs)) for outputs in (("sr3d",), ("text", "gsps"))
        )
        refused, accepted = asked(tmp_path, forms, texts)

    assert (refused.state, accepted.state) == (FAULT, OK)
    assert "Comprehensive SR Storage" in refused.message and "output sr3d" in refused.message
    assert "Basic Text SR Storage" in accepted.message


def test_a_closed_or_silent_peer_is_a_fault_in_time(tmp_path: Path) -> None:
    closed = Hl7Destination(name="ris", host=peers.LOOPBACK, port=peers.free_port())
    with InformationSystem() as system, socket.create_server((peers.LOOPBACK, 0)) as silent:
        began = time.monotonic()
        checks = asked(
            tmp_path,
            to_archive(silent.getsockname()[1]),
            to_archive(peers.free_port()),
            closed,
            Hl7Destination(name="his", host=peers.LOOPBACK, port=system.port),
            limit_seconds=1.0,
        )
        took = time.monotonic() - began

    assert states(checks) == [CheckState.FAULT, CheckState.FAULT, CheckState.FAULT, CheckState.OK]
    assert "in 1 s" in checks[0].message
    assert "Connection refused" in checks[1].message and "Connection refused" in checks[2].message
    assert took < 3
    assert system.kept == []


def test_a_tls_handshake_is_tried_and_a_refusal_is_a_fault(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority
) -> None:
    stranger, server = authority.issue("stranger"), secured(own, lasting)
    with peers.ReceivingArchive(tls=server) as archive, InformationSystem(tls=server) as system:
        good, refused = shown(own, lasting), replace(shown(stranger, authority), ca=lasting.certificate)
        unbelieved = shown(own, authority)
        checks = asked(
            tmp_path,
            to_archive(archive.port, tls=good),
            to_archive(archive.port, tls=refused),
            to_archive(archive.port, tls=unbelieved),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, tls=good),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, tls=refused),
        )

    assert states(checks) == [CheckState.OK, CheckState.FAULT, CheckState.FAULT, CheckState.OK, CheckState.FAULT]
    assert "refuses the node's certificate" in checks[1].message
    assert "its certificate is refused" in checks[2].message
    assert "refuses the node's certificate" in checks[4].message


def test_a_file_of_audit_messages_is_looked_at(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)

    states = [
        [check.state for check in check_audit(replace(settings, audit=AuditSettings(file=file)))]
        for file in (tmp_path / "audit.log", tmp_path / "nowhere" / "audit.log", tmp_path)
    ]

    assert states == [[CheckState.OK], [CheckState.FAULT], [CheckState.FAULT]]
    assert not (tmp_path / "audit.log").exists()
    assert list(check_audit(settings)) == []


def test_the_webhook_of_alerts_is_tried_without_an_alert(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    with web_archive() as house:
        hook = WebhookSettings(url=house.url)
        hooks = [
            hook,
            replace(hook, url=f"http://{peers.LOOPBACK}:1/hook/SECRET"),
            replace(hook, url=house.url.replace("http:", "https:")),
            replace(hook, token_file=tmp_path / "nowhere"),
        ]
        alerts = [AlertsSettings(webhook=each) for each in hooks]
        shown = [check.message for each in alerts for check in check_alerts(replace(settings, alerts=each))]
        assert house.posts == []

    assert ["cannot be reached" in said for said in shown] == [False, True, True, True]
    assert "SECRET" not in "".join(shown)
    assert list(check_alerts(settings)) == []
