"""Overlay planes of a film, such as a side marker (PS3.3 C.9.2), and its shutter, which hides parts of it.

The display shutter is that of PS3.3 C.7.6.11. A plane or shape that contradicts itself is left out, for
viewers would draw it each in another way, or not at all; so is a shape that would hide the whole film.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
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
_KEYWORDS: Final = {
    "RECTANGULAR": (
        "ShutterLeftVerticalEdge",
        "ShutterRightVerticalEdge",
        "ShutterUpperHorizontalEdge",
        "ShutterLowerHorizontalEdge",
    ),
    "CIRCULAR": ("CenterOfCircularShutter", "RadiusOfCircularShutter"),
    "POLYGONAL": ("VerticesOfThePolygonalShutter",),
}
_FARTHEST: Final = 2**20
"""Of any number of a shape: OpenCV draws more slowly the farther a shape reaches."""
_BLACK, _WHITE = 0, 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPlane:
    """One plane that can be drawn; of several frames the first, for a film has one.

    origin: row and column of its first bit on the film, counted from 1
    is_region: whether its bits are a region of interest instead of graphics
    packed: its bits row by row, the first in the lowest bit of a byte (PS3.5 8.1.2); None: they are in the pixel cells
    position: number of its bit in a pixel cell
    """

    group: int
    rows: int
    columns: int
    origin: tuple[int, int]
    is_region: bool
    packed: bytes | None
    position: int

    def bits(self, cells: npt.NDArray[np.integer]) -> Mask:
        """Return the bits: [row, column] of the plane; cells: the pixel cells of its film."""
        if self.packed is None:
            return (cells >> self.position & 1).astype(bool)
        packed = np.frombuffer(self.packed, dtype=np.uint8)
        bits = np.unpackbits(packed, count=self.rows * self.columns, bitorder="little")
        return bits.reshape(self.rows, self.columns).astype(bool)


def groups_of(header: Dataset) -> tuple[int, ...]:
    """Return the groups of overlay planes that a header has, with any content."""
    present = {tag >> 16 for tag in header.keys()}  # noqa: SIM118  # iterating a Dataset converts its elements
    return tuple(group for group in _GROUPS if group in present)


def find_planes(header: Dataset) -> tuple[OverlayPlane, ...]:
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
    """Return whether a bit of the pixel cells is kept and is none of the gray value; RLE alone keeps it compressed."""
    film = parse_header(header)
    pixels, syntax = film.pixels, UID(film.transfer_syntax_uid)
    if syntax.is_encapsulated and syntax != RLELossless:
        return False
    bits, high = pixels.bits_stored, pixels.high_bit
    if allocated is None or allocated != pixels.bits_allocated or position is None or bits is None or high is None:
        return False
    return position in range(allocated) and position not in range(high + 1 - bits, high + 1)


def drawn(planes: Sequence[OverlayPlane], cells: npt.NDArray[np.integer]) -> Mask:
    """Return the mask of planes on a film. A region of interest is drawn as its outline, or it would hide the film.

    cells: its pixel cells with all their bits
    """
    covered = np.zeros(cells.shape, dtype=bool)
    for plane in planes:
        bits = plane.bits(cells)
        if plane.is_region:
            inner = cv2.erode(
                bits.astype(np.uint8), np.ones((3, 3), np.uint8), borderType=cv2.BORDER_CONSTANT, borderValue=0
            )
            bits &= ~inner.astype(bool)  # those whose eight neighbors are all set are no outline
        down, across = (start - 1 for start in plane.origin)
        part = covered[max(down, 0) : max(down + plane.rows, 0), max(across, 0) : max(across + plane.columns, 0)]
        part |= bits[max(-down, 0) :, max(-across, 0) :][: part.shape[0], : part.shape[1]]
    return covered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisplayShutter:
    """A shutter, which hides parts of a film.

    shapes: the numbers of each shape by keyword, as in the header; a pixel that any of them hides is hidden
    hidden: [row, column] of the stored film
    value: the gray of hidden parts, 0 black to 65535 white (P-value)
    """

    shapes: Mapping[str, Mapping[str, Sequence[int]]]
    hidden: Mask
    value: int


def find_shutter(header: Dataset) -> DisplayShutter | None:
    """Return the shutter of a film; None if it has none that can be used."""
    names = [str(name).strip().upper() for name in attributes.values(header, "ShutterShape")]
    rows, columns = attributes.whole(header, "Rows") or 0, attributes.whole(header, "Columns") or 0
    if not names or min(rows, columns) < 1 or rows * columns > MOST_PIXELS:
        return None
    visible, shapes = np.ones((rows, columns), dtype=bool), dict[str, Mapping[str, Sequence[int]]]()
    for name in _KEYWORDS:
        if name in names and (numbers := _numbers(header, name)):
            part = _inside(name, [*numbers.values()], visible.shape)
            if part is not None and part.any():
                shapes[name] = numbers
                visible &= part
    if not visible.any() or not shapes:
        return None
    value = attributes.whole(header, "ShutterPresentationValue")
    if value is None or not 0 <= value <= _WHITE:
        value = _BLACK
    return DisplayShutter(shapes=shapes, hidden=~visible, value=value)


def _numbers(header: Dataset, shape: str) -> dict[str, Sequence[int]]:
    """Return the numbers of a shape by keyword; empty if one is absent, is no whole number, or is out of reach."""
    found: dict[str, Sequence[int]] = {keyword: attributes.wholes(header, keyword) for keyword in _KEYWORDS[shape]}
    farthest = max((abs(number) for several in found.values() for number in several), default=0)
    return found if all(found.values()) and farthest <= _FARTHEST else {}


def _inside(shape: str, numbers: list[Sequence[int]], size: tuple[int, int]) -> Mask | None:
    """Return the pixels that a shape leaves visible, with those on its edge; None if it contradicts itself.

    numbers: as in the header, row before column, both counted from 1
    """
    picture: npt.NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
    counts = [len(several) for several in numbers]
    if shape == "RECTANGULAR" and counts == [1, 1, 1, 1]:
        left, right, upper, lower = (several[0] for several in numbers)
        if left > right or upper > lower:
            return None
        cv2.rectangle(picture, (left - 1, upper - 1), (right - 1, lower - 1), 1, cv2.FILLED)
    elif shape == "CIRCULAR" and counts == [2, 1] and numbers[1][0] > 0:
        [row, column], [radius] = numbers
        cv2.circle(picture, (column - 1, row - 1), radius, 1, cv2.FILLED)
    elif shape == "POLYGONAL" and counts[0] >= 6 and counts[0] % 2 == 0:
        points = np.array(numbers[0], dtype=np.int32).reshape(-1, 2)[:, ::-1] - 1
        cv2.fillPoly(picture, [points], 1)
    else:
        return None
    return picture.astype(bool)
