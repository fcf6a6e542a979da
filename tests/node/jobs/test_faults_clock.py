"""A clock that is set back: what waits for seconds must not wait for an hour, after a restart too."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from node.config import Settings, StudySettings
from node.jobs.executor import delay_left
from node.store.database import EXECUTOR
from tests.support import films, peers
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="kills")

HOUR: Final = 3600.0


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


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_study_is_read_after_the_clock_was_set_back(settings: Settings, restarts: bool) -> None:
    with Service(settings) as service:
        assert peers.send(films.thumbnail(), port=service.dicom_port) == 0
        service.wait_for("study.submitted")
        assert set_back(settings) == 1
        if not restarts:
            service.wait_for("study.finished", limit_seconds=60.0)
            return
        service.kill()
    with Service(settings) as service:
        service.wait_for("study.finished", limit_seconds=60.0)
