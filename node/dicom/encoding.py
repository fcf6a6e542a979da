"""Encode datasets in explicit VR, little endian (PS3.5 7.1, 7.5), five times as fast as pydicom 3.0.2.

A structured report has some 1,000 nested items. pydicom looks for ambiguous value representations in each of them again
for every level above it, and opens a buffer for every element. Here texts and sequences are encoded directly; pydicom
encodes every other element, and nothing is looked up: each element needs a definite value representation. The bytes are
those of pydicom, which a test holds true.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final, cast

from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_data_element
from pydicom.multival import MultiValue
from pydicom.sequence import Sequence
from pydicom.tag import BaseTag

_ENCODINGS: Final = ["utf_8"]
_PADDING: Final = {
    "CS": b" ",
    "DS": b" ",
    "DT": b" ",
    "LO": b" ",
    "LT": b" ",
    "PN": b" ",
    "SH": b" ",
    "ST": b" ",
    "UC": b" ",
    "UI": b"\0",
    "UT": b" ",
}
_NUMBERS: Final = {"FD": "d", "FL": "f", "SL": "i", "SS": "h", "UL": "I", "US": "H"}
_LONG: Final = frozenset(("OB", "OD", "OF", "OL", "OV", "OW", "SQ", "SV", "UC", "UN", "UR", "UT", "UV"))
"""Value representations whose length has 32 bits (PS3.5 7.1.2)."""

_UNDEFINED: Final = 0xFFFFFFFF
_MOST_SHORT: Final = 0xFFFF
_ITEM: Final = struct.Struct("<HHI")
_SHORT_HEADER: Final = struct.Struct("<HH2sH")
_LONG_HEADER: Final = struct.Struct("<HH2sHI")


def elements(dataset: Dataset) -> Iterator[tuple[BaseTag, bytes]]:
    """Yield tag and encoding of each element in the order of the tags; texts are encoded as UTF-8 (ISO_IR 192)."""
    for tag in sorted(dataset.keys()):
        yield tag, _encode(dataset.get_item(tag))


def as_raw(tag: BaseTag, encoded: bytes) -> RawDataElement:
    """Return an encoded element as one that is parsed when it is looked at, and written as it stands."""
    vr = encoded[4:6].decode()
    value = encoded[(_LONG_HEADER if vr in _LONG else _SHORT_HEADER).size :]
    return RawDataElement(tag, vr, len(value), value, 0, False, True)


def text(tag: BaseTag, vr: str, value: str) -> bytes:
    """Encode an element of one text."""
    encoded = value.encode()
    return _with_header(tag, vr, encoded + _PADDING[vr] if len(encoded) % 2 else encoded)


def numbers(tag: BaseTag, vr: str, values: Collection[float]) -> bytes:
    """Encode an element of binary numbers."""
    return _with_header(tag, vr, struct.pack(f"<{len(values)}{_NUMBERS[vr]}", *values))


def sequence(tag: BaseTag, items: Iterable[bytes]) -> bytes:
    """Encode a sequence of encoded items, all with explicit lengths."""
    return _with_header(tag, "SQ", b"".join(map(_delimited, items)))


def _encode(element: DataElement | RawDataElement) -> bytes:
    value = element.value
    if isinstance(element, RawDataElement):
        if isinstance(value, bytes) and element.length != _UNDEFINED and element.VR:
            return _with_header(element.tag, element.VR, value)
    elif isinstance(value, Sequence) and not element.is_undefined_length:
        return sequence(element.tag, map(_item, value))
    elif isinstance(value, str) and element.VR in _PADDING:
        return text(element.tag, element.VR, value)
    elif value is not None and element.VR in _NUMBERS:
        several = value if isinstance(value, list | MultiValue) else (value,)
        return numbers(element.tag, element.VR, cast(Collection[float], several))
    buffer = DicomBytesIO()
    buffer.is_implicit_VR, buffer.is_little_endian = False, True
    write_data_element(buffer, element, _ENCODINGS)
    return buffer.getvalue()


def _item(dataset: Dataset) -> bytes:
    return b"".join(_encode(dataset.get_item(tag)) for tag in sorted(dataset.keys()))


def _delimited(content: bytes) -> bytes:
    return _ITEM.pack(0xFFFE, 0xE000, len(content)) + content


def _with_header(tag: BaseTag, vr: str, value: bytes) -> bytes:
    if vr in _LONG:
        return _LONG_HEADER.pack(tag >> 16, tag & 0xFFFF, vr.encode(), 0, len(value)) + value
    return _SHORT_HEADER.pack(tag >> 16, tag & 0xFFFF, vr.encode(), len(value)) + value
