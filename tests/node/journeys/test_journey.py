"""Modality to PACS: films in through one socket, SR and GSPS out through another, in a service of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000Lossless

from node.commands.operate import status
from node.config import ModelSettings
from tests.support import films, peers
from tests.support.service import Service, run_command, settings_for


def tracking_uids(report: Dataset) -> set[str]:
    """Every tracking UID (112040, DCM) of a report."""
    found = set()
    for item in report.iterall():
        if item.keyword == "UID":
            found.add(str(item.value))
    return found


@pytest.mark.parametrize("engine", ["onnx", pytest.param("torch", marks=pytest.mark.drill(part="runtimes"))])
def test_two_films_come_back_as_reports_and_overlays(
    tmp_path: Path, phantom_model: Path, opacity_film: Path, engine: str
) -> None:
    first, second = dcmread(opacity_film), films.as_another(dcmread(opacity_film), "second")
    with peers.ReceivingArchive() as archive:
        settings = settings_for(
            tmp_path / "node",
            archive_port=archive.port,
            model=ModelSettings(directory=phantom_model, engine=engine),
            quiet_seconds=1.0,
        )
        with Service(settings, scripted=False) as service:
            assert peers.send_all([first, second], port=service.dicom_port) == [0, 0]
            archive.wait_for_kept(5, limit_seconds=120)
            assert service.stop() == 0

    answers = [received.dataset for received in archive.kept]
    reports, states = ([answer for answer in answers if answer.Modality == kind] for kind in ("SR", "PR"))
    assert (len(reports), len(states)) == (3, 2)  # a report on each film, and one on the study
    assert len({report.SeriesInstanceUID for report in reports}) == 3
    for answer in answers:
        assert answer.StudyInstanceUID == first.StudyInstanceUID
        assert answer.PatientID == first.PatientID
        assert answer.SeriesDescription.endswith(" - RESEARCH, NOT FOR DIAGNOSIS")
    shown = {str(graphic.TrackingUID) for state in states for graphic in _findings_drawn(state)}
    assert shown
    assert shown <= {uid for report in reports for uid in tracking_uids(report)}


def test_a_film_that_is_sent_twice_adds_nothing(tmp_path: Path) -> None:
    film = films.thumbnail()
    with peers.ReceivingArchive() as archive:
        with Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service:
            peers.send(film, port=service.dicom_port)
            archive.wait_for_kept(2)
            service.wait_for("study.finished")
            assert service.stop() == 0
        settings = settings_for(tmp_path / "node", archive_port=archive.port, quiet_seconds=30.0)
        with Service(settings) as service:
            peers.send(film, port=service.dicom_port)
            service.wait_for("instance.repeated")
            assert service.stop() == 0

        assert len(archive.requests) == 2
    studies = status(settings)["studies"]
    assert (studies["receiving"], studies["finished"]) == (0, 1)  # not even looked at


@pytest.mark.drill(part="peers")
def test_the_same_film_in_another_encoding_adds_nothing(tmp_path: Path) -> None:
    film = films.thumbnail()
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        peers.send(film, port=service.dicom_port)
        service.wait_for("study.finished")
        peers.send(films.compressed(film, JPEG2000Lossless), port=service.dicom_port)
        service.wait_for("study.finished", count=2)
        assert service.stop() == 0

        assert len(archive.requests) == 2


@pytest.mark.drill(part="peers")
def test_a_late_film_gets_a_report_beside_the_first_films(tmp_path: Path) -> None:
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        peers.send(films.as_another(films.thumbnail(), "first"), port=service.dicom_port)
        first = next(received for received in archive.wait_for_kept(2) if received.dataset.Modality == "SR").dataset
        service.wait_for("study.finished")
        peers.send(films.as_another(films.thumbnail(), "late"), port=service.dicom_port)
        later = [received.dataset for received in archive.wait_for_kept(5)[2:]]
        service.wait_for("study.finished", count=2)
        assert service.stop() == 0
        assert len(archive.requests) == 5  # the first film's report and state are not sent again

    second, study = sorted((dataset for dataset in later if dataset.Modality == "SR"), key=lambda sr: sr.SeriesNumber)
    assert len({report.SeriesInstanceUID for report in (first, second, study)}) == 3
    assert not any("PredecessorDocumentsSequence" in report for report in (first, second, study))
    (evidence,) = study.CurrentRequestedProcedureEvidenceSequence
    named = {
        image.ReferencedSOPInstanceUID
        for series in evidence.ReferencedSeriesSequence
        for image in series.ReferencedSOPSequence
    }
    assert named == {films.as_another(films.thumbnail(), name).SOPInstanceUID for name in ("first", "late")}


@pytest.mark.drill(part="processes")
def test_a_corrected_patient_name_makes_a_new_version(tmp_path: Path) -> None:
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        peers.send(films.thumbnail(), port=service.dicom_port)
        service.wait_for("study.finished")
        peers.send(films.thumbnail({"PatientName": "Corrected^Name"}), port=service.dicom_port)
        answers = [received.dataset for received in archive.wait_for_kept(4)]

    assert len({answer.SOPInstanceUID for answer in answers}) == 4
    assert [str(answer.PatientName) for answer in answers].count("Corrected^Name") == 2


def test_an_archive_that_was_down_gets_everything_afterwards(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as service:
            with archive.down():
                peers.send(films.thumbnail(), port=service.dicom_port)
                service.wait_for("delivery.delayed")
                answer = json.loads(run_command("status", service.settings_path, "--json").stdout)
                assert answer["deliveries"]["archive"]["paused"] is True
            archive.wait_for_kept(2)
            service.wait_for("delivery.sent", count=2)
            took = [service.logged(event)[0] for event in ("film.decided", "study.finished", "delivery.sent")]
            answer = json.loads(run_command("status", service.settings_path, "--json").stdout)

    assert all(line["study"] == films.thumbnail().StudyInstanceUID for line in took)
    assert all(0 < float(str(line["seconds"])) < 60 for line in took)
    assert answer["ready"] is True
    assert answer["deliveries"]["archive"] == {
        "waiting": 0, "sending": 0, "sent": 2, "parked": 0, "committed": 0, "paused": False
    }  # fmt: skip


@pytest.mark.drill(part="peers")
def test_objects_refused_for_now_go_out_later_and_delay_no_other(tmp_path: Path) -> None:
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        archive.refuse(0xA700)
        for name in ("a", "b", "c"):  # more studies than a destination has slots
            peers.send(films.as_another(films.thumbnail(), name, study=name), port=service.dicom_port)
        service.wait_for("delivery.delayed", count=6)
        archive.accept()
        received = archive.wait_for_kept(6)
        assert service.stop() == 0

    assert len({kept.sop_instance_uid for kept in received}) == 6


@pytest.mark.drill(part="processes")
def test_parked_deliveries_go_out_after_retry(tmp_path: Path) -> None:
    film = films.thumbnail()
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        archive.refuse(0xC000)
        peers.send(film, port=service.dicom_port)
        service.wait_for("delivery.parked", count=2)
        parked = json.loads(run_command("status", service.settings_path, "--json").stdout)["parked"]
        assert [(entry["study"], entry["stage"]) for entry in parked] == [
            (film.StudyInstanceUID, "deliver archive")
        ] * 2
        archive.accept()

        done = run_command("retry", service.settings_path, film.StudyInstanceUID, "--json")

        assert json.loads(done.stdout) == {"queued": {film.StudyInstanceUID: 2}}
        archive.wait_for_kept(2)
        service.wait_for("delivery.sent", count=2)
        unknown = run_command("retry", service.settings_path, "1.2.3")
        assert (unknown.returncode, "has no such study" in unknown.stderr) == (2, True)
        nowhere = run_command("retry", service.settings_path, "--destination", "nowhere")
        assert (nowhere.returncode, "no such destination" in nowhere.stderr) == (2, True)
        nothing = run_command("retry", service.settings_path, "--all")
        assert (nothing.returncode, nothing.stdout) == (0, "nothing is parked\n")
        unclear = run_command("retry", service.settings_path, film.StudyInstanceUID, "--all")
        assert (unclear.returncode, "one of the three" in unclear.stderr) == (2, True)


@pytest.mark.drill(part="peers")
@pytest.mark.parametrize("which", [("--all",), ("--destination", "archive")])
def test_what_is_parked_of_many_studies_goes_out_after_one_retry(tmp_path: Path, which: tuple[str, ...]) -> None:
    sent = [films.as_another(films.thumbnail(), name, study=name) for name in "ab"]
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        archive.refuse(0xC000)
        for film in sent:
            peers.send(film, port=service.dicom_port)
        service.wait_for("delivery.parked", count=4)
        archive.accept()

        done = run_command("retry", service.settings_path, *which, "--json")

        assert json.loads(done.stdout) == {"queued": {film.StudyInstanceUID: 2 for film in sent}}
        archive.wait_for_kept(4)


def test_no_line_and_no_metric_holds_patient_data(tmp_path: Path) -> None:
    film = films.thumbnail({"PatientName": "Zyxwvu^Qrst", "PatientID": "PID-7788", "AccessionNumber": "ACC-9911"})
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        peers.send(film, port=service.dicom_port)
        peers.send(films.as_another(films.cut_short(), "broken", study="broken"), port=service.dicom_port)
        archive.wait_for_kept(3)
        service.wait_for("study.finished", count=2)
        metrics = service.metrics()
        assert service.stop() == 0

    databases = b"".join(path.read_bytes() for path in (tmp_path / "node").glob("*.sqlite*"))
    for secret in ("Zyxwvu", "PID-7788", "ACC-9911"):
        assert secret not in json.dumps(service.lines)
        assert secret not in metrics
        assert secret.encode() not in databases


def _findings_drawn(state: Dataset) -> list[Dataset]:
    return [
        graphic
        for annotation in state.GraphicAnnotationSequence
        for graphic in annotation.get("GraphicObjectSequence", [])
        if "TrackingUID" in graphic
    ]
