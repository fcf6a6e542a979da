"""The header of a foreign object, read without its bulk: what is not asked for is skipped, not loaded."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import BinaryIO, Final, cast

from pydicom.filereader import read_dataset
from pydicom.tag import Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian

from node import attributes
from node.errors import Refused

_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID = Tag("SOPInstanceUID"), Tag("StudyInstanceUID")
_INFLATED_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 16 * 1024 * 1024


def identify(file: BinaryIO, syntax: UID) -> tuple[str, str]:
    """Read Study and SOP Instance UID of an encoded dataset; nothing behind them is looked at or inflated.

    Raises Refused when they cannot be read.
    """
    try:
        if syntax == DeflatedExplicitVRLittleEndian:
            part = file.read(_INFLATED_BYTES)
            file = BytesIO(zlib.decompressobj(-zlib.MAX_WBITS).decompress(part, _INFLATED_BYTES))
        with attributes.quiet():
            dataset = read_dataset(
                frugal(file),
                is_implicit_VR=syntax.is_implicit_VR,
                is_little_endian=syntax.is_little_endian,
                stop_when=lambda tag, _vr, _length: tag > _STUDY_INSTANCE_UID,
                specific_tags=[_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID],
            )
            return str(dataset.StudyInstanceUID), str(dataset.SOPInstanceUID)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the object has no readable Study and SOP Instance UID; correct it at the sender") from error


def frugal(file: BinaryIO) -> BinaryIO:
    """The same file for a parser, which may skip what it likes but read 16 MiB in all; then it meets a ValueError.

    pydicom skips a value whose length is given and loads the others, sequences within sequences, to find their ends.
    """
    return cast(BinaryIO, _Frugal(file))


class _Frugal:
    """As much of a file as pydicom's parser uses."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.name = file.seek, file.tell, getattr(file, "name", "")
        self._read, self._left = file.read, _MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes. Raises ValueError before that is more than a header has."""
        if not 0 <= size <= self._left:
            raise ValueError("a header is longer than any")
        part = self._read(size)
        self._left -= len(part)
        return part
