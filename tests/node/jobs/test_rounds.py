"""Rounds of one study in a running node: one after the other, only what is new is read, the newest result counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import pytest
from dbos import DBOSClient
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000Lossless

from models.contract import Box
from models.documents import encode
from node.config import ReportSettings, Settings, StudySettings
from node.domain import Delivery
from node.jobs.answer_steps import AnswerSteps
from node.output_kinds import DEFAULT_OUTPUTS
from node.outputs.asked_question import AskedQuestion
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.settings.destinations import DestinationSettings, DicomDestination
from node.store import questions
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.questions import SentAnswer
from node.store.spool import Spool
from tests.node.outputs.test_answer_objects import asked
from tests.support import films, peers, senders
from tests.support.fakes import ScriptedReader
from tests.support.service import Service, settings_for

STUDY = films.thumbnail().StudyInstanceUID


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let no reading end until the block does."""
    hold = folder / "hold"
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def film(name: str, study: str | None = None, **changes: object) -> Dataset:
    return films.as_another(films.thumbnail(changes), name, study=study)


def studies_in(directory: Path, status: str) -> int:
    """How many looks at studies the engine has in one state."""
    sql = connect(directory / "engine.sqlite")
    client = DBOSClient(system_database_engine=sql)
    try:
        return len(client.list_workflows(name="study", status=status))
    finally:
        client.destroy()
        sql.dispose()


def predecessor(report: Dataset) -> str:
    [study] = report.PredecessorDocumentsSequence
    return str(study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID)


def test_an_urgent_study_is_read_before_those_that_wait(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port(), callers=("TESTER", "EMERGENCY"))
    routine, emergency = settings.listener.callers
    callers = (routine, replace(emergency, priority="stat"))
    settings = replace(settings, listener=replace(settings.listener, callers=callers), report=ReportSettings(writers=0))
    urgent = film("urgent", "urgent")
    with Service(settings) as service:
        with held(tmp_path):
            for name in ("a", "b"):  # as many as are read at once without writers
                peers.send(film(name, name), port=service.dicom_port)
            service.wait_for("study.ready", count=2)
            for name in ("c", "d", "e"):
                peers.send(film(name, name), port=service.dicom_port)
            peers.send(urgent, port=service.dicom_port, calling_ae="EMERGENCY")
            peers.wait_until(
                lambda: studies_in(tmp_path / "node", "ENQUEUED") == 4, what="four studies wait", limit_seconds=60.0
            )
        service.wait_for("study.ready", count=6)
        assert service.stop() == 0

    assert urgent.StudyInstanceUID in [line["study"] for line in service.logged("study.ready")[2:4]]


@pytest.mark.drill(part="processes")
def test_rounds_of_one_study_run_one_after_the_other(tmp_path: Path) -> None:
    with Service(settings_for(tmp_path / "node", archive_port=peers.free_port())) as service:
        with held(tmp_path):
            peers.send(film("first"), port=service.dicom_port)
            service.wait_for("study.ready")
            peers.send(film("late"), port=service.dicom_port)
            peers.wait_until(
                lambda: studies_in(tmp_path / "node", "SUCCESS") > 0, what="the late film went back", limit_seconds=60.0
            )
        service.wait_for("study.finished", count=2)
        assert service.stop() == 0

    events = [line["event"] for line in service.lines if line["event"] in ("study.ready", "study.finished")]
    assert events == ["study.ready", "study.finished"] * 2


@pytest.mark.drill(part="peers")
def test_a_study_that_never_gets_quiet_is_read_all_the_same(settings: Settings) -> None:
    settings = replace(settings, study=StudySettings(quiet_seconds=4.0, max_seconds=4.5))
    sent = itertools.count()
    with Service(settings) as service:

        def is_ready_at_last() -> bool:
            assert peers.send(film(str(next(sent))), port=service.dicom_port) == 0
            return bool(service.logged("study.ready"))

        peers.wait_until(is_ready_at_last, what="it is read", limit_seconds=60.0)


class CountingReader(ScriptedReader):
    """Counts what it is asked to read."""

    count = 0

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        self.count += 1
        return super().read(image, prompts)


class Bench:
    """The rounds of one study, step by step; every bench on one folder is another run of the node."""

    def __init__(
        self,
        folder: Path,
        *archives: str,
        outputs: tuple[str, ...] = DEFAULT_OUTPUTS,
        zone: str = "UTC",
        spool: Spool | None = None,
        character_set: str = "",
        destinations: Sequence[DestinationSettings] = (),
        reader: ScriptedReader | None = None,
    ) -> None:
        self.spool, self.reader = spool or Spool(folder, character_set=character_set), CountingReader()
        self.ledger = Ledger(connect(folder / "ledger.sqlite"))
        wanted = destinations or [
            DicomDestination(name=name, ae_title="ARCHIVE", host=peers.LOOPBACK, port=104, outputs=outputs)
            for name in archives or ("archive",)
        ]
        kinds = dict.fromkeys(kind for destination in wanted for kind in destination.outputs)
        pipeline = senders.pipeline(self.spool, reader=reader or self.reader, kinds=tuple(kinds), zone=zone)
        self.steps = senders.steps(pipeline, self.ledger, *wanted)

    def receive(self, film: Dataset) -> None:
        films.keep(self.spool, film, study_uid=STUDY)

    def round(self, *, is_sent: bool = True) -> list[Delivery]:
        """Read what is new; what is to be delivered, and is delivered, or waits."""
        by_destination = senders.run_round(self.steps, STUDY)
        deliveries = [delivery for several in by_destination.values() for delivery in several]
        for delivery in deliveries if is_sent else ():
            self.ledger.set_sent(delivery, attempts=1)
        return deliveries

    def ask(self, film: str, number: int = 1, *, weights_sha256: str = "0" * 64) -> AskedQuestion:
        """Keep a question about a film, and its answer by the scripted reader or another model."""
        box = Box(left=2, top=3, right=20, bottom=30)
        facts = {"id": f"{number:032x}", "study_uid": STUDY, "film": film, "weights_sha256": weights_sha256}
        question = replace(asked(boxes=(box,)), **facts)
        self.spool.keep_document(STUDY, "questions", question.id, encode(question))
        return question

    def answer(self, film: str, number: int = 1, *, at: datetime | None = None) -> list[Delivery]:
        """Send the answer to a question about a film as a person does; at: when. Returns what is to be delivered."""
        question = self.ask(film, number)
        answer = SentAnswer(question=question.id, requested_at=at or datetime.now(UTC))
        questions.keep_answer(self.spool, STUDY, answer)
        return self.write_answer(question.id)

    def write_answer(self, question_id: str) -> list[Delivery]:
        """Run the step that writes an answer; what is to be delivered."""
        steps = self.steps
        written = AnswerSteps(
            pipeline=lambda: steps.pipeline, ledger=self.ledger, metrics=steps.metrics, destinations=steps.destinations
        ).write(STUDY, question_id)
        return [delivery for several in written.deliveries.values() for delivery in several]

    def objects(self, deliveries: list[Delivery], kind: str) -> list[Dataset]:
        return [
            dcmread(BytesIO(self.spool.output(delivery) or b"")) for delivery in deliveries if delivery.kind == kind
        ]


def test_only_the_late_film_is_read_and_sent_even_after_a_restart(tmp_path: Path) -> None:
    first, second = Bench(tmp_path), Bench(tmp_path)
    first.receive(film("first"))
    deliveries = [first.round(is_sent=False)]
    first.receive(film("late"))
    deliveries.append(first.round())
    second.receive(film("last"))
    deliveries.append(second.round())

    assert (first.reader.count, second.reader.count) == (2, 1)
    kinds = [sorted(delivery.kind for delivery in several) for several in deliveries]
    # The second SR is on the study; of a text that replaces another there are two.
    assert kinds == [["gsps", "sr"], ["gsps", "sr", "sr"], ["gsps", "sr", "sr", "sr"]]
    assert not {*deliveries[0]} & {*deliveries[1]}, "what still waits is not queued again"
    reports = [first.objects(several, "sr")[-1] for several in deliveries]
    assert "PredecessorDocumentsSequence" not in reports[1]
    assert predecessor(reports[2]) == reports[1].SOPInstanceUID


def test_each_correction_of_patient_data_makes_a_new_result(tmp_path: Path) -> None:
    names = ["Right^Name", "Wrong^Name", "Right^Name"]
    bench, deliveries = Bench(tmp_path), []
    for name in names:
        bench.receive(films.thumbnail({"PatientName": name}))
        deliveries += bench.round()

    for kind in ("sr", "gsps"):
        objects = bench.objects(deliveries, kind)
        assert [str(dataset.PatientName) for dataset in objects] == names
        assert len({dataset.SOPInstanceUID for dataset in objects}) == 3
    reports = bench.objects(deliveries, "sr")
    assert [predecessor(report) for report in reports[1:]] == [report.SOPInstanceUID for report in reports[:-1]]


@pytest.mark.drill(part="peers")
def test_an_added_destination_gets_the_results_of_later_rounds(tmp_path: Path) -> None:
    before, after = Bench(tmp_path), Bench(tmp_path, "archive", "added")
    before.receive(film("first"))
    before.round()
    before.receive(film("late"))

    deliveries = after.round()

    kinds = {
        name: sorted(delivery.kind for delivery in deliveries if delivery.destination == name)
        for name in ("archive", "added")
    }
    assert kinds == {"archive": ["gsps", "sr", "sr"], "added": ["gsps", "gsps", "sr", "sr", "sr"]}


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_film_that_comes_in_another_encoding_is_not_answered_again(tmp_path: Path, is_removed: bool) -> None:
    bench = Bench(tmp_path)
    bench.receive(films.thumbnail())
    bench.round()
    if is_removed:  # and what was delivered is known all the same
        bench.ledger.forget(STUDY)
        assert bench.spool.remove_study(STUDY)

    bench.receive(films.compressed(films.thumbnail(), JPEG2000Lossless))

    assert bench.round() == []
    assert len(list(tmp_path.rglob("outputs/*.dcm"))) == (0 if is_removed else 2)
