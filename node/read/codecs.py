"""Decode one compressed frame that was taken out of its object; what the codestream says of itself is checked before.

A decoder allocates memory by the codestream, so its size is compared with the header first. Foreign code that meets
damaged bytes may end its process or never come back: call this only in a decoder process (`decoder_processes`).
"""

from __future__ import annotations

import io
from typing import Final

import imagecodecs
import numpy as np
import numpy.typing as npt
from PIL import Image
from pydicom.uid import UID, JPEG2000TransferSyntaxes, JPEGLSTransferSyntaxes, JPEGTransferSyntaxes, RLELossless

from node.dicom.film_header import PixelFormat
from node.domain import Reason
from node.errors import Undecodable
from node.read import pixel_format

Cells = npt.NDArray[np.integer]
"""[row, column], with every bit that is stored."""

_RLE_HEADER_BYTES: Final = 64
_FILLERS: Final = (b"\x00", b"\x55", b"\xaa")
_TRIED_BYTES: Final = 8


def decode(frame: bytes, syntax: UID, pixels: PixelFormat) -> Cells:
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
    if pixel_format.end_of_scan(frame) is None:  # libjpeg fills what is missing with one gray and reports no error
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
    """Say whether other bytes give another picture; None if libjpeg refuses them, which says nothing of the film."""
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
