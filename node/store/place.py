"""Where the spool's files are safe: a folder, as it is, or a folder whose files a bucket holds, too (`mirror`).

What a method of a place has written survives a power cut, and for a bucket the loss of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from node.store import files

_T = TypeVar("_T")


class SyncedFile(Protocol):
    """A synced file under a temporary name: `files.Aside`, or an object that was received."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def publish(self, path: Path) -> None:
        """Give it its final name, synced. Raises OSError."""
        ...


class SafePlace(Protocol):
    """Writes and removes files of the spool in existing folders. Every method raises OSError."""

    def publish(self, synced: SyncedFile, path: Path) -> None:
        """Give a file its final name."""
        ...

    def write(self, path: Path, content: bytes) -> None:
        """Write a file; it replaces one of this name."""
        ...

    def write_new(self, path: Path, content: bytes) -> bool:
        """Write a file unless its name is taken; returns whether it was written."""
        ...

    def withdraw(self, paths: Iterable[Path]) -> None:
        """Remove every copy of files but those in the folder, which the caller removes after that."""
        ...

    def put_back(self, folder: Path) -> None:
        """Make all files below a folder safe again that were withdrawn and not removed."""
        ...

    def settle_doubts(self, folder: Path) -> None:
        """Find out what became of writes to a folder that failed without an answer."""
        ...

    def patiently(self, work: Callable[[], _T]) -> _T:
        """Do work that may be repeated; waits while the place is away. Hold no lock meanwhile."""
        ...


class PlainFolder:
    """The folder alone: it is the place of its files."""

    def publish(self, synced: SyncedFile, path: Path) -> None:
        """Give a file its final name, synced."""
        synced.publish(path)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, synced."""
        files.write(path, content)

    def write_new(self, path: Path, content: bytes) -> bool:
        """Write a file, synced, unless its name is taken."""
        return files.write_new(path, content)

    def withdraw(self, paths: Iterable[Path]) -> None:
        """Do nothing: there are no other copies."""

    def put_back(self, folder: Path) -> None:
        """Do nothing: nothing was withdrawn."""

    def settle_doubts(self, folder: Path) -> None:
        """Do nothing: a disk always answers."""

    def patiently(self, work: Callable[[], _T]) -> _T:
        """Do work; errors of a disk do not pass by waiting."""
        return work()
