"""One object on its way to disk: hashed and written to a temporary file while it arrives, never whole in memory.

The object is acknowledged only after the spool has renamed it; until then, the next start removes it.

PS3.5 9.1: a UID names one object forever. Different patient data under a known UID are a correction. Different pixels
are a fault of the sender, and the node cannot know which of the two objects is right. Pixels are compared without
decoding or loading the objects as a whole. A difference that only a decoder could detect counts as a correction, and so
does any object that replaces a truncated film, which could not be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from node.dicom import attributes
from node.dicom.header import read_before_pixels, read_meta
from node.errors import SpoolFull, is_of_disk
from node.store import files
from node.store.received import with_hash

_CHECKED_BYTES: Final = 1024 * 1024
"""Bytes between two checks of the disk's free space."""
_PLAIN: Final = (ImplicitVRLittleEndian, ExplicitVRLittleEndian)
_UNDEFINED_LENGTH: Final = b"\xff\xff\xff\xff"
_ITEM: Final = b"\xfe\xff\x00\xe0"
_END: Final = b"\xfe\xff\xdd\xe0"
_CHUNK_BYTES: Final = 1024 * 1024


class Incoming(files.Aside):
    """An object that is being received; for one thread."""

    def __init__(self, folder: Path, *, meta: bytes, has_room: Callable[[], bool]) -> None:
        """Write preamble and file meta information, with their hash. Raises SpoolFull."""
        self._has_room, self._meta_bytes = has_room, len(meta)
        self._hash, self._unchecked = hashlib.sha256(), 0
        try:
            super().__init__(folder)
        except OSError as error:
            raise full(error) from error
        self._write(with_hash(meta))

    @property
    def sha256(self) -> str:
        """The hash of the dataset as received."""
        return self._hash.hexdigest()

    def write(self, part: bytes) -> None:
        """Add bytes of the dataset. Raises SpoolFull, after removing the file."""
        self._write(part)
        self._hash.update(part)

    def open_dataset(self) -> BinaryIO:
        """Open the file for reading at the beginning of the dataset."""
        file = self.path.open("rb")
        file.seek(self._meta_bytes)
        return file

    def _write(self, part: bytes) -> None:
        try:
            if self._unchecked <= 0:
                self._unchecked = _CHECKED_BYTES
                if not self._has_room():
                    raise SpoolFull("the disk is below its reserve; send again later")
            self._unchecked -= len(part)
            super().write(part)
        except OSError as error:
            self.discard()
            raise full(error) from error
        except SpoolFull:
            self.discard()
            raise


def full(error: OSError) -> SpoolFull:
    """Return the disk's error as the error that is sent to the sender."""
    return SpoolFull(f"the object could not be written ({error.strerror}); send again later")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pixels:
    """Where Pixel Data's value is in a file (0 bytes if absent), and the size that the header declares.

    coding: the transfer syntax; "plain" for both syntaxes with uncompressed little endian pixels
    is_whole: whether the file holds the whole value
    """

    coding: str
    rows: int | None
    columns: int | None
    start: int
    length: int
    is_whole: bool


def has_other_pixels(known: Path, arrived: Path) -> bool:
    """Whether two files certainly have different pixels: another size, or other bytes in one coding (PS3.5 8, A).

    Raises OSError when the disk fails.
    """
    with known.open("rb") as first, arrived.open("rb") as second:
        before, after = _locate(first), _locate(second)
        if before is None or after is None or not before.is_whole:
            return False
        if (before.rows, before.columns) != (after.rows, after.columns):
            return True
        if before.coding != after.coding:
            return False
        return before.length != after.length or not _are_equal(first, before.start, second, after.start, before.length)


def _locate(file: BinaryIO) -> _Pixels | None:
    """Locate an object's pixels; None when that would need a decoder, or the file cannot be parsed."""
    try:
        with attributes.quiet():
            syntax = UID(str(read_meta(file).TransferSyntaxUID))
            file.seek(0)
            if syntax == DeflatedExplicitVRLittleEndian:  # may inflate to anything
                return None
            header = read_before_pixels(file, "Rows", "Columns")
        start, length, is_whole = _value(file, syntax)
    except Exception as error:  # pydicom's parser documents no set of exceptions
        if is_of_disk(error):
            raise
        return None
    return _Pixels(
        coding="plain" if syntax in _PLAIN else syntax,
        rows=attributes.whole(header, "Rows"),
        columns=attributes.whole(header, "Columns"),
        start=start,
        length=length,
        is_whole=is_whole,
    )


def _value(file: BinaryIO, syntax: UID) -> tuple[int, int, bool]:
    """Return start, length and completeness of the value where pydicom stopped: Pixel Data, or the end."""
    element = file.read(8)
    if len(element) < 8:
        return file.tell(), 0, True
    order: Literal["big", "little"] = "big" if syntax == ExplicitVRBigEndian else "little"
    size = element[4:] if syntax == ImplicitVRLittleEndian else file.read(4)  # PS3.5 7.1.2: OB and OW
    start = file.tell()
    if size != _UNDEFINED_LENGTH:
        length = int.from_bytes(size, order)
        return start, length, start + length <= file.seek(0, SEEK_END)
    while (tag := file.read(4)) == _ITEM:  # PS3.5 A.4
        file.seek(int.from_bytes(file.read(4), "little"), 1)
    return start, file.tell() - start, tag == _END


def _are_equal(first: BinaryIO, start: int, second: BinaryIO, other_start: int, length: int) -> bool:
    """Whether two ranges of equal length, in two files, have the same bytes."""
    first.seek(start)
    second.seek(other_start)
    while length > 0:
        size = min(length, _CHUNK_BYTES)
        part, other = first.read(size), second.read(size)
        if part != other:
            return False
        length -= size
    return True
