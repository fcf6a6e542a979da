"""What an archive rejects and a modality corrects, heard by a listener and followed by a worker, on one PostgreSQL."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.domain import derive_uid
from node.hl7.text import read
from tests.node.outputs.test_rejection import dcmtk_note, rejected_uids
from tests.support import films, peers
from tests.support.mllp import InformationSystem
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, settings_with

pytestmark = pytest.mark.drill(part="processes")


def film(patient: str) -> Dataset:
    """A film of a patient and a study of its own."""
    names = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
    own = {name: derive_uid(name, patient) for name in names}
    return films.thumbnail({**own, "PatientID": patient, "PatientName": "WRONG^PATIENT"})


def described(service: Service, study: Dataset) -> list[str]:
    """How far the films of a study are, by the interface of a process."""
    _, content = service.ask("GET", f"/api/v1/studies/{study.StudyInstanceUID}")
    return [str(each["status"]) for each in cast(list[dict[str, object]], content["films"])]


def test_a_worker_follows_what_a_listener_hears_once(postgres: Postgres, tmp_path: Path) -> None:
    rejected, wrong, last = film("P-1"), film("P-2"), film("P-3")
    corrected = films.changed(film("P-2"), {"PatientID": "P-9", "PatientName": "RIGHT^PATIENT"})
    with ExitStack() as processes, peers.ReceivingArchive() as archive, InformationSystem() as system:
        settings = on_database(settings_with(system, tmp_path / "node", archive_port=archive.port), postgres.url)
        started = [Service(settings, only=role) for role in ("listener", "worker", "sender")]
        listener, worker, sender = (processes.enter_context(service) for service in started)
        for each in (rejected, wrong):
            assert peers.send(each, port=listener.dicom_port) == 0
        sender.wait_for("delivery.sent", count=6)
        first = {str(kept.sop_instance_uid): kept.dataset for kept in archive.kept}

        dcmtk_note(tmp_path, rejected, title="113001")
        assert peers.send(dcmread(tmp_path / "note.dcm"), port=listener.dicom_port) == 0
        assert peers.send(corrected, port=listener.dicom_port) == 0
        sender.wait_for("delivery.sent", count=13)
        dcmtk_note(tmp_path, rejected, title="113001", uid="1.2.3.4.11")
        assert peers.send(dcmread(tmp_path / "note.dcm"), port=listener.dicom_port) == 0
        assert peers.send(corrected, port=listener.dicom_port) == 0
        worker.wait_for("study.finished", count=5)
        assert peers.send(last, port=listener.dicom_port) == 0
        sender.wait_for("delivery.sent", count=16)
        statuses = [described(listener, each) for each in (rejected, wrong)]
        assert [service.stop() for service in (listener, worker, sender)] == [0, 0, 0]

    new = [kept.dataset for kept in archive.kept if kept.sop_instance_uid not in first]
    notes = {str(dataset.StudyInstanceUID): dataset for dataset in new if dataset.Modality == "KO"}
    about = Counter((str(dataset.StudyInstanceUID), dataset.Modality) for dataset in new)
    results = {
        each.StudyInstanceUID: {
            uid for uid, dataset in first.items() if dataset.StudyInstanceUID == each.StudyInstanceUID
        }
        for each in (rejected, wrong)
    }
    assert about == {
        (rejected.StudyInstanceUID, "KO"): 1,
        **{(wrong.StudyInstanceUID, modality): 1 for modality in ("KO", "SR", "PR")},
        **{(last.StudyInstanceUID, modality): 1 for modality in ("SR", "PR")},
    }
    assert {uid: rejected_uids(note) for uid, note in notes.items()} == results
    titles = {uid: note.ConceptNameCodeSequence[0].CodeValue for uid, note in notes.items()}
    assert titles == {rejected.StudyInstanceUID: "113001", wrong.StudyInstanceUID: "113037"}
    names = {str(dataset.PatientName) for dataset in new if dataset.StudyInstanceUID == wrong.StudyInstanceUID}
    assert names == {"WRONG^PATIENT", "RIGHT^PATIENT"}, "the note has the old identity, the new version the new one"
    assert ("rejected" in statuses[0], "read" in statuses[0], statuses[1]) == (True, False, ["read"])
    assert len(system.kept) == len({kept.control_id for kept in system.kept}) == 6
    assert Counter(str(next(read(kept.content).named("OBR")).text(25)) for kept in system.kept) == {"P": 4, "X": 2}
    assert len(worker.logged("film.rejected")) == 1
    assert not listener.logged("study.finished") and not sender.logged("film.rejected")
