"""Take the pixels of a film out of its file and decode them, in a decoder process (`decoder_processes`).

The frame is taken out once, checked, and exactly these bytes are decoded: no offset table leads to others. Its length
is bounded before it is read. A decoder allocates memory by the codestream, so what that says of its size is compared
with the header first. Foreign code that meets damaged bytes may end its process or never come back.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import imagecodecs
import numpy as np
import numpy.typing as npt
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.pixels.utils import pixel_array
from pydicom.uid import (
    UID,
    ExplicitVRBigEndian,
    JPEG2000TransferSyntaxes,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
    RLELossless,
)

from node.dicom import attributes, header
from node.dicom.film_header import PixelFormat
from node.dicom.header import PixelValue
from node.domain import Reason
from node.errors import Undecodable
from node.read import pixel_format

_LONG_BYTES: Final = 4096
_BLOCK_BYTES: Final = 512
_ITEM: Final = b"\xfe\xff\x00\xe0"
_DELIMITER: Final = b"\xfe\xff\xdd\xe0"
_MORE_BYTES: Final = 2**20
"""Bytes that a compressed film may have beside its pixels, such as comments of the coder."""
Cells = npt.NDArray[np.integer]
"""[row, column], with every bit that is stored."""
_RLE_HEADER_BYTES: Final = 64
_FILLERS: Final = (b"\x00", b"\x55", b"\xaa")
_TRIED_BYTES: Final = 8


class StoredPixels(NamedTuple):
    """The decoded pixels of a film.

    is_longer: whether bytes follow them that belong to none
    depth: bits by the codestream; None if it has no such field
    """

    cells: Cells
    is_longer: bool
    depth: pixel_format.CodedDepth | None


def decode(path: Path, syntax: UID, pixels: PixelFormat) -> StoredPixels:
    """Decode the pixels of a film.

    syntax, pixels: those of its header, against which `pixel_format.objection` has nothing
    Raises Undecodable, OSError for an error of the disk, and any error of a decoder.
    """
    with attributes.quiet(), header.open_pixels(path, longest_bytes=_LONG_BYTES) as (dataset, value):
        if value is None or value.length == 0:
            raise _cut_off()
        if not syntax.is_encapsulated:
            return _uncompressed(dataset, value, syntax, pixels)
        encapsulated = _encapsulated(value, syntax, most_bytes=2 * _raw_bytes(pixels) + _MORE_BYTES)
    frame = next(generate_frames(encapsulated, number_of_frames=1))
    cells = decode_frame(frame, syntax, pixels)
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
    """Return whether bytes follow uncompressed pixels, more than the one that makes their number even (PS3.5 8.1.1).

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


def decode_frame(frame: bytes, syntax: UID, pixels: PixelFormat) -> Cells:
    """Decode a frame of one gray sample. Raises Undecodable, and any error of a decoder."""
    if syntax == RLELossless:
        return _rle(frame, pixels)
    if pixel_format.coded_size(frame) != (pixels.columns, pixels.rows):
        raise Undecodable(Reason.UNDECODABLE, "codestream and header differ in size")
    if syntax in JPEG2000TransferSyntaxes:
        decoded: Cells = imagecodecs.jpeg2k_decode(frame)
        return decoded
    if syntax in JPEGLSTransferSyntaxes:
        return _signed(imagecodecs.jpegls_decode(frame), frame, pixels)
    if syntax in JPEGTransferSyntaxes:
        return _signed(_jpeg(frame), frame, pixels)
    raise Undecodable(Reason.UNDECODABLE, "no decoder reads this transfer syntax")


def _jpeg(frame: bytes) -> Cells:
    """Decode JPEG. Raises Undecodable for one that is cut off."""
    if pixel_format.is_lossless_jpeg(frame):
        return _lossless_jpeg(frame)
    if pixel_format.jpeg_bits(frame) == 8:
        with Image.open(io.BytesIO(frame), formats=("JPEG",)) as image:
            return np.asarray(image)
    if pixel_format.end_of_scan(frame) is None:  # libjpeg fills missing rows with one gray and reports no error
        raise Undecodable(Reason.UNDECODABLE, "the codestream is cut off")
    decoded: Cells = imagecodecs.jpeg8_decode(frame)
    return decoded


def _lossless_jpeg(frame: bytes) -> Cells:
    """Decode lossless JPEG, and try whether the picture ends where its codestream does. Raises Undecodable.

    libjpeg reports no error for damaged bytes, and from there on every pixel is wrong. But then, nearly always, the
    picture needs more bytes than there are, or leaves some unused: so other bytes behind the end must change nothing,
    and other bytes before the end must change something.
    """
    if pixel_format.start_of_scan(frame) is None:
        raise Undecodable(Reason.UNDECODABLE, "the codestream has bytes that belong to no part of it")
    body = frame[: pixel_format.end_of_scan(frame)]
    decoded: Cells = imagecodecs.jpeg8_decode(frame)
    if any(_changes(decoded, body + filler * _TRIED_BYTES) is True for filler in _FILLERS):
        raise Undecodable(Reason.UNDECODABLE, "the codestream is cut off or damaged")
    if _changes(decoded, _with_other_end(body)) is False:
        raise Undecodable(Reason.UNDECODABLE, "the codestream is damaged")
    return decoded


def _with_other_end(body: bytes) -> bytes:
    """Change the last bytes of a scan, and make none of them a marker."""
    kept, last = body[:-_TRIED_BYTES], body[-_TRIED_BYTES:]
    if kept.endswith(b"\xff"):  # a zero is stuffed behind it (ISO 10918-1 B.1.1.5)
        kept, last = kept + last[:1], last[1:]
    return kept + bytes(value ^ (0x55 if value != 0xAA else 0x2A) for value in last)


def _changes(decoded: Cells, other: bytes) -> bool | None:
    """Return whether other bytes give another picture; None if libjpeg refuses them, which proves nothing."""
    try:
        return not np.array_equal(decoded, imagecodecs.jpeg8_decode(other))
    except imagecodecs.Jpeg8Error:
        return None


def _signed(decoded: Cells, frame: bytes, pixels: PixelFormat) -> Cells:
    """Give values the sign that only the header states: those codestreams have none."""
    bits = pixel_format.jpeg_bits(frame)
    if pixels.pixel_representation != 1 or bits is None:
        return decoded
    unused = decoded.dtype.itemsize * 8 - bits
    signed = decoded.view(np.dtype(f"i{decoded.dtype.itemsize}"))
    return signed if unused <= 0 else np.right_shift(np.left_shift(signed, unused), unused)


def _rle(frame: bytes, pixels: PixelFormat) -> Cells:
    """Unpack the segments of a frame: one for each byte of a pixel, the highest first (PS3.5 G.2, G.3)."""
    rows, columns, count = pixels.rows or 0, pixels.columns or 0, (pixels.bits_allocated or 0) // 8
    starts = [int.from_bytes(frame[at : at + 4], "little") for at in range(0, _RLE_HEADER_BYTES, 4)]
    if starts[0] != count or not 1 <= count <= 4 or sorted(starts[1 : count + 1]) != starts[1 : count + 1]:
        raise Undecodable(Reason.UNDECODABLE, "the segments of the pixels are not those of the header")
    cells = np.empty((rows * columns, count), dtype=np.uint8)
    for number, (start, end) in enumerate(zip(starts[1:], [*starts[2 : count + 1], len(frame)], strict=False)):
        segment = imagecodecs.packbits_decode(frame[start:end], out=bytearray(rows * columns + 1))
        # One byte too many may come of the zeros that fill up a segment.
        if len(segment) - rows * columns not in (0, 1):
            raise Undecodable(Reason.UNDECODABLE, "codestream and header differ in size")
        cells[:, count - 1 - number] = np.frombuffer(segment, dtype=np.uint8)[: rows * columns]
    return cells.view(np.dtype(f"<u{count}")).reshape(rows, columns)
