"""The audit trail against a real rsyslog over TLS: order, return, refusal; and what is kept and lost on disk."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree
from structlog.testing import capture_logs

from node import log
from node.audit import syslog
from node.audit.message import Reporter
from node.audit.trail import Trail, recording
from node.audit.waiting import WaitingMessages
from node.errors import DestinationDown, InputError
from node.metrics import Metrics
from node.settings.audit import AuditSettings
from node.settings.tls import TlsSettings
from tests.support.certificates import Authority
from tests.support.collectors import ResettingCollector, Rsyslog
from tests.support.peers import LOOPBACK, wait_until
from tests.support.service import settings_for

REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.found(tmp_path_factory.mktemp("ca"))


def secured(collector: Rsyslog, authority: Authority) -> AuditSettings:
    own = authority.issue("node")
    tls = TlsSettings(ca=authority.certificate, certificate=own.certificate, key=own.key)
    return AuditSettings(host=LOOPBACK, port=collector.port, tls=tls)


@contextmanager
def trail_to(settings: AuditSettings, folder: Path, metrics: Metrics | None = None) -> Iterator[Trail]:
    trail = Trail(settings, folder / "audit", reporter=REPORTER, metrics=metrics or Metrics(), poll_seconds=0.1)
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


def waiting(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("cxr_audit_waiting") or 0.0


def lost(metrics: Metrics, sink: str) -> float | None:
    return metrics.registry.get_sample_value("cxr_audit_lost_total", {"sink": sink})


def test_rsyslog_gets_every_message_in_order_over_tls(tmp_path: Path, authority: Authority) -> None:
    metrics = Metrics()
    with Rsyslog(tmp_path / "rsyslog", authority) as collector:
        with trail_to(secured(collector, authority), tmp_path, metrics) as trail:
            view(trail, *range(2000))
            collector.wait_for("study", count=2000)
            wait_until(lambda: waiting(metrics) == 0, what="an empty folder")

        assert studies(collector.messages) == list(range(2000))


def test_messages_wait_for_a_collector_that_is_away(tmp_path: Path, authority: Authority) -> None:
    metrics = Metrics()
    collector = Rsyslog(tmp_path / "rsyslog", authority)
    with capture_logs() as said, trail_to(secured(collector, authority), tmp_path, metrics) as trail:
        view(trail, *range(50))
        wait_until(lambda: waiting(metrics) == 50, what="50 waiting messages")
        with collector:
            collector.wait_for("study", count=50)
            view(trail, 50)
            collector.wait_for("study", count=51)
        view(trail, 51)
        wait_until(lambda: waiting(metrics) == 1, what="a waiting message")
        with collector:
            collector.wait_for("study", count=52)

        assert studies(collector.messages) == list(range(52))
    assert [line["event"] for line in said] == ["audit.delayed", "audit.back"] * 2


def test_a_collector_of_another_authority_gets_nothing(tmp_path: Path, authority: Authority) -> None:
    foreign, metrics = Authority.found(tmp_path / "foreign"), Metrics()
    with Rsyslog(tmp_path / "rsyslog", foreign) as collector, capture_logs() as said:
        with trail_to(secured(collector, authority), tmp_path, metrics) as trail:
            view(trail, 1)
            wait_until(lambda: bool(said), what="a log line")

        assert collector.messages == []
    assert said[0]["event"] == "audit.delayed"
    assert "its certificate is refused (" in said[0]["reason"]
    assert waiting(metrics) == 1


def test_a_node_without_the_right_certificate_loses_nothing(tmp_path: Path, authority: Authority) -> None:
    foreign = Authority.found(tmp_path / "foreign").issue("node")
    with Rsyslog(tmp_path / "rsyslog", authority) as collector, capture_logs() as said:
        good = secured(collector, authority)
        assert good.tls is not None
        bad = replace(good, tls=replace(good.tls, certificate=foreign.certificate, key=foreign.key))
        with trail_to(bad, tmp_path) as trail:
            view(trail, 1)
            wait_until(lambda: bool(said), what="a log line")
        assert collector.messages == []

        with trail_to(good, tmp_path):
            collector.wait_for("study", count=1)


def test_what_a_collector_did_not_read_is_sent_again(tmp_path: Path) -> None:
    metrics, resetting = Metrics(), ResettingCollector()
    settings = AuditSettings(host=LOOPBACK, port=resetting.port)
    with trail_to(settings, tmp_path, metrics) as trail:
        view(trail, *range(10))
        wait_until(lambda: resetting.connections >= 2, what="a second connection")
        resetting.close()
        assert waiting(metrics) == 10

        collector = Rsyslog(tmp_path / "rsyslog", None)
        with trail_to(replace(settings, port=collector.port), tmp_path), collector:
            assert studies(collector.wait_for("study", count=10)) == list(range(10))


def test_a_collector_that_closed_before_has_got_nothing() -> None:
    """Its orderly end waits in our socket when the message is sent: it is no acknowledgment."""
    with socket.create_server((LOOPBACK, 0)) as server:
        settings = AuditSettings(host=LOOPBACK, port=server.getsockname()[1])
        assert settings.collector is not None

        def accept() -> None:
            connection, _ = server.accept()
            connection.shutdown(socket.SHUT_WR)
            connection.close()

        closing = threading.Thread(target=accept)
        closing.start()

        def late() -> Iterator[bytes]:
            closing.join()
            yield b"<85>1 lost"

        with pytest.raises(DestinationDown, match="did not take all messages"):
            syslog.send(late(), settings.collector)


def test_two_processes_send_all_their_messages(tmp_path: Path) -> None:
    collector = Rsyslog(tmp_path / "rsyslog", None)
    settings = AuditSettings(host=LOOPBACK, port=collector.port)
    with trail_to(settings, tmp_path) as first, trail_to(settings, tmp_path) as second:
        for number in range(0, 200, 2):
            view(first, number)
            view(second, number + 1)
        with collector:
            found = studies(collector.wait_for("study", count=200))

    assert sorted(found) == list(range(200))
    assert [number for number in found if number % 2] == list(range(1, 200, 2))


def test_the_file_is_private_and_holds_a_message_a_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    file.write_bytes(b"<85>1 cut off")
    with trail_to(AuditSettings(file=file), tmp_path) as trail:
        view(trail, 1, 2)
    with trail_to(AuditSettings(file=file), tmp_path) as trail:
        view(trail, 3)

    first, *rest = file.read_text(encoding="utf-8").splitlines()
    assert first == "<85>1 cut off"
    assert studies(rest) == [1, 2, 3]
    assert not (tmp_path / "audit").exists()


def test_a_new_file_has_mode_0600(tmp_path: Path) -> None:
    with trail_to(AuditSettings(file=tmp_path / "audit.log"), tmp_path):
        assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_a_renamed_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    with trail_to(AuditSettings(file=file), tmp_path) as trail:
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
    with trail_to(AuditSettings(file=folder / "audit.log"), tmp_path, metrics) as trail:
        folder.rename(tmp_path / "gone")
        view(trail, 1)
        view(trail, 2)
        folder.mkdir()
        wait_until(lambda: (folder / "audit.log").exists(), what="a new file")

    assert studies((folder / "audit.log").read_text(encoding="utf-8").splitlines()) == [1, 2]
    assert lost(metrics, "file") == 0


def test_a_full_folder_keeps_the_oldest_and_counts_the_rest(tmp_path: Path) -> None:
    metrics = Metrics()
    collector = Rsyslog(tmp_path / "rsyslog", None)
    settings = AuditSettings(host=LOOPBACK, port=collector.port, max_waiting_mib=1)
    with capture_logs() as said, trail_to(settings, tmp_path, metrics) as trail:
        noted = 0
        while not lost(metrics, "collector"):
            view(trail, *range(noted, noted + 100))
            noted += 100
            wait_until(lambda: waiting(metrics) + (lost(metrics, "collector") or 0) == noted, what="100 more")  # noqa: B023
        kept = int(waiting(metrics))
        with collector:
            collector.wait_for("study", count=kept)
            view(trail, noted)
            found = studies(collector.wait_for("study", count=kept + 1))
            wait_until(lambda: any(line["event"] == "audit.resumed" for line in said), what="the end of the loss")

    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, noted)
    told = {str(line["event"]): line for line in said}
    assert (told["audit.stopped"]["name"], told["audit.stopped"]["reason"]) == ("collector", "full")
    assert told["audit.resumed"]["times"] == noted - kept == lost(metrics, "collector")


def test_small_batches_do_not_become_many_files(tmp_path: Path) -> None:
    folder = WaitingMessages(tmp_path / "audit", max_mib=1)
    for number in range(30):
        folder.add([b"message %d" % number])

    assert folder.count() == 30
    assert len(list((tmp_path / "audit").glob("*.log"))) == 1


def test_a_batch_that_is_being_sent_is_not_replaced(tmp_path: Path) -> None:
    folder = WaitingMessages(tmp_path / "audit", max_mib=1)
    folder.add([b"first"])
    sent: list[bytes] = []

    def deliver(lines: list[bytes]) -> None:
        if not sent:
            folder.add([b"second"])
        sent.extend(lines)

    folder.send(deliver, is_over=lambda: False)  # type: ignore[arg-type]  # lists are what it hands on

    assert sent == [b"first", b"second"]
    assert folder.count() == 0


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
