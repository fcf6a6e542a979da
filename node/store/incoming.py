"""One object on its way to disk: hashed and written to a temporary file while it arrives, never whole in memory.

Until the spool gives it its name, the object is not acknowledged, and the next start removes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from node.errors import SpoolFull
from node.store import files
from node.store.received import with_hash

_CHECKED_BYTES: Final = 1024 * 1024
"""The room on the disk is checked again after so many bytes, not for each part of the network's."""


class Incoming:
    """An object that is being received; for one thread at a time."""

    def __init__(self, folder: Path, *, meta: bytes, has_room: Callable[[], bool]) -> None:
        """Begin with preamble and file meta information, to which its hash is added. Raises SpoolFull."""
        self._has_room, self._meta_bytes = has_room, len(meta)
        self._hash, self._unchecked = hashlib.sha256(), 0
        try:
            self._aside = files.Aside(folder)
        except OSError as error:
            raise full(error) from error
        self._write(with_hash(meta))

    @property
    def sha256(self) -> str:
        """The hash of the dataset as received."""
        return self._hash.hexdigest()

    @property
    def path(self) -> Path:
        """The path of the temporary file."""
        return self._aside.path

    def write(self, part: bytes) -> None:
        """Add bytes of the dataset. Raises SpoolFull, after removing the file."""
        self._write(part)
        self._hash.update(part)

    def open_dataset(self) -> BinaryIO:
        """Open the file for reading at the beginning of the dataset."""
        file = self.path.open("rb")
        file.seek(self._meta_bytes)
        return file

    def sync(self) -> None:
        """Sync the complete object. Raises OSError."""
        self._aside.sync()

    def publish(self, path: Path) -> None:
        """Give the object its final name, synced. Raises OSError."""
        self._aside.publish(path)

    def discard(self) -> None:
        """Remove the file; an object with its final name stays."""
        self._aside.discard()

    def _write(self, part: bytes) -> None:
        try:
            if self._unchecked <= 0:
                self._unchecked = _CHECKED_BYTES
                if not self._has_room():
                    raise SpoolFull("the disk is below its reserve; send again later")
            self._unchecked -= len(part)
            self._aside.write(part)
        except OSError as error:
            self.discard()
            raise full(error) from error
        except SpoolFull:
            self.discard()
            raise


def full(error: OSError) -> SpoolFull:
    """Turn an error of the disk into the error that the sender is told."""
    return SpoolFull(f"the object could not be written ({error.strerror}); send again later")
