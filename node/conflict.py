"""Whether two objects under one UID show other pixels, told without decoding them and without loading them whole.

PS3.5 9.1: a UID names one object for ever. Other patient data under a known UID are a correction; other pixels are a
fault of the sender, and nobody can say which of the two are meant. What only a decoder could tell counts as a
correction, and so does all that comes after a film that was cut off, which nobody could read.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydicom import dcmread
from pydicom.filereader import read_file_meta_info
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from node import attributes
from node.errors import is_of_disk
from node.header import frugal

_PLAIN: Final = (ImplicitVRLittleEndian, ExplicitVRLittleEndian)
_UNDEFINED_LENGTH: Final = b"\xff\xff\xff\xff"
_ITEM: Final = b"\xfe\xff\x00\xe0"
_END: Final = b"\xfe\xff\xdd\xe0"
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pixels:
    """Where the value of Pixel Data lies in a file, 0 bytes where there is none, and what its size is said to be.

    coding: the transfer syntax, one for both that have plain little endian pixels
    is_whole: whether the file holds all of it
    """

    coding: str
    rows: int | None
    columns: int | None
    start: int
    length: int
    is_whole: bool


def has_other_pixels(known: Path, arrived: Path) -> bool:
    """Say whether two files surely hold other pixels: another size, or other bytes in the same coding (PS3.5 8, A).

    Raises OSError when the disk fails.
    """
    with known.open("rb") as first, arrived.open("rb") as second:
        one, other = _locate(first), _locate(second)
        if one is None or other is None or not one.is_whole:
            return False
        if (one.rows, one.columns) != (other.rows, other.columns):
            return True
        if one.coding != other.coding:
            return False
        return one.length != other.length or not _are_equal(first, one.start, second, other.start, one.length)


def _locate(file: BinaryIO) -> _Pixels | None:
    """Find the pixels of an object; None when that would take a decoder, or the file cannot be parsed."""
    try:
        with attributes.quiet():
            syntax = UID(str(read_file_meta_info(file.name).TransferSyntaxUID))
            if syntax == DeflatedExplicitVRLittleEndian:  # may inflate to anything
                return None
            header = dcmread(frugal(file), stop_before_pixels=True, specific_tags=["Rows", "Columns"])
        start, length, is_whole = _value(file, syntax)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
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
    """Start, length and wholeness of the value of the element for which pydicom stopped: Pixel Data, or the end."""
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
    """Compare a stretch of one file with an equally long one of another."""
    first.seek(start)
    second.seek(other_start)
    while length > 0:
        size = min(length, _CHUNK_BYTES)
        part, other = first.read(size), second.read(size)
        if part != other:
            return False
        length -= size
    return True
