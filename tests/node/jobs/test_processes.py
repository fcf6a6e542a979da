"""What processes leave on the storage folder, and when it goes."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from node.commands import operate
from node.jobs import processes
from node.store import database, files
from node.store.ledger import Ledger
from tests.support.peers import LOOPBACK
from tests.support.service import settings_for

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def left_behind(folder: Path, name: str, *, days_ago: float) -> list[Path]:
    """The lock and the file of a process, last seen so long ago."""
    paths = [folder / f"lock-{name}", folder / f"running-{name}.json"]
    for path in paths:
        path.write_text("{}", encoding="utf-8")
        seen = time.time() - days_ago * DAY.total_seconds()
        os.utime(path, (seen, seen))
    return paths


def test_what_a_long_unseen_process_left_behind_is_removed_unless_it_lives(tmp_path: Path) -> None:
    gone = left_behind(tmp_path, "listener-7f9c", days_ago=1.1)
    down = left_behind(tmp_path, "listener-0", days_ago=0.9)
    living = left_behind(tmp_path, "worker-0", days_ago=40)
    (tmp_path / "lock").touch()

    with files.try_lock(living[0]) as is_alive:
        processes.remove_gone(tmp_path, before=NOW - DAY)
        assert is_alive
        assert sorted(tmp_path.iterdir()) == sorted([*down, *living, tmp_path / "lock"])
        assert not any(path.exists() for path in gone)

    processes.remove_gone(tmp_path, before=NOW - DAY)  # it ended a moment ago
    assert all(path.exists() for path in living)


def test_a_lock_has_one_holder_even_if_its_file_is_removed(tmp_path: Path) -> None:
    path, end = tmp_path / "lock-sender", time.monotonic() + 1.0
    inside: set[int] = set()
    crowds: list[set[int]] = []

    def use_it() -> int:
        times = 0
        while time.monotonic() < end:
            with files.try_lock(path) as is_mine:
                if is_mine:
                    inside.add(threading.get_ident())
                    if len(inside) > 1:
                        crowds.append(set(inside))
                    times += 1
                    inside.discard(threading.get_ident())
                    path.unlink()
        return times

    with ThreadPoolExecutor(4) as pool:
        times = sum(future.result(timeout=60) for future in [pool.submit(use_it) for _ in range(4)])

    assert times > 10
    assert crowds == []


def test_status_waits_half_a_second_for_all_that_hang(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    Ledger(database.open_ledger(settings.storage)).close()
    names = [f"worker-{number}" for number in range(8)]
    with socket.create_server((LOOPBACK, 0)) as hung:
        for name in names:
            published = {"executor": name, "http_port": hung.getsockname()[1]}
            files.write(settings.storage.directory / f"running-{name}.json", files.to_json(published))
        begun = time.monotonic()
        content = operate.status(settings)
        lasted = time.monotonic() - begun

    assert content["processes"] == dict.fromkeys(names, False)
    assert "process worker-7: not ready, or no answer in 0.5 s" in operate.render(content, zone=settings.site.zone)
    assert lasted < 2.5
