"""The steps of a round, one by one, with real files and a real database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.exc import OperationalError

from node import prompts
from node.config import DicomDestination
from node.database import connect
from node.domain import PromptSet
from node.imaging import Radiograph
from node.inference import Reading
from node.ledger import Ledger
from node.metrics import Metrics
from node.order_store import OrderStore
from node.pipeline import WRITERS, Pipeline
from node.sending import Json
from node.spool import Spool
from node.steps import Steps
from tests import films, peers
from tests.fakes import ScriptedReader

STUDY = films.thumbnail().StudyInstanceUID
HOUR = 3600.0


class FailingReader(ScriptedReader):
    """Meets a fault of the program."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise KeyError("Doe^Jane")


class BrieflyAway(Ledger):
    """Its database is away when a study is first written."""

    _is_away = True

    def set_study(self, uid: str, state: str, *, stage: str | None = None, reason: str | None = None) -> None:
        if self._is_away:
            self._is_away = False
            raise OperationalError("INSERT", {}, ConnectionError())
        super().set_study(uid, state, stage=stage, reason=reason)


class Bench:
    """One study on a spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool, self.ledger = Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        body = films.file_bytes(films.thumbnail())
        self.spool.keep(study_uid=STUDY, sop_instance_uid=films.thumbnail().SOPInstanceUID, meta=b"", body=body)

    def steps(self, reader: ScriptedReader | None = None) -> Steps:
        pipeline = Pipeline(
            spool=self.spool,
            orders=OrderStore(self.folder),
            reader=reader or ScriptedReader(),
            prompts=prompts.load("chexpert14"),
            zone=ZoneInfo("UTC"),
            kinds=tuple(WRITERS),
        )
        archive = DicomDestination(name="archive", ae_title="ARCHIVE", host=peers.LOOPBACK, port=104)
        return Steps(
            pipeline=pipeline,
            ledger=self.ledger,
            metrics=Metrics(),
            destinations={"archive": archive},
            stat_seconds=900.0,
        )

    def written(self, steps: Steps) -> tuple[Json, Json]:
        """Plan, read and write; the plan and what was written."""
        plan = steps.plan(STUDY)
        assert plan is not None
        (instance,) = self.spool.study(STUDY).instances
        assert steps.read(STUDY, instance.path.name) == "read"
        written = steps.write(plan)
        assert written is not None
        return plan, written


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.ledger.close()


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
    assert (again["outputs"], again["deliveries"]) == (written["outputs"], written["deliveries"])
    assert {path: path.read_bytes() for path in bench.folder.rglob("outputs/*.dcm")} == before


def test_a_fault_of_the_program_parks_the_study_without_its_text(bench: Bench) -> None:
    steps = bench.steps(FailingReader())
    (instance,) = bench.spool.study(STUDY).instances

    assert steps.read(STUDY, instance.path.name) is None

    (parked,) = bench.ledger.parked()
    assert (parked.study, parked.stage) == (STUDY, "read")
    assert parked.reason.startswith("KeyError at test_steps.py")
    assert "Doe" not in parked.reason


def test_what_a_library_calls_an_error_of_the_system_parks_its_study_alone(bench: Bench) -> None:
    class Complaining(ScriptedReader):
        """Raises as pydicom and Pillow do for a file that ends too early: without the number that a disk gives."""

        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            raise OSError("no tag to read at file position 13890")

    (instance,) = bench.spool.study(STUDY).instances

    assert bench.steps(Complaining()).read(STUDY, instance.path.name) is None
    assert [one.study for one in bench.ledger.parked()] == [STUDY]


def test_a_full_disk_is_no_matter_of_one_study(bench: Bench) -> None:
    (bench.folder / "studies" / STUDY / "readings").write_text("in the way", encoding="utf-8")
    (instance,) = bench.spool.study(STUDY).instances

    with pytest.raises(OSError, match="readings"):
        bench.steps().read(STUDY, instance.path.name)

    assert bench.ledger.parked() == []


def test_a_film_that_ended_the_process_again_and_again_is_answered(bench: Bench) -> None:
    steps = bench.steps()
    (instance,) = bench.spool.study(STUDY).instances
    key = steps.pipeline._key(instance.path.name)
    for _ in range(4):
        bench.spool.begin_reading(STUDY, key)

    assert steps.read(STUDY, instance.path.name) == "undecodable"
