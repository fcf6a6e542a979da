"""A workflow whose thread or process ended without an outcome is found, tried again, and parked alone.

A panic of a library in Rust, which is no `Exception`, is treated like any other fault.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final, Never
from unittest import mock

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import UID

from node.config import Settings, StudySettings
from node.deliver.connections import Associations
from node.deliver.results import DeliveryBatch
from node.domain import derive_uid
from node.errors import ModelLost
from node.jobs import lost_workflows
from node.jobs.executor import delay_left
from node.jobs.lost_workflows import MOST_LOSSES, Attended, LostWorkflows, Unattended
from node.jobs.running_steps import RunningSteps
from node.metrics import Metrics
from node.settings.destinations import DicomDestination
from node.store.database import EXECUTOR
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


def test_a_panic_while_an_output_is_sent_parks_it_alone_and_a_lost_workflow_its_open_deliveries(bench: Bench) -> None:
    class Panicking(Associations):
        """Panics when an association is taken."""

        def take(self, destination: DicomDestination, *, sop_class: UID, syntax: UID) -> Never:
            raise Panic("Doe^Jane")

    bench.keep(FILM)
    _, [first, second] = bench.round()
    sending = replace(bench.sending, associations=Panicking())
    with closing(sending.associations):
        assert sending.send(first, 1, time.time()).outcome == "parked"

    [row] = bench.ledger.parked()
    assert row.reason.startswith("Panic at test_lost_workflows.py")

    bench.ledger.set_sent(first, attempts=1)
    bench.sending.park_lost(DeliveryBatch(deliveries=(first, second), started=time.time()), reason="its thread ended")
    assert [row.reason for row in bench.ledger.parked()] == ["its thread ended"]


def test_a_panic_leaves_no_step_in_hand_and_is_noted_with_its_place_between_steps() -> None:
    running, attended = RunningSteps(), Attended()
    running.attending = lambda: attended.run("a")

    with pytest.raises(Panic):
        running.guarded(panic)()

    assert not attended.holds("a")
    assert str(attended.reason("a")).startswith("Panic at test_lost_workflows.py")
    assert not running.is_broken

    with pytest.raises(Panic):
        running.run(panic)
    began = time.monotonic()
    running.close(limit_seconds=60.0)  # waits for the steps in hand
    assert time.monotonic() - began < 30.0


def test_a_workflow_without_its_database_breaks_the_gate_and_stays_attended_until_the_end() -> None:
    running, attended, came_back = RunningSteps(), Attended(), threading.Event()
    running.attending = lambda: attended.run("a")

    def fail() -> None:
        raise OSError("the database is away")

    def run() -> None:
        running.guarded(fail)()
        came_back.set()

    threading.Thread(target=run, daemon=True).start()
    wait_until(lambda: running.is_broken, what="it is broken")

    assert attended.holds("a")
    assert not came_back.wait(timeout=0.2)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ModelLost("NVIDIA L4 stopped computing"), "NVIDIA L4 stopped computing"), (KeyError("Doe"), "KeyError at test_")],
)
def test_the_process_ends_with_the_reason_of_its_own_errors_and_begins_nothing_more(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running, begun = RunningSteps(), threading.Event()

    def work() -> None:
        raise error

    threading.Thread(target=lambda: running.run(work), daemon=True).start()

    wait_until(lambda: running.is_broken, what="it is broken")
    line = capsys.readouterr().out
    assert told in line and "Doe" not in line
    threading.Thread(target=lambda: running.run(begun.set), daemon=True).start()
    assert not begun.wait(timeout=0.2)
    running.close(limit_seconds=5)


def test_closing_waits_for_the_step_in_hand() -> None:
    running, in_hand, go_on, done = RunningSteps(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        in_hand.set()
        go_on.wait(timeout=30)
        done.set()

    threading.Thread(target=lambda: running.run(work), daemon=True).start()
    assert in_hand.wait(timeout=30)
    threading.Timer(0.1, go_on.set).start()

    running.close(limit_seconds=30)

    assert done.is_set()


def test_a_workflow_stays_attended_until_its_outcome_was_recorded_and_while_a_second_thread_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attended = Attended()
    with attended.run("a"):
        pass
    assert attended.holds("a")

    monkeypatch.setattr(lost_workflows, "_RECORDING_SECONDS", 0.0)
    with attended.run("a"):  # resumed, while the thread that began it ends
        with pytest.raises(Panic), attended.run("a"):
            panic()
        assert attended.holds("a")
    assert not attended.holds("a")  # nothing was recorded in time


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


def test_a_lost_workflow_is_run_again_and_then_parked_unless_it_is_the_executors() -> None:
    begins = Workflows(("a",), ("b",), (), ("a",)).watch(times=4)
    lost = Workflows(*[("a",)] * 2 * MOST_LOSSES).watch(times=2 * MOST_LOSSES)
    own = Workflows(*[("a",)] * 10, name="debouncer").watch(times=10)

    assert (begins.again, begins.ended, begins.parked) == ([], [], [])
    assert (lost.again, lost.ended) == (["a"] * (MOST_LOSSES - 1), ["a"])
    [parked] = lost.parked
    assert parked.startswith("('1.2.3',): its work ended 3 times without a result")
    assert (own.again, own.ended, own.parked) == (["a"] * 5, [], [])


@pytest.mark.drill(part="kills")
def test_a_study_whose_thread_ends_again_and_again_is_parked(
    tmp_path: Path, archive: ReceivingArchive, settings: Settings
) -> None:
    panicking = tmp_path / "panic"
    panicking.write_text("read", encoding="utf-8")  # the thread of each workflow ends that finishes this step
    with Service(settings) as node:
        assert peers.send(FILM, port=node.dicom_port) == 0
        line = node.wait_for("study.parked")
        lost = node.logged("workflow.lost")

        assert (line["study"], line["stage"]) == (STUDY, "workflow")
        assert "Panic at scripted_node.py" in str(line["reason"])
        assert [(item["study"], item["times"]) for item in lost] == [(STUDY, times) for times in (1, 2, 3)]
        assert 'cxr_failures_total{reason="lost",stage="workflow"} 3.0' in node.metrics()
        assert [(row["study"], row["stage"]) for row in parked(node)] == [(STUDY, "workflow")]
        panicking.unlink()

        assert run_command("retry", node.settings_path, "--all").returncode == 0
        archive.wait_for_kept(2)
        assert parked(node) == []


def parked(node: Service) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run_command("status", node.settings_path, "--json").stdout)["parked"]
    return found


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


HOUR: Final = 3600.0


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize(
    ("queued_at", "until", "now", "left"),
    [
        (100.0, 105.0, 100.0, None),  # the clock runs
        (100.0, 105.0, 103.0, None),
        (100.0, 105.0, 99.5, None),  # clocks of two machines
        (100.0 + HOUR, 105.0 + HOUR, 102.0, 5.0),  # set back by an hour after 2 s
        (100.0 + HOUR, 400.0 + HOUR, 100.0, 300.0),
        (100.0 + HOUR, 105.0, 100.0, None),  # prolonged since, by the new clock
    ],
)
def test_what_was_queued_in_the_future_waits_as_long_again(
    queued_at: float, until: float, now: float, left: float | None
) -> None:
    assert delay_left(queued_at=queued_at, until=until, now=now) == left


@pytest.mark.drill(part="kills")
def test_a_study_is_read_after_the_clock_was_set_back(settings: Settings) -> None:
    settings = replace(settings, destinations=(), study=StudySettings(quiet_seconds=4.0, max_seconds=60.0))
    with Service(settings) as service:
        assert peers.send(films.thumbnail(), port=service.dicom_port) == 0
        service.wait_for("study.submitted")
        with sqlite3.connect(settings.storage.directory / EXECUTOR, timeout=30) as connection:
            later = "created_at = created_at + 3600000, delay_until_epoch_ms = delay_until_epoch_ms + 3600000"
            queued = connection.execute(f"UPDATE workflow_status SET {later} WHERE status = 'DELAYED'").rowcount
        assert queued == 1
        service.wait_for("study.finished", limit_seconds=60.0)
