"""The file of audit messages: what is kept and lost on disk."""

from __future__ import annotations

import http.client
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree
from structlog.testing import capture_logs

from node import log
from node.audit.message import Reporter
from node.audit.trail import Trail, recording
from node.config import AuditSettings
from node.errors import InputError
from node.metrics import Metrics
from tests.paths import FIXTURES
from tests.support import films, peers
from tests.support.certificates import Authority
from tests.support.collectors import Collector, Forwarder
from tests.support.peers import LOOPBACK, ReceivingArchive, wait_until
from tests.support.service import Service, settings_for

REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)
SCHEMA = etree.RelaxNG(etree.parse(FIXTURES / "audit_message.rng"))
FILM = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "SECRET-7"})
STUDY = str(FILM.StudyInstanceUID)


@contextmanager
def trail_to(file: Path, metrics: Metrics | None = None) -> Iterator[Trail]:
    trail = Trail(file, reporter=REPORTER, metrics=metrics or Metrics(), poll_seconds=0.1)
    try:
        yield trail
    finally:
        trail.close()


def view(trail: Trail, *numbers: int) -> None:
    """Note that studies with these numbers were opened."""
    for number in numbers:
        trail.note({"event": "study.viewed", "study": f"1.2.{number}", "user": "ada"})


def studies(lines: list[str]) -> list[int]:
    """The numbers of the studies in messages, each of which has to be whole."""
    found = []
    for line in lines:
        header, _, text = line.partition(" \N{ZERO WIDTH NO-BREAK SPACE}")
        assert header.startswith("<85>1 ")
        (study,) = etree.fromstring(text.encode()).findall("ParticipantObjectIdentification")
        found.append(int(study.get("ParticipantObjectID", "").removeprefix("1.2.")))
    return found


def lost(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("cxr_audit_lost_total")


def kept(file: Path) -> int:
    """How many messages a file has."""
    return file.read_bytes().count(b"\n")


def test_the_file_is_private_and_holds_a_message_a_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_bytes(b"<85>1 cut off")
    with trail_to(file) as trail:
        view(trail, 1, 2)
    with trail_to(file) as trail:
        view(trail, 3)

    first, *rest = file.read_text(encoding="utf-8").splitlines()
    assert first == "<85>1 cut off"
    assert studies(rest) == [1, 2, 3]


def test_a_new_file_has_mode_0600(tmp_path: Path) -> None:
    with trail_to(tmp_path / "audit.log"):
        assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_a_renamed_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    with trail_to(file) as trail:
        view(trail, 1)
        wait_until(lambda: file.stat().st_size > 0, what="a first message")
        file.rename(tmp_path / "audit.log.1")
        view(trail, 2)

    assert studies(file.read_text(encoding="utf-8").splitlines()) == [2]


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    nowhere = AuditSettings(file=tmp_path / "nowhere" / "audit.log")

    with (
        pytest.raises(InputError, match=r"audit\.file .* cannot be written \(No such file or directory\)"),
        recording(replace(settings, audit=nowhere), Metrics(), executor="node"),
    ):
        pass


def test_messages_outlast_a_disk_that_fails_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    metrics = Metrics()
    with trail_to(folder / "audit.log", metrics) as trail:
        folder.rename(tmp_path / "gone")
        view(trail, 1)
        view(trail, 2)
        folder.mkdir()
        wait_until(lambda: (folder / "audit.log").exists(), what="a new file")

    assert studies((folder / "audit.log").read_text(encoding="utf-8").splitlines()) == [1, 2]
    assert lost(metrics) == 0


@pytest.mark.drill(part="processes")
def test_what_a_disk_refuses_for_long_is_counted_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    metrics = Metrics()
    with capture_logs() as said, trail_to(folder / "audit.log", metrics) as trail:
        folder.rename(tmp_path / "gone")
        noted = 0
        while not lost(metrics):
            view(trail, *range(noted, noted + 1000))
            noted += 1000
        folder.mkdir()
        wait_until(
            lambda: (folder / "audit.log").exists() and kept(folder / "audit.log") + (lost(metrics) or 0) == noted,
            what="what was not lost",
        )

    numbers = studies((folder / "audit.log").read_text(encoding="utf-8").splitlines())
    assert numbers == sorted(numbers)
    stopped, resumed = said
    assert (stopped["event"], resumed["event"]) == ("audit.stopped", "audit.resumed")
    assert stopped["reason"] in ("No such file or directory", "queue")
    assert resumed["times"] == lost(metrics)


def test_log_events_below_the_level_become_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    file = tmp_path / "audit.log"
    log.configure(form="json", level="error")

    with recording(replace(settings, audit=AuditSettings(file=file)), Metrics(), executor="node"):
        log.get().info("study.viewed", study="1.2.1", patient_name="Doe^Jane")
        log.get().debug("film.decided")

    assert studies(file.read_text(encoding="utf-8").splitlines()) == [1]
    assert "Doe" not in file.read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""


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


@pytest.mark.drill(part="kills")
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
