"""Folders of studies: each is synced before anybody uses it, whoever made it, and no study waits for another's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.errors import SpoolFull
from node.store.spool import Spool
from tests.node.store.test_spool import keep

LIMIT_SECONDS = 20.0
FIRST, SECOND = "1.2.3", "1.2.4"


@pytest.fixture
def on_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Path], None]], None]]:
    """Have a function called with the path of all that is synced, before it is."""
    functions: list[Callable[[Path], None]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        for function in functions:
            function(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    yield functions.append
    functions.clear()


def hold_first(on_sync: Callable[[Callable[[Path], None]], None]) -> tuple[threading.Event, threading.Event]:
    """Hold a thread named "first" where it syncs the folder of studies; it is there, and it may go on."""
    is_there, may_go_on = threading.Event(), threading.Event()

    def hold(path: Path) -> None:
        if threading.current_thread().name.startswith("first") and path.name == "studies":
            is_there.set()
            assert may_go_on.wait(LIMIT_SECONDS)

    on_sync(hold)
    return is_there, may_go_on


def test_new_folders_do_not_wait_for_the_syncs_of_another_study(
    tmp_path: Path, on_sync: Callable[[Callable[[Path], None]], None]
) -> None:
    spool = Spool(tmp_path)
    is_first_there, may_go_on = hold_first(on_sync)

    with ThreadPoolExecutor(1, thread_name_prefix="first") as first, ThreadPoolExecutor(1) as second:
        held = first.submit(keep, spool, study=FIRST)
        assert is_first_there.wait(LIMIT_SECONDS)
        try:
            kept = second.submit(keep, spool, study=SECOND).result(LIMIT_SECONDS)
        finally:
            may_go_on.set()

        assert kept.is_new
        assert held.result(LIMIT_SECONDS).is_new


def test_a_second_object_waits_until_its_folders_are_synced(
    tmp_path: Path, on_sync: Callable[[Callable[[Path], None]], None]
) -> None:
    spool = Spool(tmp_path)
    is_first_there, may_go_on = hold_first(on_sync)

    with ThreadPoolExecutor(1, thread_name_prefix="first") as first, ThreadPoolExecutor(1) as second:
        held = first.submit(spool.keep_reading, FIRST, "key", {})
        assert is_first_there.wait(LIMIT_SECONDS)
        waiting = second.submit(keep, spool, study=FIRST)

        assert not waiting.done()
        with pytest.raises(TimeoutError):
            waiting.result(0.2)

        may_go_on.set()
        held.result(LIMIT_SECONDS)
        assert waiting.result(LIMIT_SECONDS).is_new


@pytest.mark.parametrize("folder", ["studies", FIRST])
def test_a_folder_its_maker_did_not_sync_is_synced_by_the_next(
    tmp_path: Path, on_sync: Callable[[Callable[[Path], None]], None], folder: str
) -> None:
    synced, failures = list[str](), [folder]

    def fail_once(path: Path) -> None:
        if path.name in failures:
            failures.remove(path.name)
            raise OSError(5, "the disk had an error")
        synced.append(path.name)

    on_sync(fail_once)
    with pytest.raises(SpoolFull):
        keep(Spool(tmp_path), film="1.2.3.4")
    assert (tmp_path / "studies" / FIRST).is_dir()
    synced.clear()

    keep(Spool(tmp_path), film="1.2.3.5")

    assert folder in synced
    synced.clear()
    keep(Spool(tmp_path), film="1.2.3.6")
    assert folder not in synced


def test_a_note_that_a_power_cut_has_damaged_stops_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for path in map("keeping/{:02d}.folders".format, range(64)):
        (tmp_path / path).write_bytes(b"studies/1.2.9\n\0\0\xff")

    assert keep(spool).is_new
