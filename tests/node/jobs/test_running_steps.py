from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from node.config import Settings, StudySettings
from node.errors import ModelLost
from node.jobs.executor import delay_left
from node.jobs.running_steps import RunningSteps
from node.store.database import EXECUTOR
from tests.support import films, peers
from tests.support.peers import wait_until
from tests.support.service import Service, settings_for

HOUR: Final = 3600.0


class Stop(BaseException):
    """What an engine raises to end a workflow that is not its own any more."""


def test_a_workflow_without_its_database_breaks_the_gate() -> None:
    running, came_back = RunningSteps(), threading.Event()

    @running.guarded
    def body(_study_uid: str) -> None:
        raise OSError("the database is away")

    def run() -> None:
        body("1.2.3")
        came_back.set()

    threading.Thread(target=run, daemon=True).start()

    wait_until(lambda: running.is_broken, what="it is broken")
    assert not came_back.wait(timeout=0.2)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ModelLost("NVIDIA L4 stopped computing"), "NVIDIA L4 stopped computing"), (KeyError("Doe"), "KeyError at test_")],
)
def test_the_process_ends_with_the_reason_of_its_own_errors(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = RunningSteps()

    def work() -> None:
        raise error

    threading.Thread(target=lambda: running.run(work), daemon=True).start()

    wait_until(lambda: running.is_broken, what="it is broken")
    line = capsys.readouterr().out
    assert told in line and "Doe" not in line


def test_what_an_engine_raises_to_stop_a_workflow_passes() -> None:
    running = RunningSteps()

    @running.guarded
    def body() -> None:
        raise Stop

    with pytest.raises(Stop):
        body()
    assert not running.is_broken


def test_nothing_begins_behind_a_broken_gate() -> None:
    running, begun = RunningSteps(), threading.Event()
    running.fail("the lock is lost")

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


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = settings_for(tmp_path / "node", archive_port=104)
    return replace(settings, destinations=(), study=StudySettings(quiet_seconds=4.0, max_seconds=60.0))


def set_back(settings: Settings) -> int:
    """Make of what waits what it is after the clock was set back by an hour: queued, and due, an hour too late."""
    with sqlite3.connect(settings.storage.directory / EXECUTOR, timeout=30) as connection:
        later = "created_at = created_at + 3600000, delay_until_epoch_ms = delay_until_epoch_ms + 3600000"
        return connection.execute(f"UPDATE workflow_status SET {later} WHERE status = 'DELAYED'").rowcount


@pytest.mark.drill(part="kills")
def test_a_study_is_read_after_the_clock_was_set_back(settings: Settings) -> None:
    with Service(settings) as service:
        assert peers.send(films.thumbnail(), port=service.dicom_port) == 0
        service.wait_for("study.submitted")
        assert set_back(settings) == 1
        service.wait_for("study.finished", limit_seconds=60.0)
