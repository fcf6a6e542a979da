"""The display shutter of a film: what a viewer hides of it (PS3.3 C.7.6.11, C.7.6.15).

A shape that contradicts itself, and one that would hide the whole film, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset

from node.dicom import attributes, overlay_planes
from node.dicom.overlay_planes import MOST_PIXELS, Mask, OverlayPlane

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
_BITMAP: Final = "BITMAP"
_FARTHEST: Final = 2**20
"""Of any number of a shape: OpenCV draws more slowly the farther a shape reaches."""
_BLACK, _WHITE = 0, 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisplayShutter:
    """What hides a part of a film.

    shapes: the numbers of each shape by keyword, as in the header; what any of them hides is hidden
    bitmap: the overlay plane whose bits hide the film, if there is no shape
    hidden: [row, column] of the stored film
    value: the gray of what is hidden, 0 black to 65535 white (P-value)
    """

    shapes: Mapping[str, Mapping[str, Sequence[int]]]
    bitmap: OverlayPlane | None
    hidden: Mask
    value: int


def find(header: Dataset) -> DisplayShutter | None:
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
    bitmap = _bitmap(header, visible.shape) if _BITMAP in names and not shapes else None
    if bitmap is not None:
        visible &= ~bitmap.bits()
    if not visible.any() or not (shapes or bitmap):
        return None
    value = attributes.whole(header, "ShutterPresentationValue")
    if value is None or not 0 <= value <= _WHITE:
        value = _BLACK
    return DisplayShutter(shapes=shapes, bitmap=bitmap, hidden=~visible, value=value)


def _numbers(header: Dataset, shape: str) -> dict[str, Sequence[int]]:
    """Return the numbers of a shape by keyword; empty if one is absent, is no whole number, or is out of reach."""
    found: dict[str, Sequence[int]] = {keyword: attributes.wholes(header, keyword) for keyword in _KEYWORDS[shape]}
    farthest = max((abs(number) for several in found.values() for number in several), default=0)
    return found if all(found.values()) and farthest <= _FARTHEST else {}


def _inside(shape: str, numbers: list[Sequence[int]], size: tuple[int, int]) -> Mask | None:
    """Return the pixels that a shape leaves visible, with those on its edge; None if it contradicts itself.

    numbers: as in the header, where rows stand before columns and both are counted from 1
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


def _bitmap(header: Dataset, size: tuple[int, int]) -> OverlayPlane | None:
    """Return the plane that is a bitmap shutter: as large as the film, and none that lies in the pixel cells."""
    group = attributes.whole(header, "ShutterOverlayGroup")
    for plane in overlay_planes.find(header):
        if plane.group == group and plane.packed is not None:
            return plane if (plane.rows, plane.columns, plane.origin) == (*size, (1, 1)) else None
    return None
