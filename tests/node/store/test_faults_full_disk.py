"""A disk that is full, read-only or failing: a start that is tried again, and senders that keep their films."""

from __future__ import annotations

import errno
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
from tests.support.fakes import ScriptedReader
from tests.support.listening import listening
from tests.support.service import settings_for

OPEN: Final = os.open
TAKING_NOTHING: Final = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


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
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("call", "number"),
    [*(("open", number) for number in TAKING_NOTHING), ("write", errno.ENOSPC), ("write", errno.EROFS)],
)
def test_a_start_on_such_a_disk_is_no_fault_of_settings(tmp_path: Path, disk: Disk, call: str, number: int) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    disk.fail(number, call)

    with (
        pytest.raises(NodeError, match=f"takes nothing now .{os.strerror(number)}") as raised,
        app.run(settings, reader=ScriptedReader),
    ):
        pass

    assert not isinstance(raised.value, InputError)


def test_a_folder_that_may_not_be_used_is_a_wrong_setting(tmp_path: Path, disk: Disk) -> None:
    disk.fail(errno.EACCES, "open")

    with (
        pytest.raises(InputError, match="cannot be used"),
        app.run(settings_for(tmp_path / "node", archive_port=104), reader=ScriptedReader),
    ):
        pass


@pytest.mark.parametrize("number", TAKING_NOTHING)
@pytest.mark.parametrize("calls", [("open",), ("write",), ("fsync",), ("rename",), ("write", "unlink")])
def test_a_sender_is_told_to_send_again_later(tmp_path: Path, disk: Disk, number: int, calls: tuple[str, ...]) -> None:
    with listening(tmp_path) as node:
        disk.fail(number, *calls)

        assert peers.send(films.thumbnail(), port=node.listener.port) == 0xA700
        assert node.told == []


@pytest.mark.parametrize("number", TAKING_NOTHING)
def test_over_http_it_is_the_same(tmp_path: Path, disk: Disk, number: int) -> None:
    with listening(tmp_path) as node:
        disk.fail(number, "write", "unlink")
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

    assert database.takes_nothing(raised.value)
    assert database.takes_nothing(sa.exc.OperationalError("", None, raised.value))
    assert not database.takes_nothing(ValueError())


def test_what_the_log_says_of_a_full_disk_names_it(tmp_path: Path, disk: Disk) -> None:
    disk.fail(errno.ENOSPC, "write")

    with pytest.raises(OSError, match="No space") as raised:
        files.write(tmp_path / "file", b"content")

    assert "No space left on device" in where(raised.value)
    assert str(tmp_path) not in where(raised.value)
