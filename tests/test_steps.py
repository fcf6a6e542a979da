"""The steps of a round and of a delivery, one by one, with real files, a real database and a real archive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from node import prompts
from node.config import DicomDestination
from node.domain import Delivery, DeliveryState, PromptSet
from node.imaging import Radiograph
from node.inference import Reading
from node.ledger import Ledger, connect
from node.metrics import Metrics
from node.order_store import OrderStore
from node.pipeline import WRITERS, Pipeline
from node.spool import Spool
from node.steps import Json, Steps
from tests import films, peers
from tests.fakes import ScriptedReader

STUDY = films.thumbnail().StudyInstanceUID
HOUR = 3600.0


class FailingReader(ScriptedReader):
    """Meets a fault of the program."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise KeyError("Doe^Jane")


class Bench:
    """One study on a spool, and one archive."""

    def __init__(self, folder: Path, archive: peers.ReceivingArchive) -> None:
        self.archive, self.folder = archive, folder
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
        archive = DicomDestination(
            name="archive", ae_title=self.archive.ae_title, host=peers.LOOPBACK, port=self.archive.port
        )
        return Steps(
            pipeline=pipeline,
            ledger=self.ledger,
            metrics=Metrics(),
            destinations={"archive": archive},
            calling_aet="CHEX",
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
    with peers.ReceivingArchive() as archive:
        bench = Bench(tmp_path, archive)
        yield bench
        bench.ledger.close()


def first(written: Json) -> dict[str, str]:
    deliveries = written["deliveries"]
    assert isinstance(deliveries, dict)
    delivery = deliveries["archive"][0]
    assert isinstance(delivery, dict)
    return delivery


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


def test_an_object_that_was_sent_is_not_sent_again(bench: Bench) -> None:
    steps = bench.steps()
    _, written = bench.written(steps)
    assert steps.send(first(written), 1, time.time()) == {"outcome": "sent"}

    assert steps.send(first(written), 1, time.time()) == {"outcome": "sent"}

    assert len(bench.archive.requests) == 1


def test_an_object_that_is_not_taken_now_is_told_from_an_archive_that_is_down(bench: Bench) -> None:
    steps = bench.steps()
    _, written = bench.written(steps)
    bench.archive.refuse(0xA700)
    busy = steps.send(first(written), 1, time.time())
    bench.ledger.set_sent(replace(Delivery(**first(written)), sop_instance_uid="1.2"), attempts=1)
    assert bench.ledger.delayed_destinations() == set()
    with bench.archive.down():
        down = steps.send(first(written), 3, time.time())

    assert (busy["outcome"], busy["down"], busy["wait"]) == ("delayed", False, 1.0)
    assert (down["outcome"], down["down"], down["wait"]) == ("delayed", True, 4.0)
    assert bench.ledger.delayed_destinations() == {"archive"}


def test_a_delivery_that_failed_too_long_is_parked(bench: Bench) -> None:
    steps = bench.steps()
    _, written = bench.written(steps)
    bench.archive.refuse(0xA700)

    outcome = steps.send(first(written), 99, time.time() - 73 * HOUR)

    assert outcome == {"outcome": "parked"}
    assert "gave up after 72 hours" in bench.ledger.parked()[0].reason


def test_a_delivery_to_a_destination_that_is_gone_is_parked(bench: Bench) -> None:
    steps = bench.steps()
    _, written = bench.written(steps)
    delivery = Delivery(**{**first(written), "destination": "elsewhere"})

    assert steps.send(asdict(delivery), 1, time.time()) == {"outcome": "parked"}
    assert bench.ledger.delivery_state(delivery) is DeliveryState.PARKED


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


def counted(steps: Steps, name: str, **labels: str) -> float:
    return steps.metrics.registry.get_sample_value(name, labels) or 0.0


def test_the_last_delivery_of_a_round_ends_its_turnaround(bench: Bench) -> None:
    steps = bench.steps()
    (instance,) = bench.spool.study(STUDY).instances
    os.utime(instance.path, (time.time() - HOUR, time.time() - HOUR))
    _, written = bench.written(steps)
    deliveries = cast(dict[str, list[dict[str, str]]], written["deliveries"])["archive"]

    for number, delivery in enumerate(deliveries):
        assert counted(steps, "cxr_turnaround_seconds_count") == 0, number
        steps.send(delivery, 1, time.time())

    assert len(deliveries) == 2
    assert counted(steps, "cxr_turnaround_seconds_count") == 1
    assert HOUR <= counted(steps, "cxr_turnaround_seconds_sum") < 2 * HOUR


def test_failures_are_counted_by_stage_and_class(bench: Bench) -> None:
    steps = bench.steps(FailingReader())
    (instance,) = bench.spool.study(STUDY).instances
    steps.read(STUDY, instance.path.name)
    delivering = bench.steps()
    _, written = bench.written(delivering)
    bench.archive.refuse(0xA700)
    delivering.send(first(written), 1, time.time())
    delivering.send(first(written), 2, time.time() - 73 * HOUR)
    with bench.archive.down():
        delivering.send(first(written), 3, time.time())
    bench.archive.refuse(0xA900)
    delivering.send(first(written), 4, time.time())

    assert counted(steps, "cxr_failures_total", stage="read", reason="unforeseen") == 1
    for reason in ("busy", "expired", "down", "rejected"):
        assert counted(delivering, "cxr_failures_total", stage="deliver", reason=reason) == 1, reason
    assert counted(delivering, "cxr_step_duration_seconds_count", step="deliver") == 0
