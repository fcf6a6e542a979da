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


def only(checks: Iterable[Check]) -> Check:
    (check,) = checks
    return check


def to_archive(port: int, *, storage_commitment: bool = False, tls: TlsSettings | None = None) -> DicomDestination:
    known = DicomDestination(name="pacs", ae_title="ARCHIVE", host=peers.LOOPBACK, port=port)
    return replace(known, storage_commitment=storage_commitment, tls=tls)


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


def test_a_certificate_is_good_short_or_a_fault(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority
) -> None:
    for shown, by, found, said in (
        (own, lasting, [OK, OK], "days"),
        (authority.issue("short"), authority, [NOTE, NOTE], ""),
        (lasting.issue("expired", days=-1), lasting, [OK, FAULT], "expired 1 day ago"),
        (replace(own, key=lasting.issue("other").key), lasting, [FAULT], "mismatch"),
        (replace(own, key=tmp_path / "nowhere.key"), lasting, [FAULT], "nowhere.key"),
    ):
        checks = list(check_certificates(with_tls(tmp_path, shown, by)))

        assert states(checks) == found, checks
        assert said in checks[-1].message
        assert {check.name for check in checks} == {"certificate orders.tls"}


def test_every_tls_table_is_looked_at_also_beside_one_that_cannot_be_read(
    tmp_path: Path, lasting: Authority, own: Identity
) -> None:
    odd = tmp_path / "trusted.pem"  # which OpenSSL alone reads
    odd.write_text(lasting.certificate.read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    settings = with_tls(tmp_path, own, lasting)
    listener = ServerTlsSettings(certificate=own.certificate, key=own.key, ca=lasting.certificate)
    believing = tuple(
        replace(to_archive(104, tls=TlsSettings(ca=ca)), name=ca.name) for ca in (odd, lasting.certificate)
    )

    checks = check_certificates(
        replace(settings, listener=replace(settings.listener, tls=listener), destinations=believing)
    )

    assert [(check.name.removeprefix("certificate "), check.state) for check in checks] == [
        *[("listener.tls", OK)] * 2,
        *[("orders.tls", OK)] * 2,
        ("destinations[1].tls", FAULT),
        ("destinations[2].tls", OK),
    ]


@pytest.mark.parametrize(
    ("case", "found", "said"),
    [
        ("takes all", [OK], ["Comprehensive SR", "Storage Commitment"]),
        ("rejects", [FAULT], ["calling AE title not recognised", "CHEX", "ARCHIVE"]),
        ("refuses reports and commitment", [FAULT, FAULT], ["Comprehensive SR Storage", "output sr"]),
        ("has no echo", [NOTE], []),
    ],
)
def test_an_archive_is_asked_what_it_takes_and_sent_nothing(
    tmp_path: Path, case: str, found: list[CheckState], said: list[str]
) -> None:
    archive = peers.ReceivingArchive(handlers=Committing().handlers if case == "takes all" else [])
    if case == "refuses reports and commitment":
        archive.refuse_class(ComprehensiveSRStorage)
    if case == "has no echo":
        archive.verify_nobody()
    with archive:
        if case == "rejects":
            archive.reject()
        checks = asked(tmp_path, to_archive(archive.port, storage_commitment=case != "has no echo"))

    assert states(checks) == found, checks
    assert [words for words in said if words not in checks[0].message] == []
    assert len(checks) == 1 or "storage_commitment" in checks[1].message
    assert archive.requests == []


def test_every_class_of_a_form_is_asked_for_and_no_destination_is_a_note(tmp_path: Path) -> None:
    archive = peers.ReceivingArchive()
    archive.refuse_class(ComprehensiveSRStorage)
    with archive:
        forms, texts = (replace(to_archive(archive.port), outputs=kinds) for kinds in (("sr3d",), ("text", "gsps")))
        refused, accepted = asked(tmp_path, forms, texts)
    (none,) = asked(tmp_path)

    assert (refused.state, accepted.state, none.state) == (FAULT, OK, NOTE)
    assert "Comprehensive SR Storage" in refused.message and "output sr3d" in refused.message
    assert "Basic Text SR Storage" in accepted.message
    assert "nothing is sent" in none.message


def test_a_closed_or_silent_peer_is_a_fault_in_time(tmp_path: Path) -> None:
    with InformationSystem() as system, socket.create_server((peers.LOOPBACK, 0)) as silent:
        began = time.monotonic()
        checks = asked(
            tmp_path,
            to_archive(silent.getsockname()[1]),
            to_archive(peers.free_port()),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=peers.free_port()),
            Hl7Destination(name="his", host=peers.LOOPBACK, port=system.port),
            limit_seconds=1.0,
        )
        took = time.monotonic() - began

    assert states(checks) == [FAULT, FAULT, FAULT, OK]
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

    assert states(checks) == [OK, FAULT, FAULT, OK, FAULT]
    assert "refuses the node's certificate" in checks[1].message
    assert "its certificate is refused" in checks[2].message
    assert "refuses the node's certificate" in checks[4].message


def test_a_file_of_audit_messages_is_looked_at(tmp_path: Path) -> None:
    settings, file = settings_for(tmp_path, archive_port=104), tmp_path / "audit.log"

    for place, found in ((file, [OK]), (tmp_path / "nowhere" / "audit.log", [FAULT]), (tmp_path, [FAULT])):
        assert states(check_audit(replace(settings, audit=AuditSettings(file=place)))) == found

    assert not file.exists()
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
        shown = [only(check_alerts(replace(settings, alerts=AlertsSettings(webhook=each)))).message for each in hooks]
        assert house.posts == []

    assert ["cannot be reached" in said for said in shown] == [False, True, True, True]
    assert "SECRET" not in "".join(shown)
    assert list(check_alerts(settings)) == []
