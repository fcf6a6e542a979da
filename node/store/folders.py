"""The folders of the spool: their creation, the format number of their files, and what their disk must support.

A process that creates a folder holds a lock of its study and notes the folder in the lock's file until all is synced.
If it ends or fails in between, the next holder of the lock finds the note and syncs the folder before using it. Studies
share a few locks, because a lock file that may be held cannot be removed; most studies wait for none, and a journaling
file system merges syncs that run at the same time.

The format number is in the file `format`. It is raised when a program could no longer read, or would damage, the files
of another version. A folder with another number, or with studies and no number, is refused.

The disk must support atomic replacement, hard links, sync and locks. The node cannot detect a file server that
acknowledges a sync too early, nor a lock that machines do not share, unless a mount option shows it.
"""

from __future__ import annotations

import errno
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from node.errors import InputError, is_not_writable
from node.store import files

_LOCKS: Final = 64
_LONGEST_NOTE: Final = 4096
FORMAT_FILE: Final = "format"
STUDIES: Final = "studies"
"""The folder of the studies, which a node creates together with the number, or before it."""
FORMAT: Final = 3
FORMAT_CONTENT: Final = f"{FORMAT}\n".encode()
_LONGEST_NUMBER: Final = 100
_MOUNTS: Final = Path("/proc/self/mountinfo")
_UNSHARED_LOCKS: Final = frozenset(("nolock", "nobrl", "local_lock=all", "local_lock=flock"))
"""nfs(5), mount.cifs(8): locks stay on this machine."""
_UNSYNCED: Final = "volatile"
"""overlayfs: fsync does nothing."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Folders:
    """Folders below a directory; locks: the folder of the lock files, the same for all processes."""

    def __init__(self, directory: Path, *, locks: Path) -> None:
        self._directory, self._locks = directory, locks

    def make(self, folder: Path) -> None:
        """Create a folder (mode 0700) and its parents, synced. Raises OSError."""
        with self.of(folder) as make:
            make(folder)

    @contextmanager
    def of(self, folder: Path) -> Iterator[Callable[[Path], None]]:
        """Hold the lock for creating, renaming and removing folders of a study; yields a function like `make`.

        folder: the study's folder, one within it, or another one below the directory
        Raises OSError.
        """
        key = "/".join(folder.relative_to(self._directory).parts[:2])
        with files.lock(self._locks / f"{zlib.crc32(key.encode()) % _LOCKS:02d}.folders") as note:
            handle = note.fileno()
            if begun := os.pread(handle, _LONGEST_NOTE, 0):
                self._sync(begun.decode(errors="replace").splitlines())
                os.ftruncate(handle, 0)
            yield partial(self._make, handle)

    def _make(self, note: int, folder: Path) -> None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        if not missing:
            return
        changed = [str(path.parent.relative_to(self._directory)) for path in reversed(missing)]
        os.pwrite(note, "\n".join(changed).encode(), 0)
        for path in reversed(missing):  # all before the first sync: the file system writes them at once
            path.mkdir(mode=0o700, exist_ok=True)
        self._sync(changed)
        os.ftruncate(note, 0)

    def _sync(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError, ValueError):  # the study was removed; a power cut left zeros in the note
                files.sync_folder(self._directory / name)


def require_known_format(directory: Path) -> None:
    """Raise InputError if a folder's files have a format that this program does not know."""
    path, found = directory / FORMAT_FILE, f"studies and no file {FORMAT_FILE!r}"
    try:
        with path.open("rb") as file:
            number = file.read(_LONGEST_NUMBER).decode("ascii", "replace").strip()
        if number == str(FORMAT):
            return
        found = f"files of the format {number[:20]!r}"
    except (FileNotFoundError, NotADirectoryError):
        if not any(files.listed(directory / STUDIES, "*")):
            return
    except OSError as error:
        if is_not_writable(error):
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); it holds the format's number") from error
    raise InputError(
        f"{directory}: has {found}, and this program knows format {FORMAT} alone; go back to the version that wrote "
        "it, or restore the backup from before it (docs/operate/upgrade.md)"
    )


def mark_format(directory: Path) -> None:
    """Write the format number into a folder without one, synced. Raises OSError."""
    if not (directory / FORMAT_FILE).exists():
        files.write(directory / FORMAT_FILE, FORMAT_CONTENT)


def require_honest(directory: Path, *, is_shared: bool) -> None:
    """Raise InputError if a folder's disk lacks what `files` needs. A full disk is no fault: its space may return.

    Raises OSError for a read-only mount.
    """
    try:
        complaint = fault_of_folder(directory, is_shared=is_shared)
    except OSError as error:
        if error.errno in _FULL:
            return
        if error.errno == errno.EROFS:
            raise
        complaint = f"cannot be used ({error.strerror}); choose another folder"
    if complaint is not None:
        raise InputError(f"storage.directory {directory}: {complaint}")


def fault_of_folder(directory: Path, *, is_shared: bool) -> str | None:
    """Return the fault of an existing folder with its remedy, or None. Leaves no files behind.

    is_shared: several processes use it, perhaps on several machines
    Raises OSError when the folder is not writable.
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
    return _fault_of_mount(_options(directory.resolve())) if is_shared else None


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


def _options(directory: Path) -> frozenset[str]:
    """Return the mount options of the file system that holds a folder; none where the machine does not list them."""
    try:
        lines = [line.split(" ") for line in os.fsdecode(_MOUNTS.read_bytes()).splitlines()]
    except OSError:
        return frozenset()
    found = [line for line in lines if directory.is_relative_to(_unescaped(line[4]))]
    if not found:
        return frozenset()
    # Of several mounts on one path, the last is in use.
    newest = max(enumerate(found), key=lambda numbered: (len(Path(_unescaped(numbered[1][4])).parts), numbered[0]))[1]
    return frozenset((*newest[5].split(","), *newest[-1].split(",")))


def _unescaped(place: str) -> str:
    """Decode a path of proc(5), where blanks, tabs, line ends and backslashes are octal."""
    for octal in ("040", "011", "012", "134"):
        place = place.replace(f"\\{octal}", chr(int(octal, 8)))
    return place
