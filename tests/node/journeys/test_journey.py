"""Modality to PACS: films in through one socket, SR and GSPS out through another, whatever the archive does."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.commands import operate
from node.config import ModelSettings, Settings
from node.hl7.text import read
from node.settings.destinations import DicomDestination, Hl7Destination
from tests.support import films, mllp, peers
from tests.support.committing import Answer, Committing, report
from tests.support.mllp import InformationSystem, Mood
from tests.support.orthanc import Orthanc, beside_node
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, run_command, settings_for, settings_with

FILM = films.thumbnail({"PatientName": "Zyxwvu^Qrst", "PatientID": "PID-7788", "AccessionNumber": "ACC-9911"})
ORDER = "\r".join(
    (
        r"MSH|^~\&|RIS||CHEX||20240131||ORM^O01|C1|P|2.3.1",
        "PID|1||PID-7788||Zyxwvu^Qrst",
        "ORC|NW|P1^RIS|F1^RIS||||^^^^^S",
        "OBR|1|P1^RIS|F1^RIS|XCHEST||||||||||||||ACC-9911",
    )
)


@pytest.mark.parametrize("engine", ["onnx", pytest.param("torch", marks=pytest.mark.drill(part="runtimes"))])
def test_two_films_come_back_as_reports_and_overlays(
    tmp_path: Path, phantom_model: Path, opacity_film: Path, engine: str
) -> None:
    first, second = dcmread(opacity_film), films.as_another(dcmread(opacity_film), "second")
    model = ModelSettings(directory=phantom_model, engine=engine)
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port, model=model, quiet_seconds=1.0)
        with Service(settings, scripted=False) as service:
            assert peers.send_all([first, second], port=service.dicom_port) == [0, 0]
            archive.wait_for_kept(5, limit_seconds=120)
            assert service.stop() == 0

    answers = [received.dataset for received in archive.kept]
    reports, states = ([answer for answer in answers if answer.Modality == kind] for kind in ("SR", "PR"))
    assert (len(reports), len(states)) == (3, 2)  # a report on each film, and one on the study
    assert len({report.SeriesInstanceUID for report in reports}) == 3
    for answer in answers:
        assert (answer.StudyInstanceUID, answer.PatientID) == (first.StudyInstanceUID, first.PatientID)
        assert answer.SeriesDescription.endswith(" - RESEARCH, NOT FOR DIAGNOSIS")
    drawn = {str(item.value) for state in states for item in state.iterall() if item.keyword == "TrackingUID"}
    told = {str(item.value) for report in reports for item in report.iterall() if item.keyword == "UID"}
    assert drawn
    assert drawn <= told


def status_of(service: Service) -> dict[str, Any]:
    """What `node status` says."""
    found: dict[str, Any] = json.loads(run_command("status", service.settings_path, "--json").stdout)
    return found


def test_an_archive_that_was_down_gets_everything_afterwards(archive: ReceivingArchive, settings: Settings) -> None:
    with Service(settings) as service:
        with archive.down():
            peers.send(films.thumbnail(), port=service.dicom_port)
            service.wait_for("delivery.delayed")
            assert status_of(service)["deliveries"]["archive"]["paused"] is True
        archive.wait_for_kept(2)
        service.wait_for("delivery.sent", count=2)
        service.wait_for("destination.back")
        took = [service.logged(event)[0] for event in ("film.decided", "study.finished", "delivery.sent")]
        said = status_of(service)

    assert {line["study"] for line in took} == {films.thumbnail().StudyInstanceUID}
    assert all(0 < float(str(line["seconds"])) < 60 for line in took)
    assert said["ready"] is True
    assert said["deliveries"]["archive"] == {
        "waiting": 0, "sending": 0, "sent": 2, "parked": 0, "committed": 0, "paused": False
    }  # fmt: skip


@pytest.mark.drill(part="processes")
def test_parked_deliveries_go_out_after_retry(archive: ReceivingArchive, settings: Settings) -> None:
    first, second = study(1), study(2)
    with Service(settings) as service:
        archive.refuse(0xC000)
        for film in (first, second):
            peers.send(film, port=service.dicom_port)
        service.wait_for("delivery.parked", count=4)
        parked = [(entry["study"], entry["stage"]) for entry in status_of(service)["parked"]]
        assert sorted(parked) == sorted(2 * [(film.StudyInstanceUID, "deliver archive") for film in (first, second)])
        archive.accept()

        for which, film in (((first.StudyInstanceUID,), first), (("--destination", "archive"), second)):
            done = run_command("retry", service.settings_path, *which, "--json")
            assert json.loads(done.stdout) == {"queued": {film.StudyInstanceUID: 2}}
        archive.wait_for_kept(4)
        service.wait_for("delivery.sent", count=4)
        for words, code, said in (
            (["1.2.3"], 2, "has no such study"),
            (["--destination", "nowhere"], 2, "no such destination"),
            (["--all"], 0, "nothing is parked"),
            ([first.StudyInstanceUID, "--all"], 2, "one of the three"),
        ):
            done = run_command("retry", service.settings_path, *words)
            assert (done.returncode, said in done.stdout + done.stderr) == (code, True)


def test_a_result_answers_the_order_before_its_film_and_no_line_names_the_patient(tmp_path: Path) -> None:
    moods = iter((Mood.DROP_AFTER, Mood.ERROR))
    with (
        peers.ReceivingArchive() as archive,
        InformationSystem(lambda: next(moods, Mood.ACCEPT)) as system,
        Service(settings_with(system, tmp_path / "node", archive_port=archive.port)) as service,
    ):
        (answer,) = mllp.ask(int(str(service.logged("service.ready")[0]["orders_port"])), ORDER.encode())
        assert str(answer.segment("MSA")[1]) == "AA"
        assert peers.send(FILM, port=service.dicom_port) == 0
        archive.wait_for_kept(2)
        first, second = system.wait_for_kept(2)
        service.wait_for("delivery.sent", count=3)
        said = status_of(service)
        peers.send(films.as_another(films.cut_short(), "broken", study="broken"), port=service.dicom_port)
        service.wait_for("study.finished", count=2)
        metrics = service.metrics()
        assert service.stop() == 0

    assert first == second  # kept and not acknowledged, so it came again: the very same
    message = read(first.content)
    order = next(message.named("ORC"))
    assert (order.components(2), order.components(3)) == (("P1", "RIS"), ("F1", "RIS"))
    assert next(message.named("PID")).components(5)[:2] == ("Zyxwvu", "Qrst")
    report = next(received.dataset for received in archive.kept if received.dataset.Modality == "SR")
    assert [part.text(5) for part in message.named("OBX") if part.text(2) == "HD"] == [report.SOPInstanceUID]
    assert said["orders"] == {"stat": 1, "asap": 0, "routine": 0}
    assert said["deliveries"]["ris"]["sent"] == 1
    databases = b"".join(path.read_bytes() for path in (tmp_path / "node").glob("*.sqlite*"))
    for secret in ("Zyxwvu", "PID-7788", "ACC-9911"):
        assert secret not in json.dumps(service.lines) + metrics
        assert secret.encode() not in databases


def study(number: int) -> Dataset:
    """One film of a study of its own."""
    return films.as_another(films.thumbnail(), f"study {number}", study=f"study {number}")


def test_a_system_that_answers_a_probe_alone_gets_its_message_later(tmp_path: Path) -> None:
    ris = Hl7Destination(name="ris", host=peers.LOOPBACK, port=peers.free_port())
    settings = settings_for(tmp_path / "node", archive_port=1)
    with Service(dataclasses.replace(settings, destinations=(ris,))) as node:
        assert peers.send(FILM, port=node.dicom_port) == 0
        node.wait_for("destination.down")
        with socket.create_server((ris.host, ris.port)) as listening:
            listening.accept()[0].close()
        node.wait_for("delivery.delayed", count=2)
        with InformationSystem(port=ris.port) as system:
            assert len(system.wait_for_kept(1)) == 1
            node.wait_for("delivery.sent")
            assert node.stop() == 0


@pytest.mark.drill(part="peers")
def test_objects_that_break_every_association_delay_no_other(tmp_path: Path) -> None:
    poison = {study(number).StudyInstanceUID for number in range(2)}
    with peers.ReceivingArchive() as archive:
        archive.is_poison = lambda received: received.dataset.StudyInstanceUID in poison
        with Service(settings_for(tmp_path / "node", archive_port=archive.port)) as node:
            for number in range(4):
                assert peers.send(study(number), port=node.dicom_port) == 0
            archive.wait_for_kept(4, limit_seconds=60.0)
            assert {received.dataset.StudyInstanceUID for received in archive.kept}.isdisjoint(poison)
            assert node.logged("destination.down") == []
            archive.is_poison = lambda _: False
            archive.wait_for_kept(8, limit_seconds=60.0)


@pytest.mark.drill(part="peers")
def test_objects_sent_before_a_crash_are_committed_hours_later(tmp_path: Path) -> None:
    committing = Committing(Answer.NEVER)
    with peers.ReceivingArchive(handlers=committing.handlers) as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        (destination,) = settings.destinations
        assert isinstance(destination, DicomDestination)
        settings = dataclasses.replace(
            settings, destinations=(dataclasses.replace(destination, storage_commitment=True),)
        )
        with Service(settings, die_at=9) as first:  # ready, place, plan, read, write, queue, finish, send, send
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            assert first.wait_until_dead() == -9
        with Service(settings) as second:
            (request, *_) = committing.wait_for_requests(1)
            assert operate.status(settings)["deliveries"]["archive"]["sent"] == 2
            assert second.stop() == 0
        with Service(settings) as third:
            assert report(request, port=third.dicom_port, calling_ae="TESTER") is None  # not for others to say
            assert report(request, port=third.dicom_port) == 0x0000
            third.wait_for("delivery.committed", count=2)
            assert third.stop() == 0

    assert len(archive.requests) == 2
    found = operate.status(settings)["deliveries"]["archive"]
    assert (found["sent"], found["committed"], found["parked"]) == (0, 2, 0)


@pytest.mark.drill(part="peers")
def test_orthanc_commits_to_its_objects_though_it_is_no_caller(tmp_path: Path) -> None:
    dicom_port = peers.free_port()
    with Orthanc(tmp_path, node_port=dicom_port) as orthanc:
        settings = settings_for(
            tmp_path / "node", archive_port=orthanc.dicom_port, archive_ae=orthanc.ae_title, dicom_port=dicom_port
        )
        (archive,) = settings.destinations
        assert isinstance(archive, DicomDestination)
        archive = dataclasses.replace(archive, host="localhost", storage_commitment=True)
        settings = dataclasses.replace(settings, destinations=(archive,))
        with Service(settings) as node:
            assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
            node.wait_for("delivery.committed", count=2)
            assert node.logged("commitment.refused") == []
            assert peers.send(films.lateral(), port=node.dicom_port, calling_ae=orthanc.ae_title) is None  # no films
            assert node.stop() == 0

        committed = operate.status(settings)["deliveries"]["archive"]["committed"]
        assert committed == orthanc.count(films.thumbnail().StudyInstanceUID) == 2


def test_a_film_that_an_orthanc_routes_gets_report_and_overlay_in_its_study(tmp_path: Path, chest_film: Path) -> None:
    with beside_node(tmp_path) as (orthanc, settings), Service(settings) as service:
        orthanc.upload(chest_film)
        orthanc.wait_for_count(3)

        (study,) = orthanc.study_uids()
        found = orthanc.instances(study)
        assert sorted(instance.Modality for instance in found) == ["CR", "PR", "SR"]
        assert {instance.PatientID for instance in found} == {films.rg1().PatientID}
        orthanc.upload(chest_film)
        for result in found:  # as a sender that routes everything back
            assert peers.send(result, port=service.dicom_port, calling_ae=orthanc.ae_title) == 0x0000
        results = [instance.SOPInstanceUID for instance in found if instance.Modality != "CR"]
        peers.wait_until(
            lambda: (
                {line["sop_instance_uid"] for line in service.lines if line.get("reason") == "left:own_object"}
                == {*results}
            ),
            what="both results are left alone",
        )
        service.wait_for("study.finished", count=len(service.logged("study.ready")))
        assert service.stop() == 0
        arrived = [arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")]
        assert sorted(arrived) == sorted(results), "neither the film nor the results are answered again"
