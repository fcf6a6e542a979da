"""A workflow whose thread or process ended without an outcome is found, tried again, and parked alone.

A panic of a library in Rust, which is no `Exception`, is treated like any other fault.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Never

import numpy as np
import pytest
from dbos import DBOSClient
from pydicom.dataset import Dataset
from pydicom.uid import UID

from node.config import Settings
from node.deliver.connections import Associations
from node.deliver.results import DeliveryBatch
from node.domain import derive_uid
from node.jobs.lost import MOST_LOSSES, Attended, LostWorkflows, Unattended
from node.jobs.running_steps import RunningSteps
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.settings.destinations import DicomDestination
from node.store.begun import MOST_INTERRUPTIONS
from node.store.database import connect
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.damage import FILM, STUDY, Bench
from tests.support.fakes import Panic, ScriptedReader
from tests.support.peers import ReceivingArchive, wait_until
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for

COLUMNS = 300
"""Of the film that kills."""


class PanickingReader(ScriptedReader):
    """Its runtime panics."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise Panic("Doe^Jane")


def panic(*_arguments: object, **_named: object) -> Never:
    raise Panic("Doe^Jane")


def test_a_panic_while_a_film_is_read_parks_its_study(bench: Bench) -> None:
    path = bench.keep(FILM)
    steps = replace(bench.steps, pipeline=replace(bench.steps.pipeline, reader=PanickingReader()))

    assert steps.read(STUDY, path.name) is None

    [row] = bench.ledger.parked()
    assert (row.study, row.stage) == (STUDY, "read")
    assert row.reason.startswith("Panic at test_lost_workflows.py")
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
    assert row.reason.startswith("Panic at test_lost_workflows.py")


def test_only_open_deliveries_of_a_lost_workflow_are_parked(bench: Bench) -> None:
    bench.keep(FILM)
    _, deliveries = bench.round()
    bench.ledger.set_sent(deliveries[0], attempts=1)

    batch = DeliveryBatch(deliveries=tuple(deliveries), started=time.time())
    bench.sending.park_lost(batch, reason="its thread ended")

    assert [row.reason for row in bench.ledger.parked()] == ["its thread ended"] * (len(deliveries) - 1)


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
    assert str(attended.reason("a")).startswith("Panic at test_lost_workflows.py")
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


@contextmanager
def panic_node(folder: Path, step: str) -> Iterator[Path]:
    """End the thread of each workflow that finishes a step."""
    path = folder / "panic"
    path.write_text(step, encoding="utf-8")
    yield path
    path.unlink(missing_ok=True)


def parked(node: Service) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run_command("status", node.settings_path, "--json").stdout)["parked"]
    return found


def ended_studies(directory: Path) -> list[float]:
    """When each workflow `study` that has ended was queued, in seconds since the first."""
    client = DBOSClient(system_database_engine=connect(directory / "engine.sqlite"))
    try:
        found = sorted(item.created_at or 0 for item in client.list_workflows(name="study", status="SUCCESS"))
    finally:
        client.destroy()
    return [(at - found[0]) / 1000 for at in found]


@pytest.mark.drill(part="kills")
def test_a_study_whose_thread_ends_again_and_again_is_parked(
    tmp_path: Path, archive: ReceivingArchive, settings: Settings
) -> None:
    with Service(settings) as node:
        with panic_node(tmp_path, "read"):
            assert peers.send(FILM, port=node.dicom_port) == 0
            line = node.wait_for("study.parked")
            lost = node.logged("workflow.lost")

            assert (line["study"], line["stage"]) == (STUDY, "workflow")
            assert "Panic at scripted_node.py" in str(line["reason"])
            assert [(item["study"], item["times"]) for item in lost] == [(STUDY, times) for times in (1, 2, 3)]
            assert 'cxr_failures_total{reason="lost",stage="workflow"} 3.0' in node.metrics()
            [row] = parked(node)
            assert (row["study"], row["stage"]) == (STUDY, "workflow")
            assert "retry" in run_command("explain", STUDY, node.settings_path).stdout

        assert run_command("retry", node.settings_path, "--all").returncode == 0
        archive.wait_for_kept(2)
        assert parked(node) == []


@pytest.mark.drill(part="kills")
def test_rounds_that_wait_for_a_lost_one_make_no_busy_loop(
    tmp_path: Path, archive: ReceivingArchive, settings: Settings
) -> None:
    late = films.as_another(FILM, "late")
    with Service(settings) as node:
        hold = tmp_path / "hold"
        hold.touch()
        assert peers.send(FILM, port=node.dicom_port) == 0
        node.wait_for("study.ready")
        assert peers.send(late, port=node.dicom_port) == 0
        peers.wait_until(lambda: len(ended_studies(tmp_path / "node")) >= 3, what="the late film waited 3 times")
        _, first, second, *_ = ended_studies(tmp_path / "node")
        hold.unlink()
        archive.wait_until(lambda: any(late.SOPInstanceUID.encode() in kept.content for kept in archive.kept))

    assert first >= 1.0
    assert second - first >= 2.0


@pytest.mark.drill(part="processes")
def test_a_worker_on_postgresql_finds_what_it_lost(tmp_path: Path, postgres: Postgres) -> None:
    settings = on_database(settings_for(tmp_path / "node", archive_port=peers.free_port()), postgres.url)
    with (
        Service(settings, only="listener") as listener,
        Service(settings, only="worker", executor="one") as first,
        Service(settings, only="worker", executor="two") as second,
        panic_node(tmp_path, "read"),
    ):
        assert peers.send(FILM, port=listener.dicom_port) == 0
        peers.wait_until(
            lambda: bool(first.logged("study.parked") or second.logged("study.parked")), what="the study is parked"
        )
        [row] = parked(first)

    assert (row["study"], row["stage"]) == (STUDY, "workflow")


def of_own_study(name: str) -> Dataset:
    return films.as_another(films.thumbnail(), name, study=derive_uid("study", name))


def deadly() -> Dataset:
    pixels = np.arange(200 * COLUMNS).reshape(200, COLUMNS) % 4096
    return films.with_pixels(of_own_study("deadly"), pixels, bits=12)


INNOCENT = tuple(of_own_study(name) for name in ("first", "second", "third"))


SENT = (INNOCENT[0], deadly(), *INNOCENT[1:])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let films wait in the reader, and then kill."""
    hold = folder / "hold"
    hold.touch()
    yield
    (folder / "deadly").write_text(str(COLUMNS), encoding="utf-8")
    hold.unlink()


def is_answered(archive: peers.ReceivingArchive) -> bool:
    """Whether a report on each innocent film has come."""
    reports = [kept.content for kept in archive.kept]
    return all(any(film.SOPInstanceUID.encode() in report for report in reports) for film in INNOCENT)


def reasons_of_parked(path: Path) -> list[tuple[str, str]]:
    """The studies that are parked, each with the beginning of its reason."""
    rows = json.loads(run_command("status", path, "--json").stdout)["parked"]
    return [(row["study"], row["reason"].partition(":")[0]) for row in rows]


def kept_alive(start: Sequence[Callable[[], Service]], *, until: Callable[[], bool], processes: ExitStack) -> int:
    """Start processes, and each again when it dies, as a supervisor does; returns how often one died."""

    def started(again: Callable[[], Service]) -> Service:
        service = again()  # it may die before it is ready
        processes.callback(service.kill)
        return service

    running, deaths = {again: started(again) for again in start}, list[int]()

    def is_reached() -> bool:
        for again, service in running.items():
            if not peers.is_running(service.pid):
                deaths.append(service.wait_until_dead())
                running[again] = started(again)
        return until()

    peers.wait_until(is_reached, what="every film is answered", limit_seconds=90)
    assert set(deaths) == {-9}
    return len(deaths)


def is_over(archive: peers.ReceivingArchive, settings: Settings) -> bool:
    """Whether every innocent film is answered, and the round of the deadly one has come to its end."""
    rounds = Spool(settings.storage.directory).rounds(str(SENT[1].StudyInstanceUID))
    return bool(rounds) and is_answered(archive)


@pytest.mark.drill(part="processes")
def test_two_workers_park_only_the_film_that_kills(tmp_path: Path, postgres: Postgres) -> None:
    with peers.ReceivingArchive() as archive, ExitStack() as processes:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), postgres.url)
        listener = processes.enter_context(Service(settings, only="listener"))
        processes.enter_context(Service(settings, only="sender"))
        with held(tmp_path):
            assert peers.send_all(SENT, port=listener.dicom_port) == [0] * len(SENT)
        workers = [partial(Service, settings, only="worker", executor=name) for name in ("one", "two")]
        deaths = kept_alive(workers, until=lambda: is_over(archive, settings), processes=processes)

        assert deaths == MOST_INTERRUPTIONS
        assert reasons_of_parked(listener.settings_path) == [(SENT[1].StudyInstanceUID, "interrupted")]
