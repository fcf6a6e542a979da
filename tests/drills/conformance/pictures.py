"""Finds boxes in screenshots of a viewer, and says how far each lies from where it belongs.

Where a film lies in a viewer is measured too: on a calibration film of the same size and spacing, in the same viewport.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset

from models.contract import Box
from tests.support import films

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_BLOCK: Final = Box(left=0.2, top=0.3, right=0.8, bottom=0.7)
_NOTCH: Final = Box(left=0.25, top=0.35, right=0.45, bottom=0.45)
_WHITE: Final = 4095
_REACH: Final = 0.06
_FEWEST_BRIGHT: Final = 2000
_LEAST_COVERED: Final = 0.35  # OHIF's dashes cover half of a line, and labels a part of some


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Where a viewer shows a film: screen pixel = origin + scale x film pixel."""

    left: float
    top: float
    across: float
    down: float
    columns: int

    @property
    def width(self) -> float:
        """The film's width on the screen, in pixels."""
        return self.across * self.columns

    def to_screen(self, box: Box) -> Box:
        """Map a box of the film to the screen."""
        return Box(
            left=self.left + self.across * box.left,
            top=self.top + self.down * box.top,
            right=self.left + self.across * box.right,
            bottom=self.top + self.down * box.bottom,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What was found of a box in a picture.

    deviation: of the edge that lies furthest from its place, in parts of the film's width; None: an edge was not found
    covered: the share of the lines that is drawn, 1 for solid lines
    """

    deviation: float | None
    covered: float


def read(png: bytes) -> Picture:
    """Decode a screenshot: [row, column, red green blue]."""
    return np.asarray(Image.open(BytesIO(png)).convert("RGB"))


def calibration(film: Dataset) -> Dataset:
    """Return a film of the same geometry that shows a white block on black, with a notch near its top left corner."""
    copied = without_overlays(copy.deepcopy(film))
    rows, columns = int(film.Rows), int(film.Columns)
    pixels = np.zeros((rows, columns), dtype=np.int64)
    for box, value in ((_BLOCK, _WHITE), (_NOTCH, 0)):
        down = slice(round(box.top * rows), round(box.bottom * rows))
        pixels[down, round(box.left * columns) : round(box.right * columns)] = value
    films.with_pixels(copied, pixels, bits=12)
    return films.changed(
        copied,
        {
            "PhotometricInterpretation": "MONOCHROME2",
            "WindowCenter": _WHITE // 2,
            "WindowWidth": _WHITE,
            "PixelPaddingValue": None,
            "SpecificCharacterSet": "ISO_IR 100",
            "PatientName": "Calibration",
            "PatientID": "CALIBRATION",
        },
    )


def without_overlays(dataset: Dataset) -> Dataset:
    """Remove overlay planes, their activation and the shutter from a film or presentation state, in place."""
    for element in list(dataset):
        if 0x6000 <= element.tag.group < 0x7000 or "Shutter" in element.keyword:
            del dataset[element.tag]
    return dataset


def locate(picture: Picture, film: Dataset) -> Placing:
    """Find the calibration film of `film` in a picture. Raises AssertionError if it is not there, or turned."""
    bright = picture.min(axis=2) > 127
    columns, rows = _extent(bright.sum(axis=0)), _extent(bright.sum(axis=1))
    across = (columns[1] - columns[0]) / (round(_BLOCK.right * film.Columns) - round(_BLOCK.left * film.Columns))
    down = (rows[1] - rows[0]) / (round(_BLOCK.bottom * film.Rows) - round(_BLOCK.top * film.Rows))
    placing = Placing(
        left=columns[0] - across * round(_BLOCK.left * film.Columns),
        top=rows[0] - down * round(_BLOCK.top * film.Rows),
        across=across,
        down=down,
        columns=int(film.Columns),
    )
    size = (film.Columns, film.Rows, film.Columns, film.Rows)
    notch = Box(**dict(zip(("left", "top", "right", "bottom"), np.multiply(_NOTCH.edges, size), strict=True)))
    where = placing.to_screen(notch)
    inside = bright[round(where.top) + 2 : round(where.bottom) - 2, round(where.left) + 2 : round(where.right) - 2]
    assert inside.size, "the calibration film is not in the picture"
    assert not inside.any(), "the viewer turns or mirrors the film"
    return placing


def colored(picture: Picture) -> Mask:
    """Find what is green or yellow, as OHIF draws boxes and labels: films and most of a viewer have no color."""
    red, green, blue = (picture[..., channel].astype(np.int16) for channel in range(3))
    return (green > 140) & (green - blue > 60) & (green - red > -60)


def has_letters(picture: Picture) -> bool:
    """Whether bright letters stand on a dark ground, as OHIF writes a report of text."""
    bright = picture.min(axis=2) > 127
    return _FEWEST_BRIGHT <= int(bright.sum()) < bright.size / 4


def changed(picture: Picture, bare: Picture) -> Mask:
    """Find what differs from a picture of the film alone."""
    return np.abs(picture.astype(np.int16) - bare.astype(np.int16)).max(axis=2) > 6


def find(mask: Mask, where: Box, *, width: float) -> Outline:
    """Find the lines of a box near its place on the screen; width: of the film on the screen, in pixels."""
    left, top, right, bottom = where.edges
    reach = max(round(_REACH * width), 4)
    edges = [
        _find_edge(mask.T, at=left, begin=top, end=bottom, reach=reach),
        _find_edge(mask.T, at=right, begin=top, end=bottom, reach=reach),
        _find_edge(mask, at=top, begin=left, end=right, reach=reach),
        _find_edge(mask, at=bottom, begin=left, end=right, reach=reach),
    ]
    covered = float(np.mean([share for _, share in edges]))
    if any(share < _LEAST_COVERED for _, share in edges):
        return Outline(deviation=None, covered=covered)
    return Outline(deviation=max(abs(offset) for offset, _ in edges) / width, covered=covered)


def contrast(picture: Picture, bare: Picture, where: Box) -> float:
    """Return the contrast of a label with its ground, as WCAG 2 defines it: 1 for none, 21 for white on black.

    picture, bare: with the label and without it
    where: the label's place on the screen
    """
    part = (
        slice(max(round(where.top), 0), max(round(where.bottom), 0)),
        slice(max(round(where.left), 0), max(round(where.right), 0)),
    )
    drawn = _without_lines(changed(picture, bare)[part])
    if not drawn.any():
        return 1.0
    ground = float(np.median(bare[part][drawn].mean(axis=1)))
    shades = picture[part][drawn].mean(axis=1)
    # Half of a letter's pixels are its smoothed edge.
    text = float(np.percentile(shades, 90 if shades.mean() > ground else 10))
    bright, dark = sorted((_luminance(text), _luminance(ground)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _without_lines(mask: Mask) -> Mask:
    """Remove the lines of boxes that cross a label."""
    across, down = mask.mean(axis=1) > 0.6, mask.mean(axis=0) > 0.8
    return mask & ~across[:, np.newaxis] & ~down[np.newaxis, :]


def _luminance(gray: float) -> float:
    share = gray / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def _extent(counts: NDArray[np.integer]) -> tuple[float, float]:
    """Return where the long part begins and ends: letters of the viewer beside the film are short."""
    assert counts.max() > 20, "the calibration film is not in the picture"
    long = np.flatnonzero(counts > counts.max() / 2)
    return float(long[0]), float(long[-1] + 1)


def _find_edge(mask: Mask, *, at: float, begin: float, end: float, reach: int) -> tuple[float, float]:
    """Find the nearest line along a row of a mask. Returns its distance from `at`, and the share that is drawn.

    The nearest, not the best: lines of other boxes and letters may cover more than a line of dashes does.
    """
    first, last = max(round(begin) + 2, 0), round(end) - 2
    shares = {}
    for row in range(max(round(at) - reach, 0), min(round(at) + reach + 1, len(mask))):
        beside = mask[max(row - 1, 0) : row + 1, first:last]
        shares[row] = float(beside.any(axis=0).mean()) if beside.size else 0.0
    lines = [row for row, share in shares.items() if share >= _LEAST_COVERED]
    if not lines:
        return 0.0, max(shares.values(), default=0.0)
    nearest = min(lines, key=lambda row: abs(row - at))
    best = max((row for row in lines if abs(row - nearest) <= 2), key=lambda row: shares[row])
    return nearest - at, shares[best]
