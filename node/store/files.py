"""Files that survive a power cut: written under a temporary name, synced, renamed, and their folder synced.

A file with a temporary name was never acknowledged.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO, TypeVar
from uuid import uuid4

from models.documents import Misfit, decode
from node.domain import JsonObject
from node.errors import InputError, OtherForm, is_of_file

TEMPORARY: Final = ".incoming-"
"""Prefix of the name of an incomplete file."""

PRIVATE: Final = 0o600
ORDINARY: Final = 0o666
"""The mode of a file that others may read; the umask narrows it."""

_HASH: Final = "content_sha256"
_DOCUMENT: Final = re.compile(r"[A-Za-z0-9._-]+\.json")
"""Names of the node's own JSON files; copies by people and their tools have other names."""

_T = TypeVar("_T")

Stamp = tuple[int, int, int] | None
"""A file's modification time, size and inode number; None for a missing file."""


class Aside:
    """A file under a temporary name, until it is published or discarded; in the file system of its destination."""

    def __init__(self, folder: Path, *, mode: int = PRIVATE) -> None:
        self.path = folder / f"{TEMPORARY}{uuid4().hex}"
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self._is_open = True

    def write(self, part: bytes) -> None:
        """Add bytes."""
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def sync(self) -> None:
        """Sync the content to disk; nothing can be added after this."""
        os.fsync(self._handle)
        self._close()

    def publish(self, path: Path) -> None:
        """Rename a synced file to its final name, and sync its folder."""
        os.rename(self.path, path)
        sync_folder(path.parent)

    def discard(self) -> None:
        """Remove the file; a published file stays. A file that cannot be removed now is removed at the next start."""
        with suppress(OSError):
            self._close()
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._handle)


def write(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file into an existing folder. A failure leaves nothing behind."""
    with _synced(path.parent, content, mode=mode) as aside:
        aside.publish(path)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file into an existing folder unless its name is taken; returns whether it was written."""
    with _synced(path.parent, content, mode=PRIVATE) as aside:
        try:
            os.link(aside.path, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


def secret(path: Path, *, length: int) -> bytes:
    """Return a file's random bytes, made at first use (mode 0600), and anew if it is damaged. Raises OSError."""
    if not path.exists():
        write_new(path, secrets.token_bytes(length))
    if len(path.read_bytes()) != length:
        write(path, secrets.token_bytes(length))
    return path.read_bytes()


@contextmanager
def _synced(folder: Path, content: bytes, *, mode: int) -> Iterator[Aside]:
    """Write a file under a temporary name, synced; the temporary name is removed at the end."""
    aside = Aside(folder, mode=mode)
    try:
        aside.write(content)
        aside.sync()
        yield aside
    finally:
        aside.discard()


def unfinished(folder: Path) -> Iterator[Path]:
    """Return every file below a folder that has a temporary name; other processes may remove folders meanwhile."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name.startswith(TEMPORARY))


def merge(source: Path, target: Path, *, make: Callable[[Path], None]) -> None:
    """Move a folder's files into another folder, synced; existing files stay. make: creates a folder."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_file() and not place.exists():
            make(place.parent)
            path.rename(place)
            sync_folder(place.parent)


def make_folder(folder: Path) -> None:
    """Create a folder (mode 0700), and sync its entry and those of its new parents."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def require_started(directory: Path) -> None:
    """Raise InputError unless a node has used this storage folder."""
    if not directory.is_dir():
        raise InputError(f"{directory}: does not exist; start the node once with `node serve`")


def stamp(path: Path) -> Stamp:
    """Return a value that changes when a file is rewritten or replaced; None when there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def sync_folder(folder: Path) -> None:
    """Sync the renames and removals in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(path: Path) -> Iterator[TextIO]:
    """Hold an exclusive lock among all threads and processes; the end of the process releases it.

    Yields the lock's open file, whose content belongs to its holder.
    """
    with _open_private(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Like `lock`, but without waiting: yields whether the lock was free. Its holder may remove the file."""
    while True:
        with _open_private(path) as file:  # keeps the file's time, which `processes` reads
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if _is_at(path, file):
                yield True
                return


def make_private(path: Path) -> None:
    """Make an empty, unsynced file (mode 0600); an existing file gets that mode and is never opened.

    SQLite's locks belong to the process, not to a descriptor: opening and closing the file would release all of them.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    except FileExistsError:
        with suppress(PermissionError):  # the file may belong to another user
            path.chmod(PRIVATE)


def _open_private(path: Path) -> TextIO:
    """Open a lock file, created if missing; its content is neither read nor changed."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE), "r+")


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def to_json(content: Mapping[str, object]) -> bytes:
    """Return the bytes of a file for `read_json`: the content and its hash."""
    return _json({**content, _HASH: hashlib.sha256(_json(content)).hexdigest()})


def listed(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match, by name; none if the folder is missing, or removed at this moment."""
    try:
        return sorted(folder.glob(pattern))
    except FileNotFoundError:
        return []


def documents(folder: Path) -> list[Path]:
    """Return the node's own JSON files in a folder, by name; none if the folder is missing."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each) for each in entries if _DOCUMENT.fullmatch(each.name) and each.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def changed_at(path: Path) -> datetime | None:
    """Return when a file was written; None if it is missing, or removed at this moment."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def content_of(path: Path) -> bytes:
    """Read a file; empty if it is missing, or the disk has lost its content. Raises OSError when the disk fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_of_file(error):
            return b""
        raise


def read_json(path: Path) -> JsonObject | None:
    """Read a JSON file of the node; None if it is missing or damaged, so that its work is repeated."""
    try:
        content = json.loads(content_of(path))
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    expected = content.pop(_HASH, None)
    return content if expected == hashlib.sha256(_json(content)).hexdigest() else None


def read_known(kind: type[_T], path: Path) -> _T | None:
    """Read a value from a JSON file of the node; None if it is missing, damaged, or of another form."""
    content = read_json(path)
    try:
        return None if content is None else decode(kind, content)
    except ValueError:
        return None


def read_as(make: Callable[[JsonObject], _T], path: Path) -> _T | None:
    """Build a value from a JSON file of the node; None if it is missing or damaged. Raises OtherForm with the path."""
    content = read_json(path)
    return None if content is None else made(make, content, place=path)


def made(make: Callable[[JsonObject], _T], content: JsonObject, *, place: Path | str) -> _T:
    """Build a value from stored JSON; make: raises Misfit. Raises OtherForm that names the file or the table."""
    try:
        return make(content)
    except Misfit as misfit:
        raise OtherForm(
            f"{place}: has a format that this program does not know ({misfit}); go back to the version that wrote it "
            "(docs/operate/upgrade.md)"
        ) from misfit


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
