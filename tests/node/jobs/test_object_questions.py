"""Stored objects of workstations as questions: each is answered once, whatever ends in between, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node.config import QuestionsSettings, Settings
from node.store.questions import objects_of
from node.store.spool import Spool
from tests.support import films, peers, workstation
from tests.support.service import Service, read_and_stop, run_command, settings_for
from tests.support.workstation import TRACKING, finding, group, note, rectangle, region, report, state

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]
STATE = state(FILM, graphics=[rectangle(2, 3, 20, 30, tracking=TRACKING)], texts=[note("edema", 5, 5)])
REPORT = report(FILM, group(finding("edema"), region(FILM, "POLYLINE", SQUARE), tracking=TRACKING))
ASKED_BY_ALL = QuestionsSettings(ae_titles=("TESTER",))
# look, queue, answer, queue, send, send, and those of the study's round: plan, read, read, write, finish, ready
STEPS = 12


@pytest.fixture
def archive() -> Iterator[peers.ReceivingArchive]:
    with peers.ReceivingArchive() as archive:
        yield archive


def settings_of(tmp_path: Path, archive: peers.ReceivingArchive, questions: QuestionsSettings) -> Settings:
    settings = settings_for(tmp_path / "node", archive_port=archive.port)
    return replace(settings, questions=questions)


@pytest.fixture
def settings(tmp_path: Path, archive: peers.ReceivingArchive) -> Settings:
    """The settings of a node that has read and delivered one film, and is stopped."""
    settings = settings_of(tmp_path, archive, ASKED_BY_ALL)
    read_and_stop(settings, FILM)
    return settings


def answers(archive: peers.ReceivingArchive) -> dict[str, Dataset]:
    """The objects of the archive that are answers, by modality."""
    kept = [received.dataset for received in archive.kept]
    return {dataset.Modality: dataset for dataset in kept if "answer" in dataset.SeriesDescription}


def references(dataset: Dataset, keyword: str) -> set[str]:
    return {
        instance.ReferencedSOPInstanceUID
        for study in dataset.get(keyword, ())
        for series in study.ReferencedSeriesSequence
        for instance in series.ReferencedSOPSequence
    }


@pytest.mark.parametrize(("asking", "is_report"), [(STATE, False), (REPORT, True)])
def test_an_answer_names_the_object_that_asked(
    settings: Settings, archive: peers.ReceivingArchive, asking: Dataset, is_report: bool
) -> None:
    with Service(settings) as service:
        assert peers.send(asking, port=service.dicom_port) == 0
        archive.wait_for_kept(4)
        assert service.stop() == 0

    answer = answers(archive)
    predecessors = references(answer["SR"], "PredecessorDocumentsSequence")
    evidence = references(answer["SR"], "CurrentRequestedProcedureEvidenceSequence")
    named = {str(asking.SOPInstanceUID)}
    assert (predecessors, evidence - {str(FILM.SOPInstanceUID)}) == ((named, set()) if is_report else (set(), named))
    drawn = [
        graphic
        for annotation in answer["PR"].GraphicAnnotationSequence
        for graphic in annotation.get("GraphicObjectSequence", ())
    ]
    assert TRACKING in {graphic.get("TrackingUID") for graphic in drawn}
    assert answer["PR"].InstanceNumber > asking.InstanceNumber
    assert answer["PR"].ContentDescription.endswith("version 2")
    assert b"Reader" in next(
        received.content for received in archive.kept if received.sop_instance_uid == answer["SR"].SOPInstanceUID
    )


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize("die_at", range(1, STEPS + 1))
def test_a_kill_after_any_step_answers_once(settings: Settings, archive: peers.ReceivingArchive, die_at: int) -> None:
    with Service(settings, die_at=die_at) as first:
        assert peers.send(REPORT, port=first.dicom_port) == 0
        assert first.wait_until_dead() == -9

    with Service(settings) as second:
        archive.wait_for_kept(4)
        assert peers.send(REPORT, port=second.dicom_port) == 0  # the archive sends it again
        if not first.logged("study.finished"):  # the answer's objects may be sent after the study's round
            second.wait_for("study.finished")
        assert second.stop() == 0

    # What another thread was sending at the kill comes again, the same to the byte.
    contents = {(received.sop_instance_uid, received.content) for received in archive.kept}
    assert len({received.sop_instance_uid for received in archive.kept}) == len(contents) == 4
    assert len(archive.requests) <= 5


@pytest.mark.drill(part="kills")
def test_an_accepted_object_survives_the_loss_of_databases(settings: Settings, archive: peers.ReceivingArchive) -> None:
    late = films.as_another(films.thumbnail(), "late")
    with Service(settings) as service:
        assert peers.send(report(late, group(region(late, "POLYLINE", SQUARE))), port=service.dicom_port) == 0
        service.wait_for("study.finished")  # the object waits for its film
        service.kill()
    for path in settings.storage.directory.glob("*.sqlite*"):
        path.unlink()

    with Service(settings) as service:
        assert peers.send(late, port=service.dicom_port) == 0
        service.wait_for("question.answered")
        archive.wait_until(lambda: len(answers(archive)) == 2)
        assert len(service.logged("question.answered")) == 1


@pytest.mark.drill(part="peers")
def test_an_object_without_its_film_ends_with_a_reason(tmp_path: Path, archive: peers.ReceivingArchive) -> None:
    settings = settings_of(tmp_path, archive, replace(ASKED_BY_ALL, wait_minutes=0.02))
    with Service(settings) as service:
        assert peers.send(REPORT, port=service.dicom_port) == 0
        refused = service.wait_for("question.refused")
        assert peers.send(FILM, port=service.dicom_port) == 0
        archive.wait_for_kept(2)
        assert service.stop() == 0

    [mark] = objects_of(Spool(settings.storage.directory), STUDY)
    assert not mark.is_open
    assert mark.reasons == (refused["reason"],)
    assert "did not arrive" in mark.reasons[0]
    assert answers(archive) == {}


@pytest.mark.drill(part="peers")
@pytest.mark.parametrize(
    ("questions", "is_answered"),
    [
        (QuestionsSettings(), False),
        (QuestionsSettings(ae_titles=("OTHER",)), False),
        (QuestionsSettings(creators=("workstation",), labels=("ASK AI",)), True),
        (QuestionsSettings(creators=("Reader Rita",)), True),
        (QuestionsSettings(ae_titles=("TESTER",), labels=("other",)), False),
    ],
)
def test_the_settings_say_what_a_question_is(
    tmp_path: Path, archive: peers.ReceivingArchive, questions: QuestionsSettings, is_answered: bool
) -> None:
    settings = settings_of(tmp_path, archive, questions)
    with Service(settings) as service:
        assert peers.send_all([FILM, STATE], port=service.dicom_port) == [0, 0]
        archive.wait_for_kept(4 if is_answered else 2)
        service.wait_for("study.finished")
        assert service.stop() == 0

    assert len(answers(archive)) == (2 if is_answered else 0)


@pytest.mark.drill(part="peers")
def test_the_node_never_asks_itself(settings: Settings, archive: peers.ReceivingArchive) -> None:
    with Service(settings) as service:
        assert peers.send(REPORT, port=service.dicom_port) == 0
        archive.wait_for_kept(4)
        for received in archive.kept:
            assert peers.send(received.dataset, port=service.dicom_port) == 0
        ignored = service.wait_for("question.ignored", count=4)
        service.wait_for("study.finished")
        assert service.stop() == 0

    assert ignored["reason"] == "the node wrote this object"
    assert len(archive.kept) == 4


@pytest.mark.drill(part="peers")
def test_a_changed_object_is_not_answered_again(settings: Settings, archive: peers.ReceivingArchive) -> None:
    changed = report(FILM, group(finding("fracture"), region(FILM, "POLYLINE", SQUARE)))
    with Service(settings) as service:
        assert peers.send(REPORT, port=service.dicom_port) == 0
        archive.wait_for_kept(4)
        assert peers.send(changed, port=service.dicom_port) == 0
        ignored = service.wait_for("question.ignored")
        assert service.stop() == 0

    assert "with other bytes" in str(ignored["reason"])
    assert len(archive.kept) == 4


@pytest.mark.drill(part="peers")
@pytest.mark.parametrize(
    ("asking", "reason"),
    [
        (report(FILM, name="empty"), "no graphic and no text"),
        (state(FILM, graphics=[rectangle(900, 900, 990, 990)]), "outside the film"),
        (report(FILM, group(region(FILM, "POINT", [3, 3]))), "no area"),
    ],
)
def test_what_cannot_be_answered_says_why(
    settings: Settings, archive: peers.ReceivingArchive, asking: Dataset, reason: str
) -> None:
    with Service(settings) as service:
        assert peers.send(asking, port=service.dicom_port) == 0
        refused = service.wait_for("question.refused")
        service.wait_for("study.finished")
        explained = run_command("explain", asking.SOPInstanceUID, service.settings_path).stdout
        assert service.stop() == 0

    assert reason in str(refused["reason"])
    assert refused["calling_aet"] == "TESTER"
    assert reason in explained
    assert len(archive.kept) == 2


@pytest.mark.drill(part="peers")
def test_each_graphic_of_an_object_is_answered(settings: Settings, archive: peers.ReceivingArchive) -> None:
    boxes = [rectangle(2, 3, 20, 30), rectangle(40, 3, 60, 30), workstation.graphic("POINT", [3, 3])]
    with Service(settings) as service:
        assert peers.send(state(FILM, graphics=boxes), port=service.dicom_port) == 0
        answered = service.wait_for("question.answered")
        archive.wait_for_kept(2 + 4)
        assert service.stop() == 0

    versions = {
        received.dataset.ContentDescription[-1] for received in archive.kept[2:] if received.dataset.Modality == "PR"
    }
    assert (answered["questions"], answered["calling_aet"], versions) == (2, "TESTER", {"2", "3"})
    assert "no area" in str(answered["reason"])


@pytest.mark.drill(part="peers")
def test_a_film_of_another_study_is_not_asked_about(settings: Settings, archive: peers.ReceivingArchive) -> None:
    other = films.as_another(films.thumbnail(), "other", study="another study")
    foreign = report(other, group(region(other, "POLYLINE", SQUARE)))
    foreign.StudyInstanceUID = STUDY
    settings = replace(settings, questions=replace(ASKED_BY_ALL, wait_minutes=0.02))
    with Service(settings) as service:
        assert peers.send_all([other, foreign], port=service.dicom_port) == [0, 0]
        refused = service.wait_for("question.refused")
        archive.wait_for_kept(4)
        assert service.stop() == 0

    assert "in this study" in str(refused["reason"])
    assert answers(archive) == {}
