"""The steps of a round, one by one, with real files and a real database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.exc import OperationalError

from models.documents import decode, encode
from node.deliver.results import Asked, DeliveryBatch, Outcome, Sent
from node.domain import StudyState
from node.errors import ModelLost
from node.jobs.object_questions import Looked
from node.jobs.round_steps import Steps, WrittenRound
from node.jobs.workflows import Planned
from node.metrics import Metrics
from node.orders.store import OrderStore
from node.output_kinds import DEFAULT_OUTPUTS
from node.outputs import batches
from node.outputs.batches import Batch, EncodedObject
from node.pipeline import Pipeline
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.rounds.planned import Round
from node.settings.destinations import DicomDestination
from node.store.begun import MOST_INTERRUPTIONS, BegunWork
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.received import sop_instance_uid_of
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.fakes import ScriptedReader

STUDY = films.thumbnail().StudyInstanceUID


class FailingReader(ScriptedReader):
    """Meets a fault of the program."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise KeyError("Doe^Jane")


class BrieflyAway(Ledger):
    """Its database is away when a study is first written."""

    _is_away = True

    def set_study(self, uid: str, state: StudyState, *, stage: str | None = None, reason: str | None = None) -> None:
        if self._is_away:
            self._is_away = False
            raise OperationalError("INSERT", {}, ConnectionError())
        super().set_study(uid, state, stage=stage, reason=reason)


class Bench:
    """One study on a spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool, self.ledger = Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        self.first = films.keep(self.spool, films.thumbnail()).instance

    def steps(self, reader: ScriptedReader | None = None) -> Steps:
        pipeline = Pipeline(
            spool=self.spool,
            orders=OrderStore(self.folder),
            reader=reader or ScriptedReader(),
            prompts=prompts.load("chexpert14"),
            zone=ZoneInfo("UTC"),
            kinds=DEFAULT_OUTPUTS,
        )
        archive = DicomDestination(name="archive", ae_title="ARCHIVE", host=peers.LOOPBACK, port=104)
        return Steps(
            pipeline=pipeline,
            ledger=self.ledger,
            metrics=Metrics(),
            destinations={"archive": archive},
            stat_seconds=900.0,
        )

    def written(self, steps: Steps) -> tuple[Round, WrittenRound]:
        """Plan, read and write; the plan and what was written."""
        plan = steps.plan(STUDY)
        assert plan is not None
        (instance,) = self.spool.study(STUDY).instances
        assert steps.read(STUDY, instance.path.name) == "read"
        written = steps.write(plan)
        assert written is not None
        return plan, written

    def round(self, steps: Steps) -> dict[str, str | None]:
        """Plan, read, write and finish; the outcome of each film by its SOP Instance UID."""
        plan = steps.plan(STUDY)
        assert plan is not None
        outcomes = {sop_instance_uid_of(file): steps.read(STUDY, file) for file in plan.files}
        written = steps.write(plan)
        assert written is not None
        assert steps.finish(plan, [str(outcome) for outcome in outcomes.values()], written) is False
        return outcomes

    def report(self) -> bytes:
        """The newest structured report, encoded."""
        return max(self.folder.rglob("outputs/*.sr.dcm"), key=lambda path: path.stat().st_mtime_ns).read_bytes()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.ledger.close()


def test_a_round_covers_no_object_that_was_not_taken(bench: Bench) -> None:
    seen = list[str]()

    def take(study_uid: str) -> None:
        seen.extend(instance.path.name for instance in bench.spool.study(study_uid).instances)
        films.keep(bench.spool, films.as_another(films.thumbnail(), "came meanwhile"))

    planned = replace(bench.steps(), take_objects=take).plan(STUDY)

    assert planned is not None
    assert planned.files == (bench.first.path.name,)
    assert set(planned.files) <= set(seen)


def test_what_reading_keeps_in_memory_changes_no_output(bench: Bench) -> None:
    asked = list[Batch]()

    def noted(steps: Steps) -> Steps:
        def write(batch: Batch) -> tuple[EncodedObject, ...]:
            asked.append(batch)
            return batches.write_batch(batch)

        return replace(steps, pipeline=replace(steps.pipeline, write_batch=write))

    plan, written = bench.written(noted(bench.steps()))
    again = noted(bench.steps()).write(plan)  # as after a restart; an output with another content would be refused

    assert again is not None
    assert again.outputs == written.outputs
    assert [batch.kinds for batch in asked] == [("sr",), ("gsps",)] * 2
    assert [len(batch.thumbnails) for batch in asked] == [1, 1, 0, 0]


def test_a_database_that_is_away_parks_no_study(bench: Bench, tmp_path: Path) -> None:
    with closing(BrieflyAway(connect(tmp_path / "ledger.sqlite"))) as ledger, pytest.raises(OperationalError):
        replace(bench.steps(), ledger=ledger).plan(STUDY)

    assert bench.ledger.parked() == []


def test_a_round_covers_its_files_once(bench: Bench) -> None:
    steps = bench.steps()
    plan, written = bench.written(steps)

    steps.finish(plan, ["read"], written)

    assert steps.plan(STUDY) is None
    assert bench.ledger.study_state(STUDY) == "finished"


def test_writing_twice_writes_and_sends_the_same(bench: Bench) -> None:
    steps = bench.steps()
    plan, written = bench.written(steps)
    before = {path: path.read_bytes() for path in bench.folder.rglob("outputs/*.dcm")}

    again = steps.write(plan)

    assert again is not None
    assert (again.outputs, again.queued.deliveries) == (written.outputs, written.queued.deliveries)
    assert {path: path.read_bytes() for path in bench.folder.rglob("outputs/*.dcm")} == before


def test_what_steps_record_is_read_again_as_it_was(bench: Bench) -> None:
    plan, written = bench.written(bench.steps())
    deliveries = next(iter(written.queued.deliveries.values()))

    for value in (
        Planned(round=plan),
        written,
        DeliveryBatch(deliveries=deliveries, started=1.5, attempt=2),
        Sent(outcome=Outcome.DELAYED, wait_seconds=2.0),
        Asked(again=deliveries, open=(), is_down=False, wait_seconds=5.0, at=7.0),
        Looked(questions=("a",)),
    ):
        assert decode(type(value), json.loads(json.dumps(encode(value)))) == value


def test_a_fault_of_the_program_parks_the_study_without_its_text(bench: Bench) -> None:
    steps = bench.steps(FailingReader())
    (instance,) = bench.spool.study(STUDY).instances

    assert steps.read(STUDY, instance.path.name) is None

    (parked,) = bench.ledger.parked()
    assert (parked.study, parked.stage) == (STUDY, "read")
    assert parked.reason.startswith("KeyError at test_steps.py")
    assert "Doe" not in parked.reason


def test_a_lost_gpu_ends_the_process_and_blames_no_film(bench: Bench) -> None:
    class WithoutGpu(ScriptedReader):
        """Its GPU met a permanent error."""

        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            raise ModelLost("NVIDIA L4 stopped computing")

    (instance,) = bench.spool.study(STUDY).instances
    steps = bench.steps(WithoutGpu())

    for _ in range(MOST_INTERRUPTIONS + 1):
        with pytest.raises(ModelLost):
            steps.read(STUDY, instance.path.name)

    assert bench.ledger.parked() == []
    assert bench.spool.count_begun_readings(STUDY) == 0
    assert bench.steps().read(STUDY, instance.path.name) == "read"


def test_an_os_error_raised_by_a_library_parks_only_its_study(bench: Bench) -> None:
    class Complaining(ScriptedReader):
        """Raises as pydicom and Pillow do for a file that ends too early: without the number that a disk gives."""

        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            raise OSError("no tag to read at file position 13890")

    (instance,) = bench.spool.study(STUDY).instances

    assert bench.steps(Complaining()).read(STUDY, instance.path.name) is None
    assert [parked.study for parked in bench.ledger.parked()] == [STUDY]


def test_a_full_disk_is_no_matter_of_one_study(bench: Bench) -> None:
    (bench.folder / "studies" / STUDY / "readings").write_text("in the way", encoding="utf-8")
    (instance,) = bench.spool.study(STUDY).instances

    with pytest.raises(OSError, match="readings"):
        bench.steps().read(STUDY, instance.path.name)

    assert bench.ledger.parked() == []


def test_a_reader_that_raises_again_and_again_blames_no_film(bench: Bench) -> None:
    (instance,) = bench.spool.study(STUDY).instances
    for _ in range(5):
        assert bench.steps(FailingReader()).read(STUDY, instance.path.name) is None

    assert bench.steps().read(STUDY, instance.path.name) == "read"


@contextmanager
def ended_while_reading(steps: Steps, file: str, *, times: int) -> Iterator[None]:
    """Leave what processes leave that end while they read a film: readings that neither returned nor raised."""
    path = steps.pipeline.spool.directory / "studies" / STUDY / "readings" / f"{steps.pipeline.films.key(file)}.begun"
    processes = [BegunWork(settled_seconds=0.0).counted(path) for _ in range(times)]
    path.parent.mkdir(exist_ok=True)
    for process in processes:
        process.__enter__()
    yield


def test_a_film_that_ended_four_processes_is_parked_alone(bench: Bench) -> None:
    steps, other = bench.steps(), films.as_another(films.thumbnail(), "other")
    films.keep(bench.spool, other)

    with ended_while_reading(steps, bench.first.path.name, times=4):
        outcomes = bench.round(steps)

    assert outcomes == {bench.first.sop_instance_uid: "interrupted", other.SOPInstanceUID: "read"}
    (parked,) = bench.ledger.parked()
    assert (parked.study, parked.stage) == (STUDY, "read")
    assert "the process ended 4 times while film" in parked.reason
    said = bench.report()
    assert all(uid.encode() in said for uid in outcomes)
    assert b"Not processed: the program ended several times while it was reading it" in said
    assert b"could not be decoded" not in said


def test_a_film_that_ended_the_process_is_read_on_request(bench: Bench) -> None:
    steps = bench.steps()
    with ended_while_reading(steps, bench.first.path.name, times=4):
        assert list(bench.round(steps).values()) == ["interrupted"]

    bench.spool.forget_interrupted_readings(STUDY)

    assert list(bench.round(steps).values()) == ["read"]
    assert bench.ledger.study_state(STUDY) == "finished"


@pytest.mark.drill(part="kills")
def test_a_film_over_which_the_process_ended_three_times_is_read(bench: Bench) -> None:
    steps = bench.steps()

    with ended_while_reading(steps, bench.first.path.name, times=3):
        assert steps.read(STUDY, bench.first.path.name) == "read"


def test_a_film_that_another_model_read_is_read_again(bench: Bench) -> None:
    steps = bench.steps()
    plan = steps.plan(STUDY)
    assert plan is not None
    assert steps.read(STUDY, bench.first.path.name) == "read"

    class Second(ScriptedReader):
        """Counts what it reads."""

        count = 0

        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            self.count += 1
            return super().read(image, prompts)

    second = Second("2")
    assert bench.steps(second).write(plan) is not None
    assert second.count == 1
    assert b"scripted 2" in bench.report()


def test_a_study_whose_workflow_was_lost_is_parked_unless_it_is_done(bench: Bench) -> None:
    steps = bench.steps()

    steps.park_lost(STUDY, reason="its thread ended")
    [row] = bench.ledger.parked()
    bench.round(steps)
    steps.park_lost(STUDY, reason="its thread ended")

    assert (row.study, row.stage) == (STUDY, "workflow")
    assert (bench.ledger.parked(), bench.ledger.study_state(STUDY)) == ([], "finished")


def test_a_film_that_came_during_a_round_asks_for_another_once(bench: Bench) -> None:
    steps = bench.steps()
    plan, written = bench.written(steps)
    films.keep(bench.spool, films.as_another(films.thumbnail(), "late"))

    assert steps.finish(plan, ["read"], written, is_awaited=lambda _study: True) is False
    assert steps.finish(plan, ["read"], written, is_awaited=lambda _study: False) is True
    assert bench.ledger.study_state(STUDY) == "receiving"
