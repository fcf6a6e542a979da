"""Updates and merges of patients by HL7 (ADT^A08, ADT^A40): what the node then rejects, writes anew, and answers."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import hl7
import pytest
from hl7apy.core import Message
from pydicom.dataset import Dataset

from node.config import OrdersSettings, SiteSettings
from node.hl7.patient import PatientNumber, PatientUpdate
from node.hl7.text import read
from node.jobs.patient_updates import PatientUpdates
from node.metrics import Metrics
from node.orders.listener import OrderListener
from node.orders.messages import OrderRefused
from node.orders.patients import read_updates
from node.orders.store import OrderStore
from node.settings.http import HttpSettings
from tests.node.jobs.test_rounds import STUDY, Bench, predecessor
from tests.node.outputs.test_rejection import rejected_uids, uids
from tests.node.test_metrics import samples
from tests.node.web.test_web_privacy import BASIC
from tests.support import films, mllp, peers
from tests.support.mllp import InformationSystem
from tests.support.service import Service, run_command, settings_with
from tests.support.web_access import users_in

pytestmark = pytest.mark.drill(part="kills")

OLD = {"PatientID": "P-1", "PatientName": "WRONG^PATIENT", "PatientBirthDate": "19500228", "PatientSex": "M"}


def adt(
    event: str, number: str, name: str, *, prior: str = "", born: str = "", sex: str = "", control: str = "M1"
) -> str:
    """A message that hl7apy wrote."""
    structure = "ADT_A01" if event == "A08" else "ADT_A39"
    message = Message(structure, version="2.5.1")
    message.msh.msh_9 = f"ADT^{event}^{structure}"
    message.msh.msh_10, message.msh.msh_11, message.msh.msh_18 = control, "P", "UNICODE UTF-8"
    group = message if event == "A08" else message.add_group("ADT_A39_PATIENT")
    patient = group.add_segment("PID")
    patient.pid_3, patient.pid_5, patient.pid_7, patient.pid_8 = number, name, born, sex
    if prior:
        group.add_segment("MRG").mrg_1 = prior
    return str(message.to_er7()).replace("\\R\\", "~")  # it takes a field for one repetition


def merge(prior: str, number: str, *, name: str = "RIGHT^PATIENT", control: str = "M1") -> str:
    return adt("A40", number, name, prior=prior, control=control)


class Site:
    """A bench whose studies follow messages."""

    def __init__(self, folder: Path) -> None:
        self.bench, self.submitted = Bench(folder, zone="UTC"), list[str]()
        self.metrics = Metrics()
        self.updates = PatientUpdates(
            self.bench.spool, self.metrics, submit=self.submitted.append, nobodys=SiteSettings().nobodys
        )

    def hear(self, message: str) -> None:
        for update in read_updates(read(message.encode())):
            self.updates.follow(update, message.encode())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def old(name: str = "film", **changes: object) -> Dataset:
    return films.as_another(films.thumbnail({**OLD, **changes}), name)


def patients(objects: list[Dataset]) -> set[tuple[str, str]]:
    return {(str(dataset.PatientID), str(dataset.PatientName)) for dataset in objects}


def test_an_update_rejects_the_old_objects_and_writes_new_ones(site: Site) -> None:
    site.bench.receive(old())
    written = site.bench.round()
    first = site.bench.objects(written, "sr")
    site.hear(adt("A08", "P-1^^^CLINIC", "RIGHT^PATIENT", born="19510228", sex="F"))

    deliveries = site.bench.round()

    assert site.submitted == [STUDY]
    assert sorted(delivery.kind for delivery in deliveries) == ["gsps", "rejection", "sr"]
    [note], [report] = site.bench.objects(deliveries, "rejection"), site.bench.objects(deliveries, "sr")
    assert note.ConceptNameCodeSequence[0].CodeValue == "113037"
    assert (str(note.PatientName), rejected_uids(note)) == ("WRONG^PATIENT", uids(written))
    assert predecessor(report) == first[0].SOPInstanceUID
    assert (str(report.PatientName), report.PatientBirthDate, report.PatientSex) == ("RIGHT^PATIENT", "19510228", "F")
    assert patients(site.bench.objects(deliveries, "gsps")) == {("P-1", "RIGHT^PATIENT")}
    assert all(site.bench.spool.has_output(delivery) for delivery in written)
    assert site.bench.reader.count == 1


def test_an_update_of_a_number_that_is_nobodys_concerns_no_film(site: Site) -> None:
    site.bench.receive(old(PatientID="UNKNOWN"))

    site.hear(adt("A08", "UNKNOWN^^^CLINIC", "RIGHT^PATIENT", born="19510228", sex="F"))

    assert site.submitted == []


def test_a_merge_after_a_merge_follows_the_chain(site: Site) -> None:
    site.bench.receive(old())
    site.bench.round()
    site.hear(merge("P-1", "P-2"))
    second = site.bench.round()
    site.hear(merge("P-2", "P-3", control="M2"))

    third = site.bench.round()

    [note] = site.bench.objects(third, "rejection")
    assert rejected_uids(note) == {delivery.sop_instance_uid for delivery in second if delivery.kind != "rejection"}
    assert patients([note]) == {("P-2", "RIGHT^PATIENT")}
    assert patients(site.bench.objects(third, "sr")) == {("P-3", "RIGHT^PATIENT")}


def test_an_answer_is_rejected_when_an_update_ends_its_identity(site: Site) -> None:
    film = films.thumbnail(OLD)
    site.bench.receive(film)
    site.bench.round()
    earlier = datetime.now(UTC) - timedelta(seconds=2)
    first = uids(site.bench.answer(str(film.SOPInstanceUID), 1, at=earlier))
    site.hear(merge("P-1", "P-2"))
    second = uids(site.bench.answer(str(film.SOPInstanceUID), 2))
    rounds = [site.bench.round()]
    site.hear(merge("P-2", "P-3", control="M2"))
    rounds.append(site.bench.round())

    [[wrong], [right]] = [site.bench.objects(deliveries, "rejection") for deliveries in rounds]
    assert (len(first), len(second), first & second) == (2, 2, set())
    assert (first < rejected_uids(wrong), second & rejected_uids(wrong)) == (True, set())
    assert (second < rejected_uids(right), first & rejected_uids(right)) == (True, set())
    assert patients([wrong, right]) == {("P-1", "WRONG^PATIENT"), ("P-2", "RIGHT^PATIENT")}


def test_two_merges_before_one_round_reject_once(site: Site) -> None:
    site.bench.receive(old())
    first = site.bench.round()
    site.hear(merge("P-1", "P-2"))
    site.hear(merge("P-2", "P-3", control="M2"))

    deliveries = site.bench.round()

    [note] = site.bench.objects(deliveries, "rejection")
    assert rejected_uids(note) == uids(first)
    assert patients(site.bench.objects(deliveries, "sr")) == {("P-3", "RIGHT^PATIENT")}


def test_the_same_message_again_changes_nothing(site: Site) -> None:
    site.bench.receive(old())
    site.bench.round()
    site.hear(merge("P-1", "P-2"))
    site.hear(merge("P-1", "P-2"))
    site.bench.round()

    site.hear(merge("P-1", "P-2"))

    assert site.submitted == [STUDY]
    assert not site.bench.spool.has_unread(STUDY)
    assert samples(site.metrics.registry, "cxr_patient_updates_total") == {
        ("followed",): 1.0,
        ("held",): 0.0,
        ("nothing",): 2.0,
    }


@pytest.mark.parametrize(
    "message",
    [
        merge("P-9", "P-2"),
        adt("A08", "P-9", "RIGHT^PATIENT"),
        adt("A08", "P-1^^^ELSEWHERE", "RIGHT^PATIENT"),
        adt("A08", "P-1^^^CLINIC", "Wrong^Patient", born="195002281200", sex="M"),
        adt("A08", "P-1", ""),
    ],
    ids=("merge-of-others", "update-of-another", "other-issuer", "known-values", "no-values"),
)
def test_other_patients_and_known_values_change_nothing(site: Site, message: str) -> None:
    site.bench.receive(old(IssuerOfPatientID="CLINIC"))
    site.bench.round()

    site.hear(message)

    assert site.submitted == []
    assert not site.bench.spool.has_unread(STUDY)


def test_a_film_that_is_not_read_yet_gets_the_new_identity_alone(site: Site) -> None:
    site.bench.receive(old())
    site.hear(merge("P-1", "P-2"))

    deliveries = site.bench.round()

    assert sorted(delivery.kind for delivery in deliveries) == ["gsps", "sr"]
    assert patients(site.bench.objects(deliveries, "sr")) == {("P-2", "RIGHT^PATIENT")}


def test_a_film_that_comes_after_the_message_is_taken_as_it_is(site: Site) -> None:
    site.bench.receive(old("first"))
    site.bench.round()
    site.hear(merge("P-1", "P-2"))
    site.bench.round()
    site.bench.receive(old("late", PatientID="P-2", PatientName="THIRD^PATIENT"))

    deliveries = site.bench.round()

    assert "rejection" not in {delivery.kind for delivery in deliveries}
    assert ("P-2", "THIRD^PATIENT") in patients(site.bench.objects(deliveries, "sr"))


def test_an_update_back_to_an_earlier_name_writes_new_objects(site: Site) -> None:
    site.bench.receive(old())
    first = site.bench.round()
    site.hear(adt("A08", "P-1", "RIGHT^PATIENT"))
    second = site.bench.round()
    site.hear(adt("A08", "P-1", "WRONG^PATIENT", control="M2"))

    third = site.bench.round()

    [note] = site.bench.objects(third, "rejection")
    assert rejected_uids(note) == {delivery.sop_instance_uid for delivery in second if delivery.kind != "rejection"}
    assert not uids(first) & uids(third)


def test_a_step_that_runs_again_writes_the_same_objects(site: Site) -> None:
    site.bench.receive(old())
    site.bench.round()
    site.hear(merge("P-1", "P-2"))
    pipeline = site.bench.steps.pipeline
    plan = pipeline.plan(STUDY)
    assert plan is not None

    first, second = pipeline.write(plan), pipeline.write(plan)

    assert sorted(output.kind for output in first.outputs) == ["gsps", "rejection", "sr"]
    assert first == second


def test_a_lost_note_is_written_again_with_the_same_bytes(site: Site) -> None:
    site.bench.receive(old())
    site.bench.round()
    site.hear(merge("P-1", "P-2"))
    [note] = [delivery for delivery in site.bench.round() if delivery.kind == "rejection"]
    content = site.bench.spool.output(note)
    for path in (site.bench.spool.directory / "studies" / STUDY / "outputs").glob(f"{note.sop_instance_uid}*"):
        path.unlink()

    site.bench.steps.pipeline.rewrite(STUDY)

    assert site.bench.spool.output(note) == content is not None


@pytest.mark.drill(part="peers")
def test_dciodvfy_accepts_report_and_note(tmp_path: Path, site: Site) -> None:
    site.bench.receive(old())
    site.bench.round()
    site.hear(adt("A08", "P-1", "Grün^Jörg", born="19510228", sex="F"))
    for delivery in site.bench.round():
        if delivery.kind == "gsps":
            continue
        file = tmp_path / f"{delivery.kind}.dcm"
        file.write_bytes(site.bench.spool.output(delivery) or b"")

        said = subprocess.run([peers.require("dciodvfy"), file], capture_output=True, text=True, check=False).stderr

        assert "SR" in said or "KeyObjectSelectionDocument" in said
        assert "Error" not in said


def test_a_merge_names_the_number_of_the_same_authority() -> None:
    message = merge("7^^^LAB&1.2.3&ISO", "8^^^CLINIC~9^^^LAB", name="A&B^C^D^Jr^Dr")

    assert read_updates(read(message.encode())) == (
        PatientUpdate(
            event="A40",
            prior=(PatientNumber(number="7", issuers=("LAB", "1.2.3")),),
            merged_into=PatientNumber(number="9", issuers=("LAB",)),
            name="A^C^D^Dr^Jr",
        ),
    )


@pytest.mark.parametrize(
    ("before", "after", "code", "condition"),
    [
        ("ADT^A40", "ADT^A01", "AR", "201"),
        ("|2.5.1", "|3.0", "AR", "203"),
        ("|M1|", "||", "AE", "101"),
        ("MRG|P-1", "ZZZ|P-1", "AE", "100"),
        ("MRG|P-1", "MRG|", "AE", "101"),
        ("PID|||P-2", "PID|||", "AE", "101"),
        ("PID|", "ZZZ|", "AE", "100"),
    ],
)
def test_an_update_that_cannot_be_used_is_refused_with_a_reason(
    before: str, after: str, code: str, condition: str
) -> None:
    message = merge("P-1", "P-2")
    assert before in message

    with pytest.raises(OrderRefused) as caught:
        read_updates(read(message.replace(before, after).encode()))

    assert (caught.value.code, caught.value.complaint.condition) == (code, condition)


@pytest.fixture
def listener(site: Site, tmp_path: Path) -> Iterator[OrderListener]:
    settings = OrdersSettings(port=0, hosts=(peers.LOOPBACK,))
    store, zone = OrderStore(tmp_path), ZoneInfo("UTC")
    listener = OrderListener(settings, store, site.metrics, zone=zone, follow=site.updates.follow)
    yield listener
    listener.close()


def codes(answers: list[hl7.Message]) -> list[str]:
    return [str(answer.segment("MSA")[1]) for answer in answers]


def test_the_port_acknowledges_known_and_unknown_patients(site: Site, listener: OrderListener) -> None:
    site.bench.receive(old())
    known, unknown, broken = merge("P-1", "P-2"), merge("P-8", "P-9"), merge("P-1", "P-2").replace("MRG|P-1", "MRG|")

    answers = mllp.ask(listener.port, *(message.encode() for message in (known, unknown, broken)))

    assert codes(answers) == ["AA", "AA", "AE"]
    assert len(site.bench.spool.documents(STUDY, "patients")) == 1
    assert not any(secret in str(answers) for secret in ("P-1", "RIGHT"))


def test_an_update_that_cannot_be_kept_is_not_accepted(site: Site, listener: OrderListener) -> None:
    site.bench.receive(old())
    (site.bench.spool.directory / "studies" / STUDY / "patients").write_text("no folder", encoding="utf-8")

    answers = mllp.ask(listener.port, merge("P-1", "P-2").encode())

    assert codes(answers) == ["AR"]


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize("step", [5, 6])
def test_a_killed_node_sends_each_object_once(tmp_path: Path, step: int) -> None:
    message = merge("P-1", "P-2").encode()
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        settings = settings_with(system, tmp_path / "node", archive_port=archive.port)
        settings = replace(settings, orders=replace(settings.orders or OrdersSettings(hosts=()), patient_updates=True))
        with Service(settings) as first:
            assert peers.send(films.thumbnail(OLD), port=first.dicom_port) == 0
            first.wait_for("delivery.sent", count=3)
            assert first.stop() == 0
        with Service(settings, die_at=step) as second:
            orders = int(str(second.logged("service.ready")[0]["orders_port"]))
            assert codes(mllp.ask(orders, message, message))[:1] == ["AA"]
            assert second.wait_until_dead() == -9

        with Service(settings) as third:
            archive.wait_until(lambda: any(b"113037" in kept.content for kept in archive.kept))
            system.wait_for_kept(2)
            third.wait_for("study.finished")
            third.stop()

        new = {str(kept.dataset.SOPInstanceUID): kept.dataset for kept in archive.kept[2:]}
        assert sorted(dataset.Modality for dataset in new.values()) == ["KO", "PR", "SR"]
        assert {dataset.Modality: str(dataset.PatientID) for dataset in new.values()} == {
            "KO": "P-1",
            "PR": "P-2",
            "SR": "P-2",
        }
        assert {next(read(kept.content).named("PID")).text(3) for kept in system.kept} == {"P-1", "P-2"}
        assert "WRONG" not in json.dumps(third.lines)


@pytest.mark.drill(part="peers")
def test_an_update_with_another_name_waits_for_a_person(tmp_path: Path) -> None:
    message = adt("A08", "P-1", "Kist^Ina").encode()
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        settings = settings_with(system, tmp_path / "node", archive_port=archive.port)
        settings = replace(
            settings,
            orders=replace(settings.orders or OrdersSettings(hosts=()), patient_updates=True),
            http=HttpSettings(port=0, password_file=users_in(tmp_path, "ada")),
        )
        with Service(settings) as node:
            assert peers.send(films.thumbnail({**OLD, "PatientName": "MUELLER^JOE"}), port=node.dicom_port) == 0
            study = str(node.wait_for("study.finished")["study"])
            orders = int(str(node.logged("service.ready")[0]["orders_port"]))

            assert codes(mllp.ask(orders, message)) == ["AA"]
            node.wait_for("patient.held")
            peers.wait_until(lambda: "at update" in status(node), what="the study is parked")

            explained, shown = run_command("explain", study, node.settings_path).stdout, page(node, study)
            told = run_command("retry", node.settings_path, study, "--update", "accept")
            archive.wait_until(lambda: any(b"113037" in kept.content for kept in archive.kept))
            node.wait_for("study.finished", count=2)
            peers.wait_until(lambda: "parked" not in status(node).splitlines()[-1], what="nothing is parked")
            again = run_command("retry", node.settings_path, study, "--update", "refuse")

        assert "--update accept" in explained
        assert all(part in shown for part in ("--update accept", "Kist, Ina", "MUELLER, JOE"))
        assert "data-retry" not in shown
        assert (told.returncode, again.returncode) == (0, 2)
        assert told.stdout == f"{study}: 1 accepted\n"
        assert "no update of its patient waits" in again.stderr
        assert {str(kept.dataset.PatientName) for kept in archive.kept} == {"MUELLER^JOE", "Kist^Ina"}
        assert "Kist" not in json.dumps(node.lines) + explained + told.stdout


def page(node: Service, study: str) -> str:
    request = urllib.request.Request(f"http://{peers.LOOPBACK}:{node.http_port}/studies/{study}", headers=BASIC)
    with peers.DIRECT.open(request, timeout=30) as answer:
        return str(answer.read().decode())


def status(node: Service) -> str:
    return run_command("status", node.settings_path).stdout
