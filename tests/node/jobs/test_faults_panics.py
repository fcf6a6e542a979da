"""A panic of a library in Rust, which is no `Exception`, is treated like any other fault: its work is parked alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Never

import pytest
from pydicom.uid import UID

from node.deliver.connections import Associations
from node.jobs.lost import MOST_LOSSES, Attended, LostWorkflows, Unattended
from node.jobs.running_steps import RunningSteps
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.settings.destinations import DicomDestination
from tests.support.damage import FILM, STUDY, Bench, benches
from tests.support.fakes import Panic, ScriptedReader
from tests.support.peers import wait_until


class PanickingReader(ScriptedReader):
    """Its runtime panics."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise Panic("Doe^Jane")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benches(tmp_path) as bench:
        yield bench


def panic(*_arguments: object, **_named: object) -> Never:
    raise Panic("Doe^Jane")


def test_a_panic_while_a_film_is_read_parks_its_study(bench: Bench) -> None:
    path = bench.keep(FILM)
    steps = replace(bench.steps, pipeline=replace(bench.steps.pipeline, reader=PanickingReader()))

    assert steps.read(STUDY, path.name) is None

    [row] = bench.ledger.parked()
    assert (row.study, row.stage) == (STUDY, "read")
    assert row.reason.startswith("Panic at test_faults_panics.py")
    assert bench.spool.count_begun_readings(STUDY) == 0  # it is no death of the process


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_thread_on_purpose_passes(bench: Bench, error: type[BaseException]) -> None:
    class Ending(ScriptedReader):
        """Ends its thread."""

        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            raise error

    path = bench.keep(FILM)
    steps = replace(bench.steps, pipeline=replace(bench.steps.pipeline, reader=Ending()))

    with pytest.raises(error):
        steps.read(STUDY, path.name)

    assert bench.ledger.parked() == []


def test_a_panic_while_an_output_is_sent_parks_it_alone(bench: Bench) -> None:
    class Panicking(Associations):
        """Panics when an association is taken."""

        def take(self, destination: DicomDestination, *, sop_class: UID, syntax: UID) -> Never:
            raise Panic("Doe^Jane")

    bench.keep(FILM)
    _, deliveries = bench.round()
    sending = replace(bench.sending, associations=Panicking())
    with closing(sending.associations):
        outcomes = [sending.send(delivery, 1, time.time()).outcome for delivery in deliveries[:1]]

    assert outcomes == ["parked"]
    [row] = bench.ledger.parked()
    assert row.reason.startswith("Panic at test_faults_panics.py")


def test_a_panic_in_a_step_leaves_no_step_in_hand() -> None:
    running = RunningSteps()

    with pytest.raises(Panic):
        running.run(panic)

    began = time.monotonic()
    running.close(limit_seconds=60.0)  # waits for the steps in hand
    assert time.monotonic() - began < 30.0


def test_a_panic_between_steps_is_noted_with_its_place() -> None:
    running, attended = RunningSteps(), Attended()
    running.attending = lambda: attended.run("a")

    with pytest.raises(Panic):
        running.guarded(panic)()

    assert not attended.holds("a")
    assert str(attended.reason("a")).startswith("Panic at test_faults_panics.py")
    assert not running.is_broken


def test_a_workflow_whose_thread_runs_is_attended() -> None:
    running, attended = RunningSteps(), Attended()
    running.attending = lambda: attended.run("a")
    held = list[bool]()

    running.guarded(lambda: held.extend([attended.holds("a"), attended.holds("b")]))()

    assert held == [True, False]


def test_a_workflow_that_fails_stays_attended_until_the_end() -> None:
    running, attended, attending = RunningSteps(), Attended(), threading.Event()
    running.attending = lambda: attended.run("a")

    def fail() -> None:
        attending.set()
        raise OSError("the database is away")

    threading.Thread(target=running.guarded(fail), daemon=True).start()
    assert attending.wait(timeout=30.0)
    wait_until(lambda: running.is_broken, what="it is broken")

    assert attended.holds("a")


def test_an_outcome_is_awaited_before_a_workflow_counts_as_lost() -> None:
    patient, hasty = Attended(), Attended(recording_seconds=0.0)

    for attended in (patient, hasty):
        with attended.run("a"):
            pass

    assert patient.holds("a")
    assert not hasty.holds("a")  # nothing was recorded in time


def test_a_workflow_stays_attended_while_its_second_thread_runs() -> None:
    attended = Attended(recording_seconds=0.0)

    with attended.run("a"):  # resumed, while the thread that began it ends
        with pytest.raises(Panic), attended.run("a"):
            panic()

        assert attended.holds("a")
    assert not attended.holds("a")


class Workflows:
    """Workflows that nobody runs, look by look."""

    def __init__(self, *looks: tuple[str, ...], name: str = "study") -> None:
        self.looks, self.name = list(looks), name
        self.again, self.ended, self.parked = list[str](), list[str](), list[str]()

    def unattended(self) -> list[Unattended]:
        ids = self.looks.pop(0) if self.looks else ()
        return [
            Unattended(id=found, name=self.name, queue="studies", study="1.2.3", arguments=("1.2.3",), reason=None)
            for found in ids
        ]

    def run_again(self, workflow: Unattended) -> None:
        self.again.append(workflow.id)

    def end(self, workflow: Unattended) -> None:
        self.ended.append(workflow.id)

    def watch(self, *, times: int) -> Workflows:
        """Look so many times; what can be parked is `study`."""

        def park(arguments: object, reason: str) -> None:
            self.parked.append(f"{arguments}: {reason}")

        watch = LostWorkflows(self, {"study": park}, Metrics(), pause_seconds=3600.0)
        with closing(watch):
            for _ in range(times):
                watch.look()
        return self


def test_a_workflow_that_begins_during_a_look_is_not_lost() -> None:
    seen = Workflows(("a",), ("b",), (), ("a",)).watch(times=4)

    assert (seen.again, seen.ended, seen.parked) == ([], [], [])


def test_a_lost_workflow_is_run_again_and_then_parked() -> None:
    seen = Workflows(*[("a",)] * 2 * MOST_LOSSES).watch(times=2 * MOST_LOSSES)

    assert (seen.again, seen.ended) == (["a"] * (MOST_LOSSES - 1), ["a"])
    [parked] = seen.parked
    assert parked.startswith("('1.2.3',): its work ended 3 times without a result")


def test_a_lost_workflow_of_the_executor_itself_is_run_again() -> None:
    seen = Workflows(*[("a",)] * 10, name="debouncer").watch(times=10)

    assert (seen.again, seen.ended, seen.parked) == (["a"] * 5, [], [])
