"""A folder that does not rename, link, sync or lock as the spool needs is refused before anything is received."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from node.check_result import CheckState
from node.commands.doctor import check_storage
from node.errors import InputError
from node.service import app
from node.store import folders
from node.store.folders import fault_of_folder, require_honest
from tests.support.fakes import ScriptedReader
from tests.support.service import settings_for

refuse = mock.Mock(side_effect=OSError(errno.EPERM, os.strerror(errno.EPERM)))


def test_a_good_folder_has_no_fault_and_stays_empty(tmp_path: Path) -> None:
    require_honest(tmp_path, is_shared=True)

    assert fault_of_folder(tmp_path, is_shared=True) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "name", "lie", "said"),
    [
        (os, "rename", shutil.copyfile, "a rename does not replace a file"),
        (os, "link", shutil.copyfile, "a hard link does not respect a taken name"),
        (os, "link", refuse, "a hard link does not respect a taken name"),
        (fcntl, "flock", lambda _file, _operation: None, "file locks do not work"),
    ],
    ids=["a rename copies", "a link replaces", "no links", "locks for everybody"],
)
def test_a_folder_that_lies_is_refused_and_stays_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: object, name: str, lie: Callable[..., None], said: str
) -> None:
    monkeypatch.setattr(where, name, lie)

    with pytest.raises(InputError, match=said):
        require_honest(tmp_path, is_shared=False)

    assert list(tmp_path.iterdir()) == []


def test_no_port_is_opened_on_a_folder_that_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    monkeypatch.setattr(os, "link", refuse)

    (check,) = check_storage(settings)
    with pytest.raises(InputError, match="a hard link"), app.run(settings, reader=lambda: ScriptedReader("1")):
        pytest.fail("the node runs")

    assert check.state is CheckState.FAULT
    assert "a hard link" in check.message
    assert not (tmp_path / "running.json").exists()


@pytest.mark.parametrize(
    ("number", "is_refused"), [(errno.EINVAL, True), (errno.EIO, True), (errno.ENOSPC, False), (errno.EDQUOT, False)]
)
def test_a_sync_that_fails_is_refused_but_not_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_refused: bool
) -> None:
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(number, os.strerror(number))))

    with pytest.raises(InputError, match="cannot be used") if is_refused else nullcontext():
        require_honest(tmp_path, is_shared=False)


def mounted(tmp_path: Path, *lines: str) -> Path:
    """A list of mounts as proc(5) has it: `PLACE TYPE OPTIONS` for each."""
    path = tmp_path / "mountinfo"
    rows = (line.split(" ") for line in ("/ ext4 rw,errors=remount-ro", *lines))
    path.write_text("".join(f"1 0 8:1 / {place} rw - {kind} source {options}\n" for place, kind, options in rows))
    return path


@pytest.mark.parametrize(
    "options", ["rw,vers=3,nolock", "rw,vers=3,local_lock=all", "rw,local_lock=flock", "rw,nobrl", "rw,volatile"]
)
def test_a_mount_that_breaks_a_promise_is_no_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    folder = tmp_path / "films of chests"
    folder.mkdir()
    mounts = mounted(tmp_path, f"{str(folder).replace(' ', chr(92) + '040')} nfs {options}")
    monkeypatch.setattr(folders, "_MOUNTS", mounts)

    assert options.rpartition(",")[2] in str(fault_of_folder(folder, is_shared=True))
    assert fault_of_folder(folder, is_shared=False) is None


def test_only_the_mount_that_is_in_use_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    hidden, other = f"{folder} nfs rw,nolock", f"{tmp_path}/nod nfs rw,nolock"
    mounts = mounted(tmp_path, hidden, other, f"{folder} nfs4 rw,vers=4.2,local_lock=none")

    for path in (mounts, tmp_path / "none"):
        monkeypatch.setattr(folders, "_MOUNTS", path)
        assert fault_of_folder(folder, is_shared=True) is None
