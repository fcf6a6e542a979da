"""Stored objects of workstations as questions: each is answered once, whatever ends in between, or says why not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from structlog.testing import capture_logs

from node.config import QuestionsSettings
from node.dicom import question_object
from node.jobs.asking import QuestionAnswerer
from node.jobs.object_questions import Looked, ObjectSteps, objection, take
from node.metrics import Metrics
from node.read import prompts
from node.read.model import OpenModel
from node.store.questions import ObjectMark, objects_of
from node.store.spool import Spool
from tests.node.jobs.test_rounds import Bench
from tests.support import films, peers, workstation
from tests.support.fakes import ScriptedReader
from tests.support.service import Service, read_and_stop, settings_for
from tests.support.workstation import TRACKING, finding, group, note, rectangle, region, report, state

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]
STATE = state(FILM, graphics=[rectangle(2, 3, 20, 30, tracking=TRACKING)], texts=[note("edema", 5, 5)])
REPORT = report(FILM, group(finding("edema"), region(FILM, "POLYLINE", SQUARE), tracking=TRACKING))
ASKED_BY_ALL = QuestionsSettings(ae_titles=("TESTER",))


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The objects of one study, and the step that looks at them."""

    spool: Spool
    steps: ObjectSteps
    queued: list[str] = field(default_factory=list)

    def keep(self, *received: Dataset) -> None:
        for dataset in received:
            dataset.file_meta.SourceApplicationEntityTitle = "TESTER"
            films.keep(self.spool, dataset, study_uid=STUDY)

    def take(self) -> None:
        """Mark and queue what may be a question."""
        run_object = lambda _study, uid: self.queued.append(uid)  # noqa: E731
        take(self.spool, STUDY, settings=self.steps.settings, run_object=run_object)

    def look(self, asking: Dataset) -> Looked:
        """Take an object, and look at it."""
        self.keep(asking)
        self.take()
        return self.steps.look(STUDY, str(asking.SOPInstanceUID))

    def mark(self) -> ObjectMark:
        (mark,) = objects_of(self.spool, STUDY)
        return mark


@pytest.fixture
def study(tmp_path: Path) -> Asking:
    spool = Spool(tmp_path)
    model = OpenModel(reader=ScriptedReader(), prompts=prompts.load("chexpert14"))
    (destination,) = settings_for(tmp_path, archive_port=104).destinations
    steps = ObjectSteps(
        spool=spool,
        answerer=QuestionAnswerer(spool, model, Metrics()),
        metrics=Metrics(),
        settings=ASKED_BY_ALL,
        destinations={destination.name: destination},
    )
    return Asking(spool=spool, steps=steps)


@pytest.mark.parametrize(
    ("questions", "is_one"),
    [
        (QuestionsSettings(), False),
        (QuestionsSettings(ae_titles=("TESTER",)), True),
        (QuestionsSettings(ae_titles=("OTHER",)), False),
        (QuestionsSettings(creators=("workstation",), labels=("ASK AI",)), True),
        (QuestionsSettings(creators=("Reader Rita",)), True),
        (QuestionsSettings(ae_titles=("TESTER",), labels=("other",)), False),
    ],
)
def test_the_settings_say_what_a_question_is(questions: QuestionsSettings, is_one: bool) -> None:
    assert (objection(question_object.read(STATE), "TESTER", questions) is None) is is_one


def test_the_node_never_asks_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    deliveries = [*bench.round(), *bench.answer(str(FILM.SOPInstanceUID))]
    written = [dataset for kind in ("sr", "gsps") for dataset in bench.objects(deliveries, kind)]

    assert len(written) == 4
    for dataset in written:
        assert objection(question_object.read(dataset), "TESTER", ASKED_BY_ALL) == "the node wrote this object"


def test_an_object_is_answered_once(study: Asking) -> None:
    study.keep(FILM)
    answered = study.look(REPORT)
    changed = report(FILM, group(finding("fracture"), region(FILM, "POLYLINE", SQUARE)))
    with capture_logs() as said:
        again = [study.look(asking) for asking in (REPORT, changed)]

    assert len(answered.questions) == 1
    assert again == [answered, answered]
    assert study.queued == [REPORT.SOPInstanceUID], "a closed mark is not queued"
    assert ["with other bytes" in line["reason"] for line in said] == [True]
    assert len(study.spool.documents(STUDY, "questions")) == 1


def test_an_object_waits_for_its_film_and_ends_with_a_reason(study: Asking) -> None:
    assert (study.look(REPORT).wait_seconds or 0.0) > 0.0
    assert study.mark().is_open

    hasty = replace(study.steps, settings=replace(ASKED_BY_ALL, wait_minutes=0.0))
    assert hasty.look(STUDY, str(REPORT.SOPInstanceUID)) == Looked()

    assert not study.mark().is_open
    assert "did not arrive" in study.mark().reasons[0]


def test_a_film_of_another_study_is_not_asked_about(study: Asking) -> None:
    other = films.as_another(films.thumbnail(), "other", study="another study")
    films.keep(study.spool, other)

    assert study.look(report(other, group(region(other, "POLYLINE", SQUARE)))).wait_seconds


@pytest.mark.parametrize(
    ("asking", "reason"),
    [
        (report(FILM, name="empty"), "no graphic and no text"),
        (state(FILM, graphics=[rectangle(900, 900, 990, 990)]), "outside the film"),
        (report(FILM, group(region(FILM, "POINT", [3, 3]))), "no area"),
    ],
)
def test_what_cannot_be_answered_says_why(study: Asking, asking: Dataset, reason: str) -> None:
    study.keep(FILM)

    with capture_logs() as said:
        assert study.look(asking).questions == ()

    assert reason in study.mark().reasons[0]
    assert [(line["event"], line["calling_aet"]) for line in said] == [("question.refused", "TESTER")]


def test_each_graphic_of_an_object_is_answered(study: Asking) -> None:
    boxes = [rectangle(2, 3, 20, 30), rectangle(40, 3, 60, 30), workstation.graphic("POINT", [3, 3])]
    study.keep(FILM)

    assert len(study.look(state(FILM, graphics=boxes)).questions) == 2
    assert "no area" in study.mark().reasons[0]


def references(dataset: Dataset, keyword: str) -> set[str]:
    return {
        instance.ReferencedSOPInstanceUID
        for study in dataset.get(keyword, ())
        for series in study.ReferencedSeriesSequence
        for instance in series.ReferencedSOPSequence
    }


def test_an_answer_names_the_object_that_asked(tmp_path: Path, archive: peers.ReceivingArchive) -> None:
    settings = replace(settings_for(tmp_path / "node", archive_port=archive.port), questions=ASKED_BY_ALL)
    read_and_stop(settings, FILM)
    with Service(settings) as service:
        for asking, count in ((STATE, 4), (REPORT, 6)):
            assert peers.send(asking, port=service.dicom_port) == 0
            archive.wait_for_kept(count)
        assert service.stop() == 0

    for asking, received in ((STATE, archive.kept[2:4]), (REPORT, archive.kept[4:6])):
        answer = {kept.dataset.Modality: kept.dataset for kept in received}
        predecessors = references(answer["SR"], "PredecessorDocumentsSequence")
        evidence = references(answer["SR"], "CurrentRequestedProcedureEvidenceSequence") - {str(FILM.SOPInstanceUID)}
        named = {str(asking.SOPInstanceUID)}
        assert (predecessors, evidence) == ((named, set()) if asking is REPORT else (set(), named))
        drawn = [
            graphic.get("TrackingUID")
            for annotation in answer["PR"].GraphicAnnotationSequence
            for graphic in annotation.get("GraphicObjectSequence", ())
        ]
        assert TRACKING in drawn
        assert answer["PR"].InstanceNumber > asking.InstanceNumber
        assert answer["PR"].ContentDescription.endswith("version 2")
        assert any(b"Reader" in kept.content for kept in received if kept.dataset.Modality == "SR")


@pytest.mark.drill(part="kills")
def test_an_accepted_object_survives_the_loss_of_databases(tmp_path: Path, archive: peers.ReceivingArchive) -> None:
    settings = replace(settings_for(tmp_path / "node", archive_port=archive.port), questions=ASKED_BY_ALL)
    asking = report(FILM, group(region(FILM, "POLYLINE", SQUARE)))
    with Service(settings) as service:
        assert peers.send(asking, port=service.dicom_port) == 0
        service.wait_for("study.finished")  # the object waits for its film
        service.kill()
    for path in settings.storage.directory.glob("*.sqlite*"):
        path.unlink()

    with Service(settings) as service:
        assert peers.send(FILM, port=service.dicom_port) == 0
        service.wait_for("question.answered")
        archive.wait_for_kept(4)
        assert len(service.logged("question.answered")) == 1
