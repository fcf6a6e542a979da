"""What a header says of its pixels, and whether it may be believed: decided before anything is allocated.

The limits stand here, once, for the decision about a film (`routing`) and for its decoding (`imaging`).
"""

from __future__ import annotations

from pydicom.dataset import Dataset

from node import attributes
from node.domain import Reason

MIN_SIDE = 64
"""Smaller films are thumbnails or phantoms of one pixel: the network's input has 224 pixels a side."""

MAX_PIXELS = 64 * 1024 * 1024
"""Above 8192 x 8192 no chest film is sold; a header that says so is damaged or hostile."""

_GRAY = ("MONOCHROME1", "MONOCHROME2")
_JPEG_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7))


def reason_against(dataset: Dataset) -> Reason | None:
    """Say why a header's pixels are not one gray film of a usable size; None when they are.

    Several frames are a run, a tomosynthesis or a stack, hence another kind of examination: `modality`. A size that no
    film has is `undecodable`. The value of PixelData is not looked at, only whether there is one.
    """
    rows, columns = attributes.whole(dataset, "Rows"), attributes.whole(dataset, "Columns")
    if "PixelData" not in dataset or not rows or not columns:
        return Reason.NO_PIXELS
    if (attributes.whole(dataset, "NumberOfFrames") or 1) > 1:
        return Reason.MODALITY
    photometric = attributes.text(dataset, "PhotometricInterpretation").upper()
    if (attributes.whole(dataset, "SamplesPerPixel") or 1) > 1 or (photometric and photometric not in _GRAY):
        return Reason.COLOR
    if min(rows, columns) < MIN_SIDE:
        return Reason.TOO_SMALL
    if rows * columns > MAX_PIXELS:
        return Reason.UNDECODABLE
    return None


def coded_size(frame: bytes) -> tuple[int, int] | None:
    """Read columns and rows out of a JPEG, JPEG-LS or JPEG 2000 codestream of one gray component; None for any other.

    A decoder allocates what the codestream says, not what the header says (ISO 10918-1 B.2.2, 14495-1 C.2.2,
    15444-1 A.5.1): a codestream that disagrees with its header is not decoded at all.
    """
    start = _codestream(frame)
    if frame[start : start + 4] == b"\xff\x4f\xff\x51" and len(frame) >= start + 42:
        x_size, y_size, x_offset, y_offset = (
            int.from_bytes(frame[start + at : start + at + 4], "big") for at in (8, 12, 16, 20)
        )
        is_gray = int.from_bytes(frame[start + 40 : start + 42], "big") == 1
        return (x_size - x_offset, y_size - y_offset) if is_gray else None
    return _jpeg_size(frame) if frame[:2] == b"\xff\xd8" else None


def _codestream(frame: bytes) -> int:
    """Say where a JPEG 2000 codestream begins: at once, or behind boxes, which PS3.5 A.4.4 forbids."""
    at = 0
    if frame[:8] != b"\0\0\0\x0cjP  ":
        return at
    while at + 8 <= len(frame) and frame[at + 4 : at + 8] != b"jp2c":
        length = int.from_bytes(frame[at : at + 4], "big")
        at += length if length >= 8 else len(frame)  # an extended length, or to the end: no header needs that
    return at + 8


def _jpeg_size(frame: bytes) -> tuple[int, int] | None:
    """Walk the marker segments of a JPEG or JPEG-LS codestream up to its frame header."""
    at = 2
    while at + 10 <= len(frame) and frame[at] == 0xFF:
        marker = frame[at + 1]
        if marker in _JPEG_FRAMES:
            size = int.from_bytes(frame[at + 7 : at + 9], "big"), int.from_bytes(frame[at + 5 : at + 7], "big")
            return size if frame[at + 9] == 1 else None
        at += 1 if marker == 0xFF else 2 + int.from_bytes(frame[at + 2 : at + 4], "big")
    return None


def rle_length(frame: bytes) -> int:
    """Count the bytes that the first segment of an RLE frame unpacks to, which are its pixels (PS3.5 G.3, G.4)."""
    first, second = (int.from_bytes(frame[at : at + 4], "little") for at in (4, 8))
    segment = frame[first : second or len(frame)]
    at = length = 0
    while at < len(segment):
        control = segment[at]
        if control < 128:
            length += min(control + 1, len(segment) - at - 1)  # a last byte of padding looks like a literal of nothing
            at += control + 2
        elif control > 128:
            length += 257 - control
            at += 2
        else:
            at += 1
    return length
