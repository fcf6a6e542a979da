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
from tests.support.orthanc import DEPLOYED, Orthanc
from tests.support.peers import ReceivingArchive, send, wait_until

pytestmark = pytest.mark.drill(part="peers")


@pytest.fixture
def node() -> Iterator[ReceivingArchive]:
    with ReceivingArchive(ae_title="CHEX", compressed=[JPEG2000Lossless]) as archive:
        yield archive


@pytest.fixture
def orthanc(tmp_path: Path, node: ReceivingArchive) -> Iterator[Orthanc]:
    with Orthanc(tmp_path, node_port=node.port) as running:
        yield running


@pytest.fixture
def hasty_orthanc(tmp_path: Path, node: ReceivingArchive) -> Iterator[Orthanc]:
    """Calls a study stable after a second, so that the second chance of a film is no long wait."""
    with Orthanc(tmp_path, node_port=node.port, settings={"StableAge": 1}) as running:
        yield running


def radiograph(*, study_uid: str, body_part: str = "CHEST", description: str = "PA") -> Dataset:
    """A small picture with all that routing looks at."""
    film = dcmread(Path(str(get_testdata_file("MR_small.dcm", download=False))))
    film.Modality, film.BodyPartExamined, film.SeriesDescription = "CR", body_part, description
    film.SOPClassUID = film.file_meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    film.SOPInstanceUID = film.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    film.StudyInstanceUID, film.SeriesInstanceUID = study_uid, generate_uid()
    return film


def dose_report(*, beside: Dataset) -> Dataset:
    """A structured report of the same study; Orthanc takes it for another one where the patient ID differs."""
    report = dcmread(Path(str(get_testdata_file("test-SR.dcm", download=False))))
    report.PatientID, report.StudyInstanceUID = beside.PatientID, beside.StudyInstanceUID
    report.SeriesInstanceUID = generate_uid()
    return report


def key_object(*, of: Dataset, title: str = "113038") -> Dataset:
    """A Key Object Selection Document with all that routing looks at."""
    note = dose_report(beside=of)
    note.Modality, note.SOPInstanceUID = "KO", generate_uid()
    note.SOPClassUID = note.file_meta.MediaStorageSOPClassUID = KeyObjectSelectionDocumentStorage
    note.file_meta.MediaStorageSOPInstanceUID = note.SOPInstanceUID
    note.ConceptNameCodeSequence[0].CodeValue = title
    note.ConceptNameCodeSequence[0].CodingSchemeDesignator = "DCM"
    return note


def routed(node: ReceivingArchive, orthanc: Orthanc) -> list[str]:
    """Everything the node was sent, by SOP Instance UID.

    Orthanc runs its script for one event after the other: when a last film has arrived, nothing earlier can follow.
    """
    last = radiograph(study_uid=generate_uid())
    orthanc.upload(last)
    wait_until(lambda: last.SOPInstanceUID in uids(node), what="the last film is routed")
    orthanc.wait_until_idle()
    return [uid for uid in uids(node) if uid != last.SOPInstanceUID]


def uids(node: ReceivingArchive) -> list[str]:
    return [request.sop_instance_uid for request in node.requests]


def test_a_chest_film_is_sent_to_the_node_once(
    node: ReceivingArchive, hasty_orthanc: Orthanc, chest_film: Path
) -> None:
    film = dcmread(chest_film)

    hasty_orthanc.upload(chest_film)
    wait_until(lambda: any(kind == "StableStudy" for kind, _ in hasty_orthanc.changes()), what="the study is stable")
    hasty_orthanc.upload(chest_film)

    assert routed(node, hasty_orthanc) == [film.SOPInstanceUID]
    assert node.requests[0].calling_ae == "ORTHANC"
    assert node.requests[0].dataset.PixelData == film.PixelData
    assert [arrival.sop_instance_uid for arrival in hasty_orthanc.arrivals()][:2] == [film.SOPInstanceUID] * 2
    assert hasty_orthanc.count(film.StudyInstanceUID) == 1


def test_a_compressed_film_is_sent_as_it_is(
    node: ReceivingArchive, orthanc: Orthanc, chest_film_jpeg2000: Path
) -> None:
    status = send(chest_film_jpeg2000, port=orthanc.dicom_port, called_ae="ORTHANC")

    (request,) = node.wait_for_requests(1)

    assert status == 0x0000
    assert request.transfer_syntax_uid == JPEG2000Lossless
    assert request.dataset.PixelData == dcmread(chest_film_jpeg2000).PixelData


@pytest.mark.parametrize(
    "description",
    ["AI findings S1 - RESEARCH, NOT FOR DIAGNOSIS", "AI RESEARCH - NOT FOR DIAGNOSIS: ChEX Node"],
    ids=["now", "of older versions"],
)
def test_what_the_node_sent_is_not_sent_back(node: ReceivingArchive, orthanc: Orthanc, description: str) -> None:
    study_uid = generate_uid()
    result = radiograph(study_uid=study_uid)
    imported = radiograph(study_uid=study_uid, description=description)
    film = radiograph(study_uid=study_uid)

    status = send(result, port=orthanc.dicom_port, called_ae="ORTHANC", calling_ae="CHEX")
    orthanc.upload(imported)
    orthanc.upload(film)

    assert status == 0x0000
    assert routed(node, orthanc) == [film.SOPInstanceUID]
    assert orthanc.count(study_uid) == 3
    assert [arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")] == [result.SOPInstanceUID]


def test_a_dose_report_beside_a_film_stays_and_does_not_block_it(node: ReceivingArchive, orthanc: Orthanc) -> None:
    study_uid = generate_uid()
    film = radiograph(study_uid=study_uid)

    orthanc.upload(dose_report(beside=film))
    orthanc.upload(film)

    assert routed(node, orthanc) == [film.SOPInstanceUID]
    assert orthanc.count(study_uid) == 2


def test_other_images_of_the_study_follow_the_chest_film(node: ReceivingArchive, orthanc: Orthanc) -> None:
    study_uid = generate_uid()
    before = radiograph(study_uid=study_uid, body_part="HAND")
    film = radiograph(study_uid=study_uid)
    after = radiograph(study_uid=study_uid, body_part="HAND")

    for image in (before, film, after):
        orthanc.upload(image)

    assert sorted(routed(node, orthanc)) == sorted(image.SOPInstanceUID for image in (before, film, after))


def test_a_rejection_note_is_sent_and_another_key_object_stays(node: ReceivingArchive, orthanc: Orthanc) -> None:
    film, gone = radiograph(study_uid=generate_uid()), radiograph(study_uid=generate_uid())
    notes = [key_object(of=film, title="113000"), key_object(of=film, title="113001"), key_object(of=gone)]

    for item in (film, *notes):
        orthanc.upload(item)

    assert sorted(routed(node, orthanc)) == sorted(item.SOPInstanceUID for item in (film, *notes[1:]))


def test_a_study_without_a_chest_film_is_left_alone(node: ReceivingArchive, orthanc: Orthanc) -> None:
    hand = radiograph(study_uid=generate_uid(), body_part="HAND")
    unnamed = radiograph(study_uid=generate_uid(), body_part="")

    orthanc.upload(hand)
    orthanc.upload(unnamed)

    assert routed(node, orthanc) == [unnamed.SOPInstanceUID]


def test_chest_films_are_known_in_other_languages(node: ReceivingArchive, orthanc: Orthanc) -> None:
    parts = ("THX", "KLATKA PIERSIOWA", "BRUST", "KNIE")
    named = [radiograph(study_uid=generate_uid(), body_part=part) for part in parts]

    for film in named:
        orthanc.upload(film)

    assert sorted(routed(node, orthanc)) == sorted(film.SOPInstanceUID for film in named[:3])


def test_a_film_from_while_the_node_was_down_is_routed_later(node: ReceivingArchive, hasty_orthanc: Orthanc) -> None:
    film = radiograph(study_uid=generate_uid())

    with node.down():
        hasty_orthanc.upload(film)
        wait_until(lambda: [job.state for job in hasty_orthanc.jobs()] == ["Failure"], what="the first job failed")
    (request,) = node.wait_for_requests(1)

    assert request.sop_instance_uid == film.SOPInstanceUID


def test_the_example_settings_of_the_two_sides_fit() -> None:
    archive = json.loads((DEPLOYED / "orthanc.json").read_text(encoding="utf-8"))
    node = load(DEPLOYED / "node.toml")

    (destination,) = node.destinations
    assert isinstance(destination, DicomDestination)
    assert archive["DicomModalities"] == {"CHEX": [node.listener.ae_title, node.listener.host, node.listener.port]}
    assert (destination.ae_title, destination.port) == (archive["DicomAet"], archive["DicomPort"])
    assert [caller.ae_title for caller in node.listener.callers] == [archive["DicomAet"]]
