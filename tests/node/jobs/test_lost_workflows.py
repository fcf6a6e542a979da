"""A workflow whose thread or process ended without an outcome is found, tried again, and parked alone.

A panic of a library in Rust, which is no `Exception`, is treated like any other fault.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Never
from unittest import mock

import numpy as np
import pytest
from dbos import DBOSClient
from pydicom.dataset import Dataset
from pydicom.uid import UID

from node.config import Settings
from node.deliver.connections import Associations
from node.deliver.results import DeliveryBatch
from node.domain import derive_uid
from node.jobs import lost_workflows
from node.jobs.lost_workflows import MOST_LOSSES, Attended, LostWorkflows, Unattended
from node.jobs.running_steps import RunningSteps
from node.metrics import Metrics
from node.settings.destinations import DicomDestination
from node.store.database import connect
from node.store.interrupted_work import MOST_INTERRUPTIONS
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.damage import FILM, STUDY, Bench
from tests.support.fakes import Panic
from tests.support.peers import ReceivingArchive, wait_until
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for

COLUMNS = 300
"""Of the film that kills."""


def panic(*_arguments: object, **_named: object) -> Never:
    raise Panic("Doe^Jane")


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


def test_an_outcome_is_awaited_before_a_workflow_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    attended = Attended()

    with attended.run("a"):
        pass
    assert attended.holds("a")

    monkeypatch.setattr(lost_workflows, "_RECORDING_SECONDS", 0.0)
    with attended.run("a"):
        pass
    assert not attended.holds("a")  # nothing was recorded in time


def test_a_workflow_stays_attended_while_its_second_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_workflows, "_RECORDING_SECONDS", 0.0)
    attended = Attended()

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

        with mock.patch.object(lost_workflows, "_PAUSE_SECONDS", 3600.0):
            watch = LostWorkflows(self.unattended, self.run_again, self.end, {"study": park}, Metrics())
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
    late = films.as_another(films.thumbnail(), "late")
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


def of_own_study(name: str) -> Dataset:
    return films.as_another(films.thumbnail(), name, study=derive_uid("study", name))


@pytest.mark.drill(part="processes")
def test_two_workers_park_only_the_film_that_kills(tmp_path: Path, postgres: Postgres) -> None:
    pixels = np.arange(200 * COLUMNS).reshape(200, COLUMNS) % 4096
    deadly = films.with_pixels(of_own_study("deadly"), pixels, bits=12)
    innocent = [of_own_study(name) for name in ("first", "second", "third")]
    (tmp_path / "deadly").write_text(str(COLUMNS), encoding="utf-8")
    workers, ends = dict[str, Service](), list[int]()
    with peers.ReceivingArchive() as archive, ExitStack() as processes:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), postgres.url)
        listener = processes.enter_context(Service(settings, only="listener"))
        processes.enter_context(Service(settings, only="sender"))
        assert peers.send_all((innocent[0], deadly, *innocent[1:]), port=listener.dicom_port) == [0] * 4

        def is_over() -> bool:
            """Start each worker again when it dies, as a supervisor does; whether every study has come to its end."""
            for name in ("one", "two"):
                if name in workers and not peers.is_running(workers[name].pid):
                    ends.append(workers.pop(name).wait_until_dead())
                if name not in workers:
                    workers[name] = Service(settings, only="worker", executor=name)  # it may die before it is ready
                    processes.callback(workers[name].kill)
            said = b"".join(kept.content for kept in archive.kept)
            are_answered = all(film.SOPInstanceUID.encode() in said for film in innocent)
            return are_answered and bool(Spool(settings.storage.directory).rounds(str(deadly.StudyInstanceUID)))

        peers.wait_until(is_over, what="every study has come to its end", limit_seconds=90)

        assert ends == [-9] * MOST_INTERRUPTIONS
        [row] = parked(listener)
        assert (row["study"], row["reason"].partition(":")[0]) == (deadly.StudyInstanceUID, "interrupted")
