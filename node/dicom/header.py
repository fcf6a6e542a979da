"""Read the header of a received object, with limits on its bytes and elements.

Each element stands once, by ascending tag (PS3.5 7.1). Of one that stands twice, one program takes the first and
another the last, so an object could be acknowledged under one UID and answered under another. Objects whose UIDs or
pixels could be mistaken so are refused, whichever way they come.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.filereader import read_dataset, read_partial, read_preamble
from pydicom.tag import BaseTag, Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian, ImplicitVRLittleEndian
from pydicom.valuerep import EXPLICIT_VR_LENGTH_32

from node.dicom import attributes
from node.dicom.deflated_dataset import Inflated
from node.domain import Reason
from node.errors import Refused, Undecodable, is_of_disk

_CHARACTER_SET: Final = Tag("SpecificCharacterSet")
_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID = Tag("SOPInstanceUID"), Tag("StudyInstanceUID")
_NAMING: Final = frozenset(
    Tag(keyword) for keyword in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
)
_INFLATED_BYTES: Final = 1024 * 1024
_LONGEST_UID: Final = 64
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_ELEMENTS: Final = 20_000
"""Per header, not counting elements within sequences. A film has some hundreds; parsing 20,000 takes 0.1 s."""
_MOST_READS: Final = 200_000
"""Single reads by the parser: two for each element, including elements within sequences."""

_PIXEL_DATA: Final = Tag("PixelData")
_PIXELS: Final = frozenset(Tag(keyword) for keyword in ("FloatPixelData", "DoubleFloatPixelData", "PixelData"))

_FIRST_GROUP: Final = 0x0008
"""Of a dataset. Zeros behind an object look like elements of group 0000, and those of group 0002 are removed."""
_PATIENT_GROUPS: Final = frozenset((0x0010, 0x0032, 0x0040))
_OF_PATIENT: Final = frozenset(
    map(Tag, (*attributes.REQUIRED, *attributes.OPTIONAL, "TimezoneOffsetFromUTC", "PatientOrientation"))
)
"""Attributes of patient, study and request that outputs use, beside those of `_PATIENT_GROUPS`."""

_START_BYTES: Final = 144
_START: Final = b"DICM\x02\0\0\0UL\x04\0"
"""After the preamble: the prefix and the first element, which has the length of the rest of group 0002."""
_LONGEST_META: Final = 64 * 1024
_UNDEFINED_LENGTH: Final = 0xFFFFFFFF

StopWhen = Callable[[BaseTag, str | None, int], bool]


@dataclass(slots=True, kw_only=True)
class Order:
    """The order of the elements of a dataset, watched while it is read.

    is_broken: whether an element is repeated, or follows one with a higher tag; repeated: the repeated ones
    """

    is_broken: bool = False
    repeated: set[BaseTag] = field(default_factory=set)
    _seen: set[BaseTag] = field(default_factory=set)
    _highest: int = 0

    def watching(self, stop_when: StopWhen) -> StopWhen:
        """Watch the elements that a parser asks `stop_when` about.

        The parser then raises Undecodable at a UID of the object that stands twice or late, and at second pixels.
        """

        def look(tag: BaseTag, vr: str | None, length: int) -> bool:
            # pydicom asks about the first element twice if its encoding is not the expected one, first without length.
            if tag.group >= _FIRST_GROUP and (length or self._seen):
                self._watch(tag)
            return stop_when(tag, vr, length)

        return look

    def _watch(self, tag: BaseTag) -> None:
        is_again, is_late = tag in self._seen, tag < self._highest
        if (is_again or is_late) and tag in _NAMING:
            raise Undecodable(Reason.UNDECODABLE, f"{tag} stands twice or late; correct it at the sender")
        if is_again and tag in _PIXELS:
            raise Undecodable(Reason.UNDECODABLE, f"{tag} stands twice; correct it at the sender")
        if is_again:
            self.repeated.add(tag)
        self.is_broken = self.is_broken or is_again or is_late
        self._seen.add(tag)
        self._highest = max(self._highest, tag)


def identify(file: BinaryIO, syntax: UID) -> tuple[str, str]:
    """Read Study and SOP Instance UID of an encoded dataset, of a deflated one from its first MiB.

    Raises Refused when they are unreadable or ambiguous (`Order`). The rest of the file may be unreadable.
    """
    try:
        if syntax == DeflatedExplicitVRLittleEndian:
            part = file.read(_INFLATED_BYTES)
            file = BytesIO(zlib.decompressobj(-zlib.MAX_WBITS).decompress(part, _INFLATED_BYTES))
        start = file.tell()
        dataset = _skim(file, syntax, lambda tag, _vr, _length: tag > _STUDY_INSTANCE_UID, longest_bytes=None)
        with attributes.quiet():
            found = str(dataset.StudyInstanceUID), str(dataset.SOPInstanceUID)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the object has no readable Study and SOP Instance UID; correct it at the sender") from error
    file.seek(start)
    try:
        _skim(file, syntax, Order().watching(_never), longest_bytes=_LONGEST_UID)
    except Undecodable as error:
        raise Refused(str(error)) from error
    except Exception:  # the same boundary; the object is kept, and answered as one that cannot be read
        return found
    return found


def _skim(file: BinaryIO, syntax: UID, stop_when: StopWhen, *, longest_bytes: int | None) -> Dataset:
    """Read the UIDs of study and object, and skip all else; longer values of unknown length are not loaded.

    Raises any error of pydicom.
    """
    with attributes.quiet():
        file = cast(BinaryIO, _LimitedFile(file))
        return read_dataset(
            file,
            is_implicit_VR=syntax.is_implicit_VR,
            is_little_endian=syntax.is_little_endian,
            stop_when=_bounded(stop_when, file),
            defer_size=longest_bytes,
            specific_tags=[_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID],
        )


def require_order(path: Path) -> None:
    """Raise Undecodable if the UIDs of an object in a file can be mistaken (`Order`); OSError for an error of the disk.

    A header that cannot be read to its end is none of this function's.
    """
    try:
        with attributes.quiet():
            read(path, longest_bytes=_LONGEST_UID)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        if isinstance(error, Undecodable) or is_of_disk(error):
            raise


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
    return FileMetaDataset(read_dataset(file, False, True, stop_when=_bounded(_is_no_meta)))


def read(
    path: Path, *, longest_bytes: int | None = None, stop_when: StopWhen | None = None, order: Order | None = None
) -> FileDataset:
    """Read a DICOM file with or without preamble and file meta information, in about a second at most.

    longest_bytes: longer values are read from the file on first access
    stop_when: decides by tag, value representation and length whether to stop before an element
    order: watches the elements
    What stands twice of patient, study and request is left out: nobody can tell which of the two is meant. Of other
    elements the last one counts.
    Raises Undecodable for an object whose UIDs or pixels can be mistaken (`Order`), ValueError for more elements than
    the limit, OSError for an error of the disk, and any error of pydicom.
    """
    order = order or Order()
    with _CountedReads(io.FileIO(str(path))) as file:
        dataset, _ = _read(file, order.watching(stop_when or _never), longest_bytes=longest_bytes)
    for tag in order.repeated:
        if tag in dataset and (tag.group in _PATIENT_GROUPS or tag in _OF_PATIENT):
            del dataset[tag]
    return dataset


def read_before_pixels(file: BinaryIO, *keywords: str) -> FileDataset:
    """Read some attributes of an open file, and leave its position at the pixels, or at its end.

    Raises ValueError for a header that exceeds the limits, and any error of pydicom.
    """
    limited = cast(BinaryIO, _LimitedFile(file))
    return _read(limited, at_pixels, tags=[Tag(keyword) for keyword in keywords])[0]


class PixelValue(NamedTuple):
    """The value of PixelData in an open file, which stands at its first byte.

    length: in bytes; None for a value that a delimiter ends, which only encapsulated pixels have (PS3.5 A.4)
    """

    file: BinaryIO
    length: int | None


@contextmanager
def open_pixels(path: Path, *, longest_bytes: int) -> Iterator[tuple[FileDataset, PixelValue | None]]:
    """Read a file up to the value of its PixelData, of which nothing is read; None for a file without it.

    longest_bytes: as in `read`, whose errors it raises
    """
    element: tuple[str | None, int] | None = None

    def is_found(tag: BaseTag, vr: str | None, length: int) -> bool:
        nonlocal element
        if tag == _PIXEL_DATA:
            element = vr, length
        return element is not None

    with _CountedReads(io.FileIO(str(path))) as whole:
        dataset, file = _read(whole, is_found, longest_bytes=longest_bytes)
        if element is None:
            yield dataset, None
            return
        vr, length = element
        has_long_head = not dataset.original_encoding[0] and vr in EXPLICIT_VR_LENGTH_32
        file.seek(12 if has_long_head else 8, io.SEEK_CUR)
        yield dataset, PixelValue(file=file, length=None if length == _UNDEFINED_LENGTH else length)


def at_pixels(tag: BaseTag, _vr: str | None, _length: int) -> bool:
    """Return whether an element holds pixels (PS3.3 C.7.6.3, C.7.6.24)."""
    return tag in _PIXELS


def _read(
    file: BinaryIO, stop_when: StopWhen, *, longest_bytes: int | None = None, tags: list[BaseTag | int] | None = None
) -> tuple[FileDataset, BinaryIO]:
    """Read a file as pydicom does, but for the elements of group 0002 that its dataset holds; tags: None for all.

    Returns the dataset, and the file that it was read from: a deflated one is inflated piece by piece.
    """
    start = file.tell()
    meta = read_meta(file)
    syntax = attributes.text(meta, "TransferSyntaxUID")
    if syntax == DeflatedExplicitVRLittleEndian:
        file = _CountedReads(Inflated(file))
        dataset = _read_behind(file, meta, stop_when, longest_bytes=longest_bytes, tags=tags)
        dataset.fileobj_type = _open_inflated  # for the long values that are read on first access
    elif syntax and _begins_with_meta(file, syntax):
        dataset = _read_behind(file, meta, stop_when, longest_bytes=longest_bytes, tags=tags)
    else:
        file.seek(start)
        dataset = read_partial(
            file, stop_when=_bounded(stop_when, file), defer_size=longest_bytes, force=True, specific_tags=tags
        )
    for tag in tuple(dataset.keys()):
        if tag.group == 2:
            del dataset[tag]
    return dataset, file


def _open_inflated(name: str, _mode: str) -> BinaryIO:
    """Open the dataset of a deflated file, as pydicom opens the file of another to read a long value."""
    file = open(name, "rb")  # noqa: SIM115  # pydicom closes what it gets
    read_meta(file)
    return io.BufferedReader(Inflated(file, is_closed_too=True))


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
            stop_when=_bounded(stop_when, file),
            defer_size=longest_bytes,
            specific_tags=tags,
        )
    found = FileDataset(file, dataset, None, meta, syntax.is_implicit_VR, syntax.is_little_endian)
    found.set_original_encoding(syntax.is_implicit_VR, syntax.is_little_endian)
    return found


def _begins_with_meta(file: BinaryIO, syntax: str) -> bool:
    """Whether a dataset begins with an element of group 0002, which pydicom would take for file meta information.

    Leaves the position where it was. An explicit element before an implicit dataset is file meta information after
    all, beyond a group length that is too small.
    """
    start = file.read(6)
    file.seek(-len(start), io.SEEK_CUR)
    if syntax == ImplicitVRLittleEndian and start[4:].isupper():
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
    ends = [each.value_tell + each.length for each in meta.values() if isinstance(each, RawDataElement)]
    is_whole = max(ends, default=0) == length and bool(attributes.text(meta, "TransferSyntaxUID"))
    return FileMetaDataset(meta) if is_whole else None


def _is_no_meta(tag: BaseTag, _vr: str | None, _length: int) -> bool:
    return tag.group != 2


def _never(_tag: BaseTag, _vr: str | None, _length: int) -> bool:
    return False


def _bounded(stop_when: StopWhen, file: object = None) -> StopWhen:
    """Count the elements of a dataset while it is read; raises ValueError above `_MOST_ELEMENTS`.

    file: the file that it is read from, if that is a `_WithoutNul`
    """
    left = _MOST_ELEMENTS

    def look(tag: BaseTag, vr: str | None, length: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"the header has more than {_MOST_ELEMENTS} elements")
        if tag == _CHARACTER_SET and isinstance(file, _WithoutNul):
            file.charset_bytes = length
        return stop_when(tag, vr, length)

    return look


class _WithoutNul:
    """A file that may come to Specific Character Set, of which a NUL is read as a blank.

    pydicom 3.0.2 reads no dataset with a NUL in it, as a number has.

    charset_bytes: the length of its value, if that is the next to be read; it may be skipped
    """

    charset_bytes = 0

    def _text(self, part: bytes) -> bytes:
        is_charset, self.charset_bytes = len(part) == self.charset_bytes, 0
        return part.replace(b"\0", b" ") if is_charset else part


class _CountedReads(_WithoutNul, io.BufferedReader):
    """A file that allows `_MOST_READS` reads; for pydicom it is like a file that `open` returned."""

    _left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes. Raises ValueError after `_MOST_READS` reads."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("the header has too many elements")
        return self._text(super().read(size))


class _LimitedFile(_WithoutNul):
    """The methods of a file that pydicom's parser uses; reads of more than 16 MiB in all raise ValueError.

    pydicom skips a value of known length, and loads values of unknown length and nested sequences to find their ends.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.name = file.seek, file.tell, str(getattr(file, "name", ""))
        self._read, self._left = file.read, _MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes. Raises ValueError if the total would exceed 16 MiB, or if no size is given."""
        if not 0 <= size <= self._left:
            raise ValueError("the header exceeds 16 MiB")
        part = self._text(self._read(size))
        self._left -= len(part)
        return part
