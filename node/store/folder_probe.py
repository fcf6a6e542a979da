"""Tries what the storage folder must do for `files`: replace and link a name, sync, and lock.

A server that answers a sync before its disk has the bytes cannot be recognized from here, and neither can a lock that
machines do not share, unless an option of the mount says so.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from node.errors import InputError
from node.store import files

_MOUNTS: Final = Path("/proc/self/mountinfo")
_UNSHARED_LOCKS: Final = frozenset(("nolock", "nobrl", "local_lock=all", "local_lock=flock"))
"""nfs(5), mount.cifs(8): locks stay on this machine."""
_UNSYNCED: Final = "volatile"
"""overlayfs: fsync does nothing."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def require_honest(directory: Path, *, is_shared: bool) -> None:
    """Raise InputError if a folder does not do what `files` needs. A full disk is no reason: it gets space again.

    Raises OSError for a disk that is mounted read-only.
    """
    try:
        complaint = fault_of(directory, is_shared=is_shared)
    except OSError as error:
        if error.errno in _FULL:
            return
        if error.errno == errno.EROFS:
            raise
        complaint = f"cannot be used ({error.strerror}); choose another folder"
    if complaint is not None:
        raise InputError(f"storage.directory {directory}: {complaint}")


def fault_of(directory: Path, *, is_shared: bool, mounts: Path = _MOUNTS) -> str | None:
    """Return what is wrong with an existing folder and what to do, or None. Leaves nothing behind.

    is_shared: several processes use it, perhaps on several machines
    mounts: the mounts of this machine, see proc(5)
    Raises OSError when nothing can be written.
    """
    with tempfile.TemporaryDirectory(prefix=files.TEMPORARY, dir=directory) as folder:
        path = Path(folder) / "probe"
        files.write(path, b"first")
        with path.open("rb") as opened:
            files.write(path, b"second")
            if opened.read() != b"first" or path.read_bytes() != b"second":  # a copy would show in both
                return "a rename does not replace a file on this file system; use another one"
        if not _refuses_a_taken_name(path):
            return "a hard link does not respect a taken name on this file system, or there are none; use another one"
        with files.try_lock(path) as is_first, files.try_lock(path) as is_second:
            if is_second or not is_first:
                return "file locks do not work on this file system; use a local disk"
    return _fault_of_mount(_options(directory.resolve(), mounts)) if is_shared else None


def _refuses_a_taken_name(path: Path) -> bool:
    try:
        is_new = files.write_new(path.with_name("linked"), b"first")
        return is_new and not files.write_new(path, b"third") and path.read_bytes() == b"second"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            return False
        raise


def _fault_of_mount(options: frozenset[str]) -> str | None:
    if found := sorted(options & _UNSHARED_LOCKS):
        return f"is mounted with {found[0]}, so other machines do not see its locks; mount it without this option"
    if _UNSYNCED in options:
        return f"is mounted with {_UNSYNCED}, so a power cut loses acknowledged films; mount it without this option"
    return None


def _options(directory: Path, mounts: Path) -> frozenset[str]:
    """Return the options of the mount that holds a folder; none where the machine does not tell."""
    try:
        lines = [line.split(" ") for line in os.fsdecode(mounts.read_bytes()).splitlines()]
    except OSError:
        return frozenset()
    found = [line for line in lines if directory.is_relative_to(_unescaped(line[4]))]
    if not found:
        return frozenset()
    # Of the mounts on one place, the last is in use.
    newest = max(enumerate(found), key=lambda numbered: (len(Path(_unescaped(numbered[1][4])).parts), numbered[0]))[1]
    return frozenset((*newest[5].split(","), *newest[-1].split(",")))


def _unescaped(place: str) -> str:
    """proc(5): blanks, tabs, line ends and backslashes are octal."""
    for octal in ("040", "011", "012", "134"):
        place = place.replace(f"\\{octal}", chr(int(octal, 8)))
    return place
