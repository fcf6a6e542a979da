"""deploy/orthanc/route.lua in a real Orthanc, with a Storage SCP where the node will be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydicom import Dataset, dcmread
from pydicom.data import get_testdata_file
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    JPEG2000Lossless,
    KeyObjectSelectionDocumentStorage,
    generate_uid,
)

from node.config import load
from node.settings.destinations import DicomDestination
from tests.support import films
from tests.support.orthanc import DEPLOYED, Orthanc
from tests.support.peers import Received, ReceivingArchive, send, wait_until

pytestmark = pytest.mark.drill(part="peers")


@pytest.fixture(scope="module")
def node() -> Iterator[ReceivingArchive]:
    with ReceivingArchive(ae_title="CHEX", compressed=[JPEG2000Lossless]) as archive:
        yield archive


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory, node: ReceivingArchive) -> Iterator[Orthanc]:
    """Calls a study stable after a second, so that the second chance of a film is no long wait."""
    with Orthanc(tmp_path_factory.mktemp("orthanc"), node_port=node.port, settings={"StableAge": 1}) as running:
        yield running


def radiograph(*, study_uid: str, body_part: str = "CHEST", description: str = "PA") -> Dataset:
    """A small picture with all that routing looks at."""
    film = dcmread(Path(str(get_testdata_file("MR_small.dcm", download=False))))
    film.Modality, film.BodyPartExamined, film.SeriesDescription = "CR", body_part, description
    film.SOPClassUID = film.file_meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    film.SOPInstanceUID = film.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    film.StudyInstanceUID, film.SeriesInstanceUID = study_uid, generate_uid()
    return film


def report_beside(film: Dataset) -> Dataset:
    """A structured report of the same study; Orthanc takes it for another one where the patient ID differs."""
    report = dcmread(Path(str(get_testdata_file("test-SR.dcm", download=False))))
    report.PatientID, report.StudyInstanceUID = film.PatientID, film.StudyInstanceUID
    report.SeriesInstanceUID = generate_uid()
    return report


def key_object(film: Dataset, *, title: str = "113038") -> Dataset:
    """A Key Object Selection Document with all that routing looks at."""
    note = report_beside(film)
    note.Modality, note.SOPInstanceUID = "KO", generate_uid()
    note.SOPClassUID = note.file_meta.MediaStorageSOPClassUID = KeyObjectSelectionDocumentStorage
    note.file_meta.MediaStorageSOPInstanceUID = note.SOPInstanceUID
    note.ConceptNameCodeSequence[0].CodeValue = title
    note.ConceptNameCodeSequence[0].CodingSchemeDesignator = "DCM"
    return note


def received(node: ReceivingArchive, film: Dataset) -> list[Received]:
    """What the node was sent of a film."""
    return [request for request in node.requests if request.sop_instance_uid == film.SOPInstanceUID]


def routed(node: ReceivingArchive, orthanc: Orthanc, *uploaded: Dataset) -> list[Dataset]:
    """Upload objects; those of them that the node was sent, each once.

    Orthanc runs its script for one event after the other: when a last film has arrived, nothing earlier can follow.
    """
    last = radiograph(study_uid=generate_uid())
    for each in (*uploaded, last):
        orthanc.upload(each)
    wait_until(lambda: bool(received(node, last)), what="the last film is routed")
    orthanc.wait_until_idle()
    times = [len(received(node, each)) for each in uploaded]
    assert max(times) <= 1
    return [each for each, count in zip(uploaded, times, strict=True) if count]


def test_a_chest_film_is_sent_to_the_node_once(node: ReceivingArchive, orthanc: Orthanc, chest_film: Path) -> None:
    film = dcmread(chest_film)

    assert routed(node, orthanc, film) == [film]
    wait_until(lambda: any(kind == "StableStudy" for kind, _ in orthanc.changes()), what="the study is stable")
    assert routed(node, orthanc, film) == [film]

    (request,) = received(node, film)
    assert request.calling_ae == "ORTHANC"
    assert request.dataset.PixelData == film.PixelData
    assert [arrival.sop_instance_uid for arrival in orthanc.arrivals()].count(film.SOPInstanceUID) == 2
    assert orthanc.count(film.StudyInstanceUID) == 1


def test_a_compressed_film_is_sent_as_it_is(
    node: ReceivingArchive, orthanc: Orthanc, chest_film_jpeg2000: Path
) -> None:
    film = films.as_another(dcmread(chest_film_jpeg2000), "compressed", study="compressed")

    assert send(film, port=orthanc.dicom_port, called_ae="ORTHANC") == 0x0000

    wait_until(lambda: bool(received(node, film)), what="the film is routed")
    (request,) = received(node, film)
    assert request.transfer_syntax_uid == JPEG2000Lossless
    assert request.dataset.PixelData == film.PixelData


def test_what_the_node_sent_is_not_sent_back(node: ReceivingArchive, orthanc: Orthanc) -> None:
    study_uid = generate_uid()
    result, film = radiograph(study_uid=study_uid), radiograph(study_uid=study_uid)
    imported = [
        radiograph(study_uid=study_uid, description=description)
        for description in (
            "AI findings S1 - RESEARCH, NOT FOR DIAGNOSIS",
            "AI RESEARCH - NOT FOR DIAGNOSIS: ChEX Node",  # of older versions
        )
    ]

    assert send(result, port=orthanc.dicom_port, called_ae="ORTHANC", calling_ae="CHEX") == 0x0000

    assert routed(node, orthanc, *imported, film) == [film]
    assert not received(node, result)
    assert orthanc.count(study_uid) == 4


def test_what_the_node_may_read_is_routed_and_all_else_stays(node: ReceivingArchive, orthanc: Orthanc) -> None:
    film, gone = radiograph(study_uid=generate_uid()), radiograph(study_uid=generate_uid())
    selection, quality = (key_object(film, title=title) for title in ("113000", "113001"))
    study_uid = generate_uid()
    of_one_study = [radiograph(study_uid=study_uid, body_part=part) for part in ("HAND", "CHEST", "HAND")]
    chests, others = (
        [radiograph(study_uid=generate_uid(), body_part=part) for part in parts]
        for parts in (("THX", "KLATKA PIERSIOWA", "BRUST", ""), ("KNIE", "HAND"))
    )
    expected = [film, quality, key_object(gone), *of_one_study, *chests]
    staying = [report_beside(film), selection, *others]

    found = routed(node, orthanc, *expected, *staying)

    assert {each.SOPInstanceUID for each in found} == {each.SOPInstanceUID for each in expected}
    kept = {str(instance.SOPInstanceUID) for instance in orthanc.instances()}
    assert kept >= {str(each.SOPInstanceUID) for each in (*expected, *staying)}


def test_a_film_from_while_the_node_was_down_is_routed_later(node: ReceivingArchive, orthanc: Orthanc) -> None:
    film = radiograph(study_uid=generate_uid())

    with node.down():
        orthanc.upload(film)
        wait_until(lambda: "Failure" in [job.state for job in orthanc.jobs()], what="the first job failed")

    wait_until(lambda: len(received(node, film)) == 1, what="the film is routed")


def test_the_example_settings_of_the_two_sides_fit() -> None:
    archive = json.loads((DEPLOYED / "orthanc.json").read_text(encoding="utf-8"))
    node = load(DEPLOYED / "node.toml")

    (destination,) = node.destinations
    assert isinstance(destination, DicomDestination)
    assert archive["DicomModalities"] == {"CHEX": [node.listener.ae_title, node.listener.host, node.listener.port]}
    assert (destination.ae_title, destination.port) == (archive["DicomAet"], archive["DicomPort"])
    assert [caller.ae_title for caller in node.listener.callers] == [archive["DicomAet"]]
