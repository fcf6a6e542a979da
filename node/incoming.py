"""One object on its way to disk: written aside and hashed while it comes, so that none is ever whole in memory.

It is not acknowledged, and removed at the next start, until the spool has given it its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from node import durable
from node.errors import SpoolFull


class Incoming:
    """An object that is being received; for one thread at a time."""

    def __init__(self, folder: Path, *, meta: bytes, has_room: Callable[[], bool]) -> None:
        """Begin with preamble and file meta information. Raises SpoolFull."""
        self._has_room, self._meta_bytes = has_room, len(meta)
        self._hash, self._size = hashlib.sha256(), 0
        try:
            self._aside = durable.Aside(folder)
        except OSError as error:
            raise full(error) from error
        self._write(meta)

    @property
    def size(self) -> int:
        """How many bytes of the dataset have come."""
        return self._size

    @property
    def sha256(self) -> str:
        """The hash of the dataset as received."""
        return self._hash.hexdigest()

    @property
    def path(self) -> Path:
        """Where it lies meanwhile."""
        return self._aside.path

    def write(self, part: bytes) -> None:
        """Add bytes of the dataset. Raises SpoolFull, and leaves nothing behind then."""
        self._write(part)
        self._hash.update(part)
        self._size += len(part)

    def open_dataset(self) -> BinaryIO:
        """Open it for reading at the beginning of the dataset."""
        file = self.path.open("rb")
        file.seek(self._meta_bytes)
        return file

    def seal(self) -> None:
        """Sync what has come; it is complete. Raises OSError."""
        self._aside.seal()

    def publish(self, path: Path) -> None:
        """Give it its final name, synced. Raises OSError."""
        self._aside.publish(path)

    def discard(self) -> None:
        """Leave nothing behind; nothing happens to an object that has its final name."""
        self._aside.discard()

    def _write(self, part: bytes) -> None:
        try:
            if not self._has_room():
                raise SpoolFull("the disk is below its reserve; send again later")
            self._aside.write(part)
        except OSError as error:
            self.discard()
            raise full(error) from error
        except SpoolFull:
            self.discard()
            raise


def full(error: OSError) -> SpoolFull:
    """Turn what the disk says into what the sender hears."""
    return SpoolFull(f"the object could not be written ({error.strerror}); send again later")
