"""Take the pixels of a film out of its file and decode them, in a decoder process (`decoder_processes`).

The frame is taken out once, checked, and exactly these bytes are decoded: no offset table leads to others. Its length
is bounded before it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.pixels.utils import pixel_array
from pydicom.uid import UID, ExplicitVRBigEndian, RLELossless

from node.dicom import attributes, header
from node.dicom.film_header import PixelFormat
from node.dicom.header import PixelValue
from node.domain import Reason
from node.errors import Undecodable
from node.read import codecs, pixel_format
from node.read.codecs import Cells

_LONG_BYTES: Final = 4096
_BLOCK_BYTES: Final = 512
_ITEM: Final = b"\xfe\xff\x00\xe0"
_DELIMITER: Final = b"\xfe\xff\xdd\xe0"
_MORE_BYTES: Final = 2**20
"""What a compressed film may have beside its pixels, such as comments of the coder."""


class StoredPixels(NamedTuple):
    """The decoded pixels of a film.

    is_longer: whether bytes follow them that belong to none
    depth: what their codestream says of its values; None where it says nothing
    """

    cells: Cells
    is_longer: bool
    depth: pixel_format.CodedDepth | None


def decode(path: Path, syntax: UID, pixels: PixelFormat) -> StoredPixels:
    """Decode the pixels of a film.

    syntax, pixels: of its header, which `pixel_format.reason_against` has nothing against
    Raises Undecodable, OSError for an error of the disk, and any error of a decoder.
    """
    with attributes.quiet(), header.open_pixels(path, longest_bytes=_LONG_BYTES) as (dataset, value):
        if value is None or value.length == 0:
            raise _cut_off()
        if not syntax.is_encapsulated:
            return _uncompressed(dataset, value, syntax, pixels)
        encapsulated = _encapsulated(value, syntax, most_bytes=2 * _raw_bytes(pixels) + _MORE_BYTES)
    frame = next(generate_frames(encapsulated, number_of_frames=1))
    cells = codecs.decode(frame, syntax, pixels)
    return StoredPixels(cells=cells, is_longer=False, depth=pixel_format.coded_depth(frame))


def _raw_bytes(pixels: PixelFormat) -> int:
    return ((pixels.rows or 0) * (pixels.columns or 0) * (pixels.bits_allocated or 0) + 7) // 8


def _uncompressed(dataset: Dataset, value: PixelValue, syntax: UID, pixels: PixelFormat) -> StoredPixels:
    if value.length is None:
        raise _cut_off()
    is_longer = _is_longer(value.length, pixels)
    content = _read_whole(value.file, value.length, most_bytes=value.length)
    rows, columns, allocated = pixels.rows or 0, pixels.columns or 0, pixels.bits_allocated
    if allocated in (8, 16) and syntax != ExplicitVRBigEndian:
        kind = "<i" if pixels.pixel_representation == 1 else "<u"
        plain = np.frombuffer(content, dtype=np.dtype(f"{kind}{allocated // 8}"), count=rows * columns)
        return StoredPixels(cells=plain.reshape(rows, columns), is_longer=is_longer, depth=None)
    dataset.PixelData = content
    dataset.file_meta.TransferSyntaxUID = syntax
    cells = pixel_array(dataset, index=0, raw=True, correct_unused_bits=False)
    return StoredPixels(cells=cells, is_longer=is_longer, depth=None)


def _is_longer(length: int, pixels: PixelFormat) -> bool:
    """Say whether bytes follow uncompressed pixels, more than the one that makes their number even (PS3.5 8.1.1).

    Raises Undecodable if bytes are missing, or so many follow that the header may state a wrong size: whole rows or
    columns, or more than a sixteenth of the picture.
    """
    expected = _raw_bytes(pixels)
    more = length - expected - expected % 2
    if more <= 0 and length >= expected:
        return False
    lines = [(side or 0) * (pixels.bits_allocated or 0) // 8 for side in (pixels.rows, pixels.columns)]
    is_other_size = any(count % line == 0 for line in lines for count in (more, more + expected % 2))
    if more < 0 or is_other_size or more > max(_BLOCK_BYTES, expected // 16):
        raise Undecodable(Reason.UNDECODABLE, f"{length} bytes of pixel data, the header says {expected}")
    return True


def _encapsulated(value: PixelValue, syntax: UID, *, most_bytes: int) -> bytes:
    """Read encapsulated pixels (PS3.5 A.4). Raises Undecodable if they are cut off, or too long.

    Pixels without a delimiter at their end are whole if their last item is, and if a codestream of JPEG, JPEG-LS or
    JPEG 2000 has its end marker.
    """
    if value.length is not None:
        return _read_whole(value.file, value.length, most_bytes=most_bytes)
    parts, left = list[bytes](), most_bytes
    while (start := value.file.read(8))[:4] == _ITEM and len(start) == 8:
        item = _read_whole(value.file, int.from_bytes(start[4:], "little"), most_bytes=left)
        left -= len(item)
        parts += start, item
    codestream = b"".join(parts[3::2])  # the first item is the offset table
    if start[:4] != _DELIMITER and syntax != RLELossless and not pixel_format.is_ended(codestream):
        raise _cut_off()
    return b"".join(parts)


def _read_whole(file: BinaryIO, length: int, *, most_bytes: int) -> bytes:
    """Read bytes. Raises Undecodable if there are fewer, or if there would be more than `most_bytes`."""
    if length > most_bytes:
        raise Undecodable(Reason.UNDECODABLE, "the compressed pixels are much longer than uncompressed ones")
    value = file.read(length)
    if len(value) < length:
        raise _cut_off()
    return value


def _cut_off() -> Undecodable:
    return Undecodable(Reason.UNDECODABLE, "the pixel data is empty or cut off")
