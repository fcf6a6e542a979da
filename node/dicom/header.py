"""Read the header of a received object, with limits on its bytes and elements."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, cast

from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.filereader import read_dataset, read_partial, read_preamble
from pydicom.tag import BaseTag, Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian, ImplicitVRLittleEndian

from node.dicom import attributes
from node.errors import Refused

_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID = Tag("SOPInstanceUID"), Tag("StudyInstanceUID")
_INFLATED_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_ELEMENTS: Final = 20_000
"""Per header, not counting elements within sequences. A film has some hundreds; parsing 20,000 takes 0.1 s."""
_MOST_READS: Final = 200_000
"""Single reads by the parser: two for each element, including elements within sequences."""

_PIXELS: Final = frozenset(Tag(keyword) for keyword in ("FloatPixelData", "DoubleFloatPixelData", "PixelData"))

_START_BYTES: Final = 144
_START: Final = b"DICM\x02\0\0\0UL\x04\0"
"""Behind the preamble: the prefix and the first element, which says how long the other elements of group 0002 are."""
_LONGEST_META: Final = 64 * 1024

StopWhen = Callable[[BaseTag, str | None, int], bool]


def identify(file: BinaryIO, syntax: UID) -> tuple[str, str]:
    """Read Study and SOP Instance UID of an encoded dataset; does not parse or inflate what follows them.

    Raises Refused when they cannot be read.
    """
    try:
        if syntax == DeflatedExplicitVRLittleEndian:
            part = file.read(_INFLATED_BYTES)
            file = BytesIO(zlib.decompressobj(-zlib.MAX_WBITS).decompress(part, _INFLATED_BYTES))
        with attributes.quiet():
            dataset = read_dataset(
                _frugal(file),
                is_implicit_VR=syntax.is_implicit_VR,
                is_little_endian=syntax.is_little_endian,
                stop_when=_bounded(lambda tag, _vr, _length: tag > _STUDY_INSTANCE_UID),
                specific_tags=[_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID],
            )
            return str(dataset.StudyInstanceUID), str(dataset.SOPInstanceUID)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the object has no readable Study and SOP Instance UID; correct it at the sender") from error


def read_meta(file: BinaryIO) -> FileMetaDataset:
    """Read preamble and file meta information of a file, if it has any; leaves the position behind them.

    Its group length says where it ends (PS3.10 7.1): a dataset may hold elements of group 0002, too, which say nothing
    about it. Without a group length that fits, reads as pydicom 3.0.2 does. Raises any error of pydicom.
    """
    start = file.tell()
    if (bounded := _bounded_meta(file)) is not None:
        return bounded
    file.seek(start)
    read_preamble(file, force=True)
    start, meta = file.tell(), FileMetaDataset()
    for is_implicit in (False, True):  # implicit is not allowed, but pydicom reads it
        file.seek(start)
        meta = FileMetaDataset(read_dataset(file, is_implicit, True, stop_when=_bounded(_is_no_meta)))
        if attributes.text(meta, "TransferSyntaxUID"):
            break
    return meta


def read(path: Path, *, longest_bytes: int | None = None, stop_when: StopWhen | None = None) -> FileDataset:
    """Read a DICOM file with or without preamble and file meta information, in about a second at most.

    longest_bytes: longer values are read from the file on first access
    stop_when: decides by tag, value representation and length whether to stop before an element
    Raises ValueError for more elements than the limit, OSError for an error of the disk, and any error of pydicom.
    """
    with _Counted(io.FileIO(str(path))) as file:
        return _read(file, stop_when or _never, longest_bytes=longest_bytes)


def read_before_pixels(file: BinaryIO, *keywords: str) -> FileDataset:
    """Read some attributes of an open file, and leave its position at the pixels, or at its end.

    Raises ValueError for a header that exceeds the limits, and any error of pydicom.
    """
    return _read(_frugal(file), at_pixels, tags=[Tag(keyword) for keyword in keywords])


def at_pixels(tag: BaseTag, _vr: str | None, _length: int) -> bool:
    """Say whether an element holds pixels (PS3.3 C.7.6.3, C.7.6.24)."""
    return tag in _PIXELS


def _read(
    file: BinaryIO, stop_when: StopWhen, *, longest_bytes: int | None = None, tags: list[BaseTag | int] | None = None
) -> FileDataset:
    """Read a file as pydicom does, but for the elements of group 0002 that its dataset holds; tags: None for all."""
    start = file.tell()
    meta = _bounded_meta(file)
    if meta is not None and _begins_with_meta(file, UID(meta.TransferSyntaxUID)):
        dataset = _read_behind(file, meta, stop_when, longest_bytes=longest_bytes, tags=tags)
    else:
        file.seek(start)
        dataset = read_partial(
            file, stop_when=_bounded(stop_when), defer_size=longest_bytes, force=True, specific_tags=tags
        )
    for tag in tuple(dataset.keys()):
        if tag.group == 2:
            del dataset[tag]
    return dataset


def _read_behind(
    file: BinaryIO,
    meta: FileMetaDataset,
    stop_when: StopWhen,
    *,
    longest_bytes: int | None,
    tags: list[BaseTag | int] | None,
) -> FileDataset:
    """Read a dataset in the transfer syntax that its file meta information names; the position is at its beginning."""
    syntax = UID(meta.TransferSyntaxUID)
    dataset = Dataset()
    with suppress(EOFError):  # as in pydicom's `read_partial`
        dataset = read_dataset(
            file,
            syntax.is_implicit_VR,
            syntax.is_little_endian,
            stop_when=_bounded(stop_when),
            defer_size=longest_bytes,
            specific_tags=tags,
        )
    found = FileDataset(file, dataset, None, meta, syntax.is_implicit_VR, syntax.is_little_endian)
    found.set_original_encoding(syntax.is_implicit_VR, syntax.is_little_endian)
    return found


def _begins_with_meta(file: BinaryIO, syntax: UID) -> bool:
    """Say whether a dataset begins with an element of group 0002, which pydicom would take for file meta information.

    Leaves the position where it was. In a deflated dataset pydicom does not see it. An explicit element before an
    implicit dataset is file meta information after all, beyond a group length that is too small.
    """
    start = file.read(6)
    file.seek(-len(start), io.SEEK_CUR)
    if syntax == DeflatedExplicitVRLittleEndian or (syntax == ImplicitVRLittleEndian and start[4:].isupper()):
        return False
    return start[:2] == (b"\0\2" if syntax == ExplicitVRBigEndian else b"\2\0")


def _bounded_meta(file: BinaryIO) -> FileMetaDataset | None:
    """Read file meta information of the length that it states; None if it states none, or names no transfer syntax."""
    start = file.read(_START_BYTES)
    length = int.from_bytes(start[-4:], "little")
    if start[128:-4] != _START or length > _LONGEST_META:
        return None
    try:
        head = BytesIO(file.read(length))
        meta = read_dataset(head, False, True, stop_when=_bounded(_is_no_meta))
    except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
        return None
    is_whole = not head.read(1) and bool(attributes.text(meta, "TransferSyntaxUID"))
    return FileMetaDataset(meta) if is_whole else None


def _is_no_meta(tag: BaseTag, _vr: str | None, _length: int) -> bool:
    return tag.group != 2


def _frugal(file: BinaryIO) -> BinaryIO:
    """Wrap a file for a parser that may skip any number of bytes, but read 16 MiB at most; then reads raise ValueError.

    pydicom skips a value of known length, and loads values of unknown length and nested sequences to find their ends.
    """
    return cast(BinaryIO, _Frugal(file))


def _never(_tag: BaseTag, _vr: str | None, _length: int) -> bool:
    return False


def _bounded(stop_when: StopWhen) -> StopWhen:
    """Count the elements of a dataset while it is read; raises ValueError above `_MOST_ELEMENTS`."""
    left = _MOST_ELEMENTS

    def look(tag: BaseTag, vr: str | None, length: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"the header has more than {_MOST_ELEMENTS} elements")
        return stop_when(tag, vr, length)

    return look


class _Counted(io.BufferedReader):
    """A file that allows `_MOST_READS` reads; for pydicom it is like a file that `open` returned."""

    _left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes. Raises ValueError after `_MOST_READS` reads."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("the header has more elements than any")
        return super().read(size)


class _Frugal:
    """The methods of a file that pydicom's parser uses, with a limit on the bytes read."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.name = file.seek, file.tell, str(getattr(file, "name", ""))
        self._read, self._left = file.read, _MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes. Raises ValueError if the total would exceed 16 MiB, or if no size is given."""
        if not 0 <= size <= self._left:
            raise ValueError("the header exceeds 16 MiB")
        part = self._read(size)
        self._left -= len(part)
        return part
