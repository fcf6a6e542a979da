"""A disk that has lost a part of some file: that file is damaged, and holds up no other."""

from __future__ import annotations

import errno
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from node.errors import InputError, NodeError, where
from node.receive.intake import IncomingFile
from node.service import app
from node.store import database, files
from tests.support import films, peers
from tests.support.damage import (
    FILM,
    OTHER,
    STUDY,
    Bench,
    interrupted,
)
from tests.support.fakes import ScriptedReader
from tests.support.listening import listening
from tests.support.service import settings_for

OPEN: Final = os.open
TAKING_NOTHING: Final = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


class FailingDisk:
    """Answers the reading of some files as a disk does that has lost a part of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def lose(self, method: str, ending: str, *, number: int = errno.EIO) -> None:
        real = getattr(Path, method)

        def lost(path: Path, *arguments: object, **named: object) -> object:
            if path.name.endswith(ending):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **named)

        self._patch.setattr(Path, method, lost)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


def test_a_film_that_the_disk_has_lost_a_part_of_is_damaged(bench: Bench, disk: FailingDisk) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    disk.lose("open", path.name)

    assert set(bench.round()[0]) == {"damaged", "read"}


def test_a_film_on_a_bad_disk_sector_delays_no_other_film(bench: Bench, disk: FailingDisk) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    disk.lose("stat", path.name, number=errno.EUCLEAN)

    assert bench.steps.place(STUDY) is not None
    assert "read" in bench.round()[0]


def test_a_read_error_after_hashing_is_no_fault_of_the_film(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.keep(FILM)
    with monkeypatch.context() as patch:

        def lost(*_arguments: object, **_named: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(io, "FileIO", lost)
        assert bench.steps.read(STUDY, path.name) == "damaged"

    assert bench.steps.read(STUDY, path.name) == "read"


@pytest.mark.parametrize("ending", [".begun", "000001.json"])
def test_a_small_file_that_the_disk_has_lost_ends_no_round(bench: Bench, disk: FailingDisk, ending: str) -> None:
    path = bench.keep(FILM)
    bench.round()
    interrupted(bench, path)
    bench.keep(OTHER)
    disk.lose("read_bytes", ending)

    assert "read" in bench.round()[0]


class Disk:
    """From `fail` on, answers calls about the files of a folder with an error; a file may still be opened to read."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = patch, folder

    def fail(self, number: int, *calls: str) -> None:
        for call in calls:
            self._patch.setattr(os, call, self._failing(getattr(os, call), number))

    def _failing(self, real: Callable[..., object], number: int) -> Callable[..., object]:
        def call(target: object, *arguments: object, **named: object) -> object:
            place = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            is_reading = real is OPEN and arguments[:1] == (os.O_RDONLY,)
            if place.startswith(str(self._folder)) and not is_reading:
                raise OSError(number, os.strerror(number), place)
            return real(target, *arguments, **named)

        return call


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("call", "number"),
    [*(("open", number) for number in TAKING_NOTHING), ("write", errno.ENOSPC), ("write", errno.EROFS)],
)
def test_a_start_on_such_a_disk_is_no_fault_of_settings(
    tmp_path: Path, disk_full: Disk, call: str, number: int
) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    disk_full.fail(number, call)

    with (
        pytest.raises(NodeError, match=f"takes nothing now .{os.strerror(number)}") as raised,
        app.run(settings, reader=ScriptedReader),
    ):
        pass

    assert not isinstance(raised.value, InputError)


def test_a_folder_that_may_not_be_used_is_a_wrong_setting(tmp_path: Path, disk_full: Disk) -> None:
    disk_full.fail(errno.EACCES, "open")

    with (
        pytest.raises(InputError, match="cannot be used"),
        app.run(settings_for(tmp_path / "node", archive_port=104), reader=ScriptedReader),
    ):
        pass


@pytest.mark.parametrize("number", TAKING_NOTHING)
@pytest.mark.parametrize("calls", [("open",), ("write",), ("fsync",), ("rename",), ("write", "unlink")])
def test_a_sender_is_told_to_send_again_later(
    tmp_path: Path, disk_full: Disk, number: int, calls: tuple[str, ...]
) -> None:
    with listening(tmp_path) as node:
        disk_full.fail(number, *calls)

        assert peers.send(films.thumbnail(), port=node.listener.port) == 0xA700
        assert node.told == []


@pytest.mark.parametrize("number", TAKING_NOTHING)
def test_over_http_it_is_the_same(tmp_path: Path, disk_full: Disk, number: int) -> None:
    with listening(tmp_path) as node:
        disk_full.fail(number, "write", "unlink")
        file = IncomingFile(node.listener.intake)
        file.write(films.file_bytes(films.thumbnail()))

        with pytest.raises(NodeError) as raised:
            file.keep(is_stat=False, tell=lambda _reason: None)
        file.discard()

        assert getattr(raised.value, "status", None) == 0xA700


def test_a_database_without_room_is_named(tmp_path: Path) -> None:
    path = tmp_path / "small"
    with sqlite3.connect(path) as connection:
        connection.execute("pragma max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as raised:
            connection.executescript("create table a (b); create table c (d); create table e (f); create table g (h)")

    assert database.is_not_writable(raised.value)
    assert database.is_not_writable(sa.exc.OperationalError("", None, raised.value))
    assert not database.is_not_writable(ValueError())


def test_what_the_log_says_of_a_full_disk_names_it(tmp_path: Path, disk_full: Disk) -> None:
    disk_full.fail(errno.ENOSPC, "write")

    with pytest.raises(OSError, match="No space") as raised:
        files.write(tmp_path / "file", b"content")

    assert "No space left on device" in where(raised.value)
    assert str(tmp_path) not in where(raised.value)
