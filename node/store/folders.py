"""Makes the folders of studies among threads and processes, each synced before anybody uses it.

Who makes a folder holds a lock of its study and notes the folder in the lock's file until all is synced. If that ends
or fails in between, whoever has the lock next finds the note and syncs the folder before using it. Studies share a few
locks, because a lock file that may be held cannot be removed; most studies wait for none, and a journaling file system
writes syncs that run at the same time together.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from node.store import files

_LOCKS: Final = 64
_LONGEST_NOTE: Final = 4096


class Folders:
    """Folders below a directory; locks: the folder of the locks' files, with which every process comes."""

    def __init__(self, directory: Path, *, locks: Path) -> None:
        self._directory, self._locks = directory, locks

    def make(self, folder: Path) -> None:
        """Make a folder (mode 0700) and its parents, synced. Raises OSError."""
        with self.of(folder) as make:
            make(folder)

    @contextmanager
    def of(self, folder: Path) -> Iterator[Callable[[Path], None]]:
        """Be the only one who makes, renames or removes folders of a study; yields what makes one, as `make` does.

        folder: of the study or within it, or another one below the directory
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
