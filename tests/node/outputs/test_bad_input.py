"""Whatever comes in, the node answers it, refuses it clearly, or leaves it alone; and it goes on working.

One running node takes all of it. Every film is a study of its own, so that its answer can be told from the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from pynetdicom import AE, _config, build_context

from node.domain import derive_uid
from node.outputs.sr.items import COMPREHENSIVE
from tests.support import films, peers
from tests.support.archived import StartNode
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="objects")

NOT_PROCESSED = "18748-4"  # LN Diagnostic imaging report: the root of an answer that says why nothing was read
JAPANESE = ("Yamada^Tarou=山田^太郎=やまだ^たろう", ["", "ISO 2022 IR 87"])
KOREAN = ("Hong^Gildong=洪^吉洞=홍^길동", ["", "ISO 2022 IR 149"])


class Node:
    def __init__(self, service: Service, archive: peers.ReceivingArchive) -> None:
        self.service, self.archive = service, archive

    def answers_to(self, film: Dataset, *, count: int) -> list[Dataset]:
        """Send a film and wait for what comes back into its study."""
        assert peers.send(film, port=self.service.dicom_port) == 0x0000
        return self.wait(film.StudyInstanceUID, count=count)

    def wait(self, study_uid: str, *, count: int) -> list[Dataset]:
        self.archive.wait_until(lambda: len(self._of(study_uid)) >= count)
        return self._of(study_uid)

    def reason(self, film: Dataset) -> object:
        decided = self.service.logged("film.decided")
        return next(line["reason"] for line in decided if line["sop_instance_uid"] == film.SOPInstanceUID)

    def _of(self, study_uid: str) -> list[Dataset]:
        answers = [received.dataset for received in list(self.archive.kept)]
        return sorted(
            (answer for answer in answers if answer.StudyInstanceUID == study_uid),
            key=lambda answer: str(answer.Modality),
        )


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Iterator[Node]:
    started = start_node()
    yield Node(started.service, started.archive)
    assert started.service.stop() == 0


@pytest.mark.parametrize("name", films.REFUSED)
def test_a_film_that_cannot_be_read_gets_a_visible_answer(node: Node, name: str) -> None:
    make, reason = films.REFUSED[name]
    film = films.as_another(make(), name, study=name)

    (answer,) = node.answers_to(film, count=1)

    assert answer.ConceptNameCodeSequence[0].CodeValue == NOT_PROCESSED
    assert node.reason(film) == reason


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("a NaN window", {"WindowCenter": float("nan"), "WindowWidth": float("nan")}),
        ("no patient id", {"PatientID": None}),
        ("no study date", {"StudyDate": None, "StudyTime": None}),
        ("no patient name", {"PatientName": None}),
        ("nothing known", {key: None for key in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex")}),
        ("a broken date", {"StudyDate": "20041399", "PatientBirthDate": "soon"}),
        ("no series", {"SeriesInstanceUID": None, "SeriesNumber": None}),
    ],
)
def test_a_film_with_a_poor_header_is_read(node: Node, name: str, changes: dict[str, object]) -> None:
    film = films.as_another(films.thumbnail(changes), name, study=name)

    state, report = node.answers_to(film, count=2)

    assert (state.Modality, report.Modality) == ("PR", "SR")
    assert node.reason(film) == "read"


@pytest.mark.parametrize(("name", "character_set"), [JAPANESE, KOREAN], ids=["Japanese", "Korean"])
def test_a_name_in_another_script_comes_back_as_it_was(node: Node, name: str, character_set: list[str]) -> None:
    film = films.thumbnail({"SpecificCharacterSet": character_set, "PatientName": name})
    film = films.as_another(film, name, study=name)

    for answer in node.answers_to(film, count=2):
        assert answer.SpecificCharacterSet == "ISO_IR 192"
        assert str(answer.PatientName) == name


def test_a_truncated_file_is_kept_and_answered(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = films.as_another(films.thumbnail(), "truncated", study="truncated")
    path = tmp_path / "truncated.dcm"
    path.write_bytes(films.truncated_bytes(film))
    monkeypatch.setattr(_config, "STORE_SEND_CHUNKED_DATASET", True)  # sends the bytes of the file as they are
    association = AE(ae_title="TESTER").associate(
        peers.LOOPBACK,
        node.service.dicom_port,
        ae_title="CHEX",
        contexts=[build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)],
    )

    status = association.send_c_store(path).Status
    association.release()

    assert status == 0x0000
    (answer,) = node.wait(film.StudyInstanceUID, count=1)
    assert answer.ConceptNameCodeSequence[0].CodeValue == NOT_PROCESSED


def test_a_study_with_other_objects_loses_nothing(node: Node) -> None:
    study = "mixed"
    others = [films.as_another(films.non_image(name), name, study=study) for name in films.NON_IMAGES]
    others.append(films.own_object(study=study))
    lateral = films.as_another(films.lateral(), "mixed lateral", study=study)
    frontal = films.as_another(films.thumbnail(), "mixed frontal", study=study)

    statuses = peers.send_all([*others, lateral, frontal], port=node.service.dicom_port)

    assert set(statuses) == {0x0000}
    state, *reports = node.wait(frontal.StudyInstanceUID, count=3)
    assert [answer.Modality for answer in (state, *reports)] == ["PR", "SR", "SR"]
    [report] = [answer for answer in reports if answer.SeriesNumber == COMPREHENSIVE.study_number]
    named = {
        image.ReferencedSOPInstanceUID
        for series in report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
        for image in series.ReferencedSOPSequence
    }
    assert named == {lateral.SOPInstanceUID, frontal.SOPInstanceUID}


def test_a_study_of_nothing_but_other_objects_is_left_alone(node: Node) -> None:
    report = films.non_image("dose report")
    report.StudyInstanceUID = derive_uid("test study", "dose only")

    assert peers.send(report, port=node.service.dicom_port) == 0x0000
    node.service.wait_for_line(
        lambda line: line["event"] == "study.finished" and line["study"] == report.StudyInstanceUID
    )

    assert not [
        received for received in node.archive.kept if received.dataset.StudyInstanceUID == report.StudyInstanceUID
    ]


def test_an_unknown_caller_gets_nothing_in(node: Node) -> None:
    film = films.as_another(films.thumbnail(), "unknown caller", study="unknown caller")

    assert peers.send(film, port=node.service.dicom_port, calling_ae="NOBODY") is None

    node.service.wait_for("association.refused")


def test_after_all_of_it_nothing_is_parked(node: Node) -> None:
    film = films.as_another(films.thumbnail(), "last", study="last")

    assert len(node.answers_to(film, count=2)) == 2
    assert node.service.logged("study.parked") == []
    assert node.service.logged("delivery.parked") == []
