"""Audit messages: their form by schema and profile, and what is kept and lost of their file."""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from pydicom.sr.codedict import codes
from structlog.testing import capture_logs

from node import log
from node.audit import message
from node.audit.events import RULES, Party, Subject
from node.audit.message import Reporter
from node.audit.trail import Trail, recording
from node.config import AuditSettings
from node.errors import InputError
from node.metrics import Metrics
from tests.node.test_log import documented_events
from tests.paths import FIXTURES, REPOSITORY
from tests.support import films, peers, recorded
from tests.support.peers import ReceivingArchive, wait_until
from tests.support.service import Service, settings_for

REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)
SCHEMA = etree.RelaxNG(etree.parse(FIXTURES / "audit_message.rng"))
FILM = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "SECRET-7"})
STUDY = str(FILM.StudyInstanceUID)


@contextmanager
def trail_to(file: Path, metrics: Metrics | None = None) -> Iterator[Trail]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("node.audit.trail._POLL_SECONDS", 0.1)
        with closing(Trail(file, reporter=REPORTER, metrics=metrics or Metrics())) as trail:
            yield trail


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


def test_a_file_holds_a_message_a_line_goes_on_after_a_restart_and_when_it_is_renamed(tmp_path: Path) -> None:
    file, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    file.write_bytes(b"<85>1 cut off")
    with trail_to(file) as trail:
        view(trail, 1, 2)
    with trail_to(file) as trail:
        view(trail, 3)
        wait_until(lambda: kept(file) == 4, what="the message")
        file.rename(moved)
        view(trail, 4)

    first, *rest = moved.read_text(encoding="utf-8").splitlines()
    assert first == "<85>1 cut off"
    assert studies(rest) == [1, 2, 3]
    assert studies(file.read_text(encoding="utf-8").splitlines()) == [4]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_messages_outlast_a_disk_that_fails_for_a_while(tmp_path: Path) -> None:
    folder, metrics = tmp_path / "folder", Metrics()
    folder.mkdir()
    with trail_to(folder / "audit.log", metrics) as trail:
        folder.rename(tmp_path / "gone")
        view(trail, 1, 2)
        folder.mkdir()
        wait_until(lambda: (folder / "audit.log").exists(), what="a new file")

    assert studies((folder / "audit.log").read_text(encoding="utf-8").splitlines()) == [1, 2]
    assert lost(metrics) == 0


def test_what_a_disk_refuses_for_long_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.audit.trail._MOST_KEPT_BACK", 500)
    folder, metrics, noted = tmp_path / "folder", Metrics(), 0
    folder.mkdir()
    file = folder / "audit.log"
    with capture_logs() as said, trail_to(file, metrics) as trail:
        folder.rename(tmp_path / "gone")
        while not lost(metrics):
            view(trail, *range(noted, noted + 1000))
            noted += 1000
        folder.mkdir()
        wait_until(lambda: file.exists() and kept(file) + (lost(metrics) or 0) == noted, what="what was not lost")

    numbers = studies(file.read_text(encoding="utf-8").splitlines())
    assert numbers == sorted(numbers)
    stopped, resumed = said
    assert (stopped["event"], resumed["event"]) == ("audit.stopped", "audit.resumed")
    assert stopped["reason"] in ("No such file or directory", "queue")
    assert resumed["times"] == lost(metrics)


def test_what_a_disk_takes_in_part_is_written_again_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write, metrics = tmp_path / "audit.log", os.write, Metrics()
    torn: list[int] = []

    def tear(handle: int, content: bytes) -> int:
        torn.append(len(content))
        if len(torn) == 1:
            return write(handle, content[:50])
        if len(torn) == 2:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(handle, content)

    monkeypatch.setattr(os, "write", tear)
    with trail_to(file, metrics) as trail:
        view(trail, 1)
        wait_until(lambda: len(torn) > 2, what="another attempt")

    assert studies(file.read_text(encoding="utf-8").splitlines()) == [1]
    assert lost(metrics) == 0


def test_messages_are_synced_and_written_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced, fsync = tmp_path / "audit.log", list[int](), os.fsync

    def note(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with trail_to(file) as trail:
        with file.open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            view(trail, 1)
            time.sleep(0.3)
            assert file.stat().st_size == 0
        wait_until(lambda: kept(file) == 1, what="the message, when the other has written")
    assert synced[-1] == file.stat().st_size > 0


def test_log_events_below_the_level_become_messages_or_the_start_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, file = settings_for(tmp_path, archive_port=104), tmp_path / "audit.log"
    log.configure(form="json", level="error")

    with recording(replace(settings, audit=AuditSettings(file=file)), Metrics(), executor="node"):
        log.get().info("study.viewed", study="1.2.1", patient_name="Doe^Jane")
        log.get().debug("film.decided")

    written = file.read_text(encoding="utf-8")
    assert studies(written.splitlines()) == [1]
    assert "Doe" not in written
    assert capsys.readouterr().out == ""
    nowhere = replace(settings, audit=AuditSettings(file=tmp_path / "nowhere" / "audit.log"))
    with (
        pytest.raises(InputError, match=r"audit\.file .* cannot be written \(No such file or directory\)"),
        recording(nowhere, Metrics(), executor="node"),
    ):
        pass


@pytest.mark.drill(part="kills")
def test_a_killed_node_tells_everything_in_order(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    with ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "storage", archive_port=archive.port)
        settings = replace(settings, audit=AuditSettings(file=file))
        with Service(settings) as node:
            peers.send(FILM, port=node.dicom_port)
            peers.send(FILM, port=node.dicom_port, calling_ae="STRANGER")
            node.wait_for("delivery.sent", count=2)
            assert node.request("GET", f"/studies/{STUDY}", accept="text/html").status_code == 200
            wait_until(lambda: kept(file) == 9, what="nine messages")
            node.kill()
        with Service(settings) as node:
            assert node.stop() == 0

    messages = file.read_text(encoding="utf-8").splitlines()
    told: Counter[tuple[str | None, ...]] = Counter()
    for text in messages:
        made = etree.fromstring(text.partition("\N{ZERO WIDTH NO-BREAK SPACE}")[2].encode())
        SCHEMA.assertValid(made)
        (identification,) = made.findall("EventIdentification")
        coded = (identification.find(name) for name in ("EventID", "EventTypeCode"))
        values = [None if code is None else code.get("originalText") for code in coded]
        told[(*values, identification.get("EventOutcomeIndicator"))] += 1
    assert told == {
        ("Application Activity", "Application Start", "0"): 2,
        ("DICOM Instances Transferred", None, "0"): 3,
        ("DICOM Instances Accessed", None, "0"): 2,
        ("Begin Transferring DICOM Instances", None, "0"): 2,
        ("Security Alert", "Node Authentication", "4"): 1,
        ("Application Activity", "Application Stop", "0"): 1,
    }
    assert not any(secret in "".join(messages) for secret in ("Zyx", "SECRET-7"))


DOCUMENT = (REPOSITORY / "docs" / "operate" / "audit.md").read_text(encoding="utf-8")
AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
FACTS: dict[str, object] = {
    "study": "1.2.3",
    "sop_instance_uid": "1.2.3.4",
    "calling_aet": "MODALITY",
    "called_aet": "ARCHIVE",
    "host": "10.0.0.5",
    "user": "ada",
    "reason": "caller",
    "times": 3,
}


def written(event: str, **facts: object) -> etree._Element:
    text = message.write({"event": event, **FACTS, **facts}, at=AT, reporter=REPORTER)
    assert text is not None
    return etree.fromstring(text.encode())


def rows() -> list[str]:
    """The rows of the table: log events whose messages differ in the outcome alone share one."""
    table: dict[tuple[str, ...], list[str]] = {}
    for event, rule in RULES.items():
        kind = "" if rule.kind is None else f", {rule.kind.value} {rule.kind.meaning}"
        reasons = f" (only for {', '.join(rule.reasons)})" if rule.reasons else ""
        outcome = "" if rule.outcome == "0" else f" {rule.outcome}"
        cells = (f"{rule.event.value} {rule.event.meaning}{kind}", rule.action, rule.party.value, rule.subject.value)
        table.setdefault(cells, []).append(f"`{event}`{reasons}{outcome}")
    return ["| " + " | ".join((", ".join(events), *cells)) + " |" for cells, events in table.items()]


STANDARD = (getattr(codes.DCM, name) for name in codes.DCM.dir())
KNOWN_CODES = {(str(entry.value), entry.meaning, "DCM") for entry in STANDARD}


@pytest.mark.parametrize("event", RULES)
def test_every_message_is_valid_has_codes_of_the_standard_and_no_patient_and_a_length_that_is_taken(event: str) -> None:
    made = written(event, patient_name="Doe^Jane", patient_id="17")
    (identification,) = made.findall("EventIdentification")

    assert SCHEMA.validate(made), SCHEMA.error_log
    assert (identification.get("EventActionCode"), identification.get("EventOutcomeIndicator")) == (
        RULES[event].action,
        RULES[event].outcome,
    )
    coded = [element for element in made.iter() if "codeSystemName" in element.attrib]
    names = ("csd-code", "originalText", "codeSystemName")
    assert {tuple(element.get(name, "") for name in names) for element in coded} <= KNOWN_CODES
    objects = made.findall("ParticipantObjectIdentification")
    assert {found.get("ParticipantObjectTypeCodeRole") for found in objects} <= {"3", "13"}, "a report or a resource"
    assert b"Doe" not in etree.tostring(made)

    long = "x" * 1000
    facts = {**FACTS, "reason": long, **dict.fromkeys(("name", "message", "model", "user", "host"), long)}
    if RULES[event].reasons:
        facts["reason"] = RULES[event].reasons[0]
    text = message.write({"event": event, **facts}, at=AT, reporter=REPORTER)
    assert text is not None
    assert len(message.line(text, at=AT, reporter=REPORTER)) <= 8192  # RFC 5425 4.3.1: should be able to take


STORIES: Mapping[str, Mapping[str, object]] = {
    "service.started": {},
    "instance.kept": {},
    "delivery.sent": {},
    "delivery.parked": {"reason": "the archive has refused it"},
    "study.finished": {},
    "worklist.viewed": {"studies": 17},
    "film.viewed": {"user": ""},
    "question.refused": {"calling_aet": "", "host": "pacs.example.org"},
    "correction.made": {"outcome": "not_found", "reason": ""},
    "study.deleted": {"reason": "wrong_patient"},
    "study.removed": {},
    "session.refused": {},
    "association.refused": {"reason": "tls: no certificate", "calling_aet": "A\x07"},
    "access.denied": {"user": "", "host": "fd00::1"},
    "model.promoted": {"model": "m 2", "prompts": "own 1", "films": 50, "changed": 1, "compared_by": "ada"},
    "audit.stopped": {"reason": "queue"},
}


def test_a_message_of_each_kind_is_as_recorded() -> None:
    recorded.check("audit", {event: list(elements(written(event, **facts))) for event, facts in STORIES.items()})


def elements(root: etree._Element) -> Iterator[str]:
    """Each element on a line with its place, its attributes and its text."""
    for element in root.iter():
        facts = {name: str(value) for name, value in element.attrib.items()}
        if element.tag == "ParticipantObjectDetail":
            facts["value"] = base64.b64decode(facts["value"]).decode()
        said = " ".join(f"{name}={value}" for name, value in facts.items())
        yield f"{'  ' * len(list(element.iterancestors()))}{element.tag} {said} {element.text or ''}".rstrip()


def test_every_event_of_the_table_is_a_log_event_and_stands_in_the_document() -> None:
    assert set(RULES) <= documented_events()
    assert {rule.party for rule in RULES.values()} == set(Party)
    assert {rule.subject for rule in RULES.values()} == set(Subject)
    assert re.findall(r"^\| `\w+\.\w+`.*\|$", DOCUMENT, re.MULTILINE) == rows()


@pytest.mark.parametrize(
    ("event", "facts", "users"),
    [
        ("film.viewed", {}, ["ada", "4711"]),
        ("question.answered", {}, ["MODALITY", "4711"]),
        ("question.answered", {"calling_aet": "", "host": ""}, ["unknown", "4711"]),
        ("delivery.sent", {"called_aet": "", "host": "pacs.example.org"}, ["4711", "pacs.example.org"]),
        ("order.refused", {"reason": "tls: no certificate", "calling_aet": ""}, ["4711", "10.0.0.5"]),
    ],
)
def test_who_took_part_is_named_by_user_title_or_host(event: str, facts: dict[str, object], users: list[str]) -> None:
    made = written(event, **facts)

    assert [participant.get("UserID") for participant in made.findall("ActiveParticipant")] == users


@pytest.mark.parametrize(
    ("event", "kind", "said"),
    [
        ({"event": "study.reread", "study": "1.2", "reason": "other_model"}, "Reason", "other_model"),
        ({"event": "audit.stopped"}, "Alert Description", "audit.stopped"),
    ],
)
def test_what_was_done_and_why_stands_in_the_message(event: dict[str, object], kind: str, said: str) -> None:
    text = message.write(event, at=AT, reporter=REPORTER)

    assert text is not None
    (detail,) = etree.fromstring(text.encode()).iter("ParticipantObjectDetail")
    assert (detail.get("type"), base64.b64decode(detail.get("value", "")).decode()) == (kind, said)


def test_the_outcome_of_an_act_is_told() -> None:
    expected = {"done": "0", "refused": "4", "not_found": "4", "failed": "8"}

    for outcome, indicator in expected.items():
        (found,) = written("correction.made", outcome=outcome).findall("EventIdentification")
        assert found.get("EventOutcomeIndicator") == indicator, outcome


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        ("delivery.sent", {"kind": "oru", "host": "10.0.0.7"}),
        ("delivery.sent", {"kind": "fhir", "host": "10.0.0.7"}),
        ("delivery.parked", {"kind": "sr"}),
        ("instance.kept", {"host": "10.0.0.8"}),
        ("film.decided", {}),
        ("association.refused", {"reason": "limit"}),
        ("order.refused", {"reason": "limit"}),
    ],
)
def test_what_is_no_dicom_transfer_and_no_refused_identity_leaves_no_message(
    event: str, facts: dict[str, object]
) -> None:
    assert message.write({"event": event, "study": "1.2", **facts}, at=AT, reporter=REPORTER) is None


@given(st.text(max_size=400))
def test_any_title_from_outside_gives_one_valid_line(title: str) -> None:
    event = {"event": "association.refused", "reason": "caller", "calling_aet": title}

    text = message.write(event, at=AT, reporter=REPORTER)

    assert text is not None
    assert "\n" not in text
    assert SCHEMA.validate(etree.fromstring(text.encode()))


def test_a_line_has_the_header_of_the_profile() -> None:
    found = message.line("<AuditMessage/>", at=AT, reporter=REPORTER)

    header = b"<85>1 2026-03-01T12:30:15.250Z reader-1 chex-node 4711 DICOM+RFC3881 - "
    assert found == header + b"\xef\xbb\xbf<AuditMessage/>"
