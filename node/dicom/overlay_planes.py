"""The overlay planes of a film: graphics that a viewer draws over it, such as a side marker (PS3.3 C.9.2).

A plane that contradicts itself is left out, for viewers would draw it each in another way, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import UID, RLELossless

from node.dicom import attributes
from node.dicom.film_header import parse_header

Mask = npt.NDArray[np.bool_]
"""[row, column] of the stored film."""

MOST_PIXELS: Final = 8192 * 8192
"""Of a plane; no film is larger (`pixel_format.MAX_PIXELS`), and each pixel takes a byte when it is drawn."""

_GROUPS: Final = range(0x6000, 0x6020, 2)
_ROWS, _COLUMNS, _TYPE, _ORIGIN, _FIRST_FRAME, _ALLOCATED, _POSITION, _DATA = (
    *(0x0010, 0x0011, 0x0040, 0x0050),
    *(0x0051, 0x0100, 0x0102, 0x3000),
)
"""The elements of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPlane:
    """One plane that can be drawn; of several frames the first, for a film has one.

    origin: row and column of its first bit on the film, counted from 1
    is_region: whether its bits are a region of interest instead of graphics
    packed: its bits row by row, the first in the lowest bit of a byte (PS3.5 8.1.2); None: they are in the pixel cells
    position: of its bit in a pixel cell
    """

    group: int
    rows: int
    columns: int
    origin: tuple[int, int]
    is_region: bool
    packed: bytes | None
    position: int

    def bits(self) -> Mask:
        """Unpack the bits: [row, column] of the plane. Raises ValueError for a plane that lies in the pixel cells."""
        if self.packed is None:
            raise ValueError("the bits of this plane are in the pixel cells of its film")
        packed = np.frombuffer(self.packed, dtype=np.uint8)
        bits = np.unpackbits(packed, count=self.rows * self.columns, bitorder="little")
        return bits.reshape(self.rows, self.columns).astype(bool)


def groups_of(header: Dataset) -> tuple[int, ...]:
    """Return the groups of overlay planes that a header has, with any content."""
    present = {tag >> 16 for tag in header.keys()}  # noqa: SIM118  # iterating a Dataset converts its elements
    return tuple(group for group in _GROUPS if group in present)


def find(header: Dataset) -> tuple[OverlayPlane, ...]:
    """Return the planes of a film that can be drawn; its header needs no pixels."""
    return tuple(plane for group in groups_of(header) if (plane := _plane(header, group)) is not None)


def _plane(header: Dataset, group: int) -> OverlayPlane | None:
    rows, columns, first_frame, allocated, position = (
        attributes.whole(header, Tag(group, element))
        for element in (_ROWS, _COLUMNS, _FIRST_FRAME, _ALLOCATED, _POSITION)
    )
    if rows is None or columns is None or min(rows, columns) < 1 or rows * columns > MOST_PIXELS:
        return None
    is_whole = (rows, columns) == (attributes.whole(header, "Rows"), attributes.whole(header, "Columns"))
    packed = _packed(header, group, count=rows * columns)
    if packed is None:
        is_there = is_whole and _is_beside_gray(header, allocated=allocated, position=position)
    else:
        is_there = bool(packed) and allocated in (1, None)
    origin = attributes.wholes(header, Tag(group, _ORIGIN)) or ((1, 1) if is_whole else ())
    if not is_there or len(origin) != 2 or first_frame not in (1, None):
        return None
    return OverlayPlane(
        group=group,
        rows=rows,
        columns=columns,
        origin=(origin[0], origin[1]),
        is_region=attributes.text(header, Tag(group, _TYPE)).upper() == "R",
        packed=packed,
        position=position or 0,
    )


def _packed(header: Dataset, group: int, *, count: int) -> bytes | None:
    """Return the bytes of the first `count` bits in the order of little endian; b"" if they are too few."""
    tag = Tag(group, _DATA)
    data = next(iter(attributes.values(header, tag)), None)
    if not isinstance(data, bytes):
        return None if data is None else b""
    if header.original_encoding[1] is False and header[tag].VR == "OW":
        data = np.frombuffer(data[: len(data) // 2 * 2], dtype=">u2").astype("<u2").tobytes()
    length = (count + 7) // 8
    return data[:length] if len(data) >= length else b""


def _is_beside_gray(header: Dataset, *, allocated: int | None, position: int | None) -> bool:
    """Say whether a bit of the pixel cells is kept and is none of the gray value; RLE alone keeps it compressed."""
    film = parse_header(header)
    pixels, syntax = film.pixels, UID(film.transfer_syntax_uid)
    if syntax.is_encapsulated and syntax != RLELossless:
        return False
    bits, high = pixels.bits_stored, pixels.high_bit
    if allocated is None or allocated != pixels.bits_allocated or position is None or bits is None or high is None:
        return False
    return position in range(allocated) and position not in range(high + 1 - bits, high + 1)
