"""Check what a header declares about its pixels, before any memory is allocated for them.

The limits are defined here once, for the decision about a film (`routing`) and for its decoding (`decoding`).
"""

from __future__ import annotations

from typing import NamedTuple

from node.dicom.film_header import PixelFormat
from node.domain import Reason

MIN_SIDE = 64
"""In pixels. Smaller pictures are thumbnails or test objects: the network's input has 224 pixels a side."""

MAX_PIXELS = 64 * 1024 * 1024
"""8192 x 8192. No detector makes a larger chest film; a header that declares more is damaged or hostile."""

_GRAY = ("MONOCHROME1", "MONOCHROME2")
_JPEG_2000 = b"\xff\x4f\xff\x51"
_JPEG_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7))

_START_OF_SCAN = 0xDA
_END, _PADDING, _FILL = b"\xff\xd9", b"\0\xff", b"\xff"
_LOSSLESS_FRAMES = frozenset((0xC3, 0xC7, 0xCB, 0xCF))


class Objection(NamedTuple):
    """Why an object is not read, and the keyword of the attribute that gave the reason."""

    reason: Reason
    keyword: str


def objection(pixels: PixelFormat) -> Objection | None:
    """Return why a header's pixels are not one gray film of a usable size, with the attribute; None when they are.

    Several frames are a cine run, a tomosynthesis or a stack, which are other kinds of examination: `modality`. More
    than `MAX_PIXELS` is `undecodable`.
    """
    rows, columns = pixels.rows, pixels.columns
    if not pixels.has_pixel_data:
        return Objection(Reason.NO_PIXELS, "PixelData")
    if not rows or not columns:
        return Objection(Reason.NO_PIXELS, "Columns" if rows else "Rows")
    if (pixels.number_of_frames or 1) > 1:
        return Objection(Reason.MODALITY, "NumberOfFrames")
    if (pixels.samples_per_pixel or 1) > 1:
        return Objection(Reason.COLOR, "SamplesPerPixel")
    photometric = pixels.photometric_interpretation.upper()
    if photometric and photometric not in _GRAY:
        return Objection(Reason.COLOR, "PhotometricInterpretation")
    shorter = "Rows" if rows < columns else "Columns"
    if min(rows, columns) < MIN_SIDE:
        return Objection(Reason.TOO_SMALL, shorter)
    if rows * columns > MAX_PIXELS:
        return Objection(Reason.UNDECODABLE, "Columns" if shorter == "Rows" else "Rows")
    return None


def coded_size(frame: bytes) -> tuple[int, int] | None:
    """Read columns and rows from a JPEG, JPEG-LS or JPEG 2000 codestream with one gray component; None for any other.

    A decoder allocates memory by the codestream, not by the DICOM header (ISO 10918-1 B.2.2, 14495-1 C.2.2,
    15444-1 A.5.1): a codestream that disagrees with the header is not decoded.
    """
    start = _codestream(frame)
    if frame[start : start + 4] == _JPEG_2000 and len(frame) >= start + 42:
        x_size, y_size, x_offset, y_offset = (
            int.from_bytes(frame[start + at : start + at + 4], "big") for at in (8, 12, 16, 20)
        )
        is_gray = int.from_bytes(frame[start + 40 : start + 42], "big") == 1
        return (x_size - x_offset, y_size - y_offset) if is_gray else None
    return _jpeg_size(frame) if frame[:2] == b"\xff\xd8" else None


class CodedDepth(NamedTuple):
    """The depth of the values in a codestream."""

    bits: int
    is_signed: bool


def coded_depth(frame: bytes) -> CodedDepth | None:
    """Read depth and sign of the first component of a JPEG 2000 codestream (ISO 15444-1 A.5.1); None for any other.

    Codestreams of JPEG, JPEG-LS and RLE have no sign.
    """
    start = _codestream(frame)
    if frame[start : start + 4] != _JPEG_2000 or len(frame) < start + 43:
        return None
    depth = frame[start + 42]
    return CodedDepth(bits=(depth & 0x7F) + 1, is_signed=depth >= 0x80)


def _codestream(frame: bytes) -> int:
    """Return where a JPEG 2000 codestream begins: at 0, or after the boxes of a JP2 file, which PS3.5 A.4.4 forbids."""
    at = 0
    if frame[:8] != b"\0\0\0\x0cjP  ":
        return at
    while at + 8 <= len(frame) and frame[at + 4 : at + 8] != b"jp2c":
        length = int.from_bytes(frame[at : at + 4], "big")
        at += length if length >= 8 else len(frame)  # 0 "to the end", 1 "extended": no header needs them
    return at + 8


def jpeg_bits(frame: bytes) -> int | None:
    """Read the bits of a sample from the frame header of a JPEG or JPEG-LS codestream; None if there is none."""
    at = _jpeg_frame(frame)
    return None if at is None else frame[at + 4]


def is_lossless_jpeg(frame: bytes) -> bool:
    """Return whether the frame header of a JPEG codestream is one of lossless coding (ISO 10918-1 B.1.1.3)."""
    at = _jpeg_frame(frame)
    return at is not None and frame[at + 1] in _LOSSLESS_FRAMES


def start_of_scan(frame: bytes) -> int | None:
    """Return where the first scan of a JPEG begins; None if other than marker segments lies before it (B.1.1.2)."""
    at = 2
    while at + 4 <= len(frame) and frame[at] == 0xFF:
        if frame[at + 1] == _START_OF_SCAN:
            return at
        at += 1 if frame[at + 1] == 0xFF else 2 + int.from_bytes(frame[at + 2 : at + 4], "big")
    return None


def end_of_scan(frame: bytes) -> int | None:
    """Return where the scans of a JPEG end; None without an end marker.

    Fill bytes may stand before the marker (ISO 10918-1 B.1.1.2). Bytes after it belong to no scan.
    """
    end = frame.find(_END, start_of_scan(frame) or 0)
    return None if end < 0 else len(frame[:end].rstrip(_FILL))


def is_ended(frame: bytes) -> bool:
    """Return whether a codestream of JPEG, JPEG-LS or JPEG 2000 has its end marker, behind which it may be padded."""
    return frame.rstrip(_PADDING).endswith(_END)


def _jpeg_size(frame: bytes) -> tuple[int, int] | None:
    """Read columns and rows from the frame header of a JPEG or JPEG-LS codestream; None if it is not one component."""
    at = _jpeg_frame(frame)
    if at is None or frame[at + 9] != 1:
        return None
    return int.from_bytes(frame[at + 7 : at + 9], "big"), int.from_bytes(frame[at + 5 : at + 7], "big")


def _jpeg_frame(frame: bytes) -> int | None:
    """Return where the frame header of a JPEG or JPEG-LS codestream begins (ISO 10918-1 B.2.2); None without one."""
    at = 2
    while at + 10 <= len(frame) and frame[at] == 0xFF:
        marker = frame[at + 1]
        if marker in _JPEG_FRAMES:
            return at
        at += 1 if marker == 0xFF else 2 + int.from_bytes(frame[at + 2 : at + 4], "big")
    return None
