"""One night of a node with an audit trail: what a collector hears of it, by a real rsyslog over TLS."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from node.config import AuditSettings
from tests.paths import FIXTURES
from tests.support import films, peers
from tests.support.certificates import Authority
from tests.support.collectors import Collector, Forwarder
from tests.support.peers import LOOPBACK, ReceivingArchive, wait_until
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="kills")

SCHEMA = etree.RelaxNG(etree.parse(FIXTURES / "audit_message.rng"))
FILM = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "SECRET-7"})
STUDY = str(FILM.StudyInstanceUID)


def told(messages: Sequence[str]) -> Counter[tuple[str | None, ...]]:
    """EventID, EventTypeCode and outcome of each message, all of which have to be valid."""
    found: Counter[tuple[str | None, ...]] = Counter()
    for text in messages:
        message = etree.fromstring(text.partition("\N{ZERO WIDTH NO-BREAK SPACE}")[2].encode())
        SCHEMA.assertValid(message)
        (identification,) = message.findall("EventIdentification")
        codes = (identification.find(name) for name in ("EventID", "EventTypeCode"))
        values = [None if code is None else code.get("originalText") for code in codes]
        found[(*values, identification.get("EventOutcomeIndicator"))] += 1
    return found


def test_a_killed_node_tells_everything_in_order(tmp_path: Path) -> None:
    authority = Authority.found(tmp_path / "ca")
    file, collector = tmp_path / "audit.log", Collector(authority)
    audit = AuditSettings(file=file)

    with ReceivingArchive() as archive:
        settings = replace(settings_for(tmp_path / "storage", archive_port=archive.port), audit=audit)
        with Service(settings) as node:
            peers.send(FILM, port=node.dicom_port)
            peers.send(FILM, port=node.dicom_port, calling_ae="STRANGER")
            node.wait_for("delivery.sent", count=2)
            page = http.client.HTTPConnection(LOOPBACK, node.http_port, timeout=30)
            page.request("GET", f"/studies/{STUDY}")
            assert page.getresponse().status == 200
            page.close()
            node.wait_for("study.viewed")
            wait_until(lambda: len(file.read_bytes().splitlines()) == 9, what="nine messages")
            node.kill()  # SIGKILL
        with collector, Forwarder(tmp_path / "rsyslog", authority, file=file, port=collector.port):
            with Service(settings) as node:
                assert node.stop() == 0
            written = file.read_text(encoding="utf-8").splitlines()
            collector.wait_for(len(written))

    assert collector.messages == written
    assert told(collector.messages) == {
        ("Application Activity", "Application Start", "0"): 2,
        ("DICOM Instances Transferred", None, "0"): 3,
        ("DICOM Instances Accessed", None, "0"): 2,
        ("Begin Transferring DICOM Instances", None, "0"): 2,
        ("Security Alert", "Node Authentication", "4"): 1,
        ("Application Activity", "Application Stop", "0"): 1,
    }
    assert not any(secret in "".join(collector.messages) for secret in ("Zyx", "SECRET-7"))
