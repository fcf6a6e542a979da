"""Files of ours that must survive a power cut: written aside, synced, renamed, and their folder synced.

A file still under its temporary name was never acknowledged to anybody.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from node.domain import JsonObject

TEMPORARY: Final = ".incoming-"
"""How the name of a file begins that is not complete."""


class Aside:
    """A file under its temporary name, until it is published or discarded; on one file system with where it goes."""

    def __init__(self, folder: Path) -> None:
        self._handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
        self._is_open = True
        self.path = Path(name)

    def write(self, part: bytes) -> None:
        """Add bytes."""
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def seal(self) -> None:
        """Let the content survive a power cut; nothing is added any more."""
        os.fsync(self._handle)
        self._close()

    def publish(self, path: Path) -> None:
        """Give a sealed file its name, and let that survive a power cut."""
        os.rename(self.path, path)
        sync_folder(path.parent)

    def discard(self) -> None:
        """Remove the file; nothing happens to one that was published."""
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._handle)


def write(path: Path, content: bytes) -> None:
    """Write a file into a folder that exists. On any failure nothing is left behind."""
    with _sealed(path.parent, content) as aside:
        aside.publish(path)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file into a folder that exists, unless there is one of its name; whether it was written."""
    with _sealed(path.parent, content) as aside:
        try:
            os.link(aside.path, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


@contextmanager
def _sealed(folder: Path, content: bytes) -> Iterator[Aside]:
    """Write a file under a temporary name, synced, which is gone in the end."""
    aside = Aside(folder)
    try:
        aside.write(content)
        aside.seal()
        yield aside
    finally:
        aside.discard()


def unfinished(folder: Path) -> Iterator[Path]:
    """Every file below a folder under its temporary name; other processes may remove folders meanwhile."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name.startswith(TEMPORARY))


def make_folder(folder: Path) -> None:
    """Make a folder (mode 0700) whose own entry, and those of its new parents, survive a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Let what was renamed or removed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Be the only one who holds this lock, of all threads and all processes; a process that dies gives it back."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Like `lock`, but never wait: say whether it was to be had. Whoever has it may remove the file."""
    while True:
        with path.open("a") as file:  # its time stays: `processes` reads from it when somebody was last seen
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if _is_at(path, file):
                yield True
                return


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def to_json(content: Mapping[str, object]) -> bytes:
    """Return the content of a file that `read_json` reads."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def read_json(path: Path) -> JsonObject | None:
    """Read a file of ours; one that is missing or damaged counts as absent, so that its work is done again."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
