"""Read a PNG or JPEG as a film in gray, or say why it is none.

Such a file has no header that says what it shows. A film in false colors and a screenshot would get an answer as any
film does, so a picture with colors is refused, while a gray one is read however it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from node.errors import InputError
from node.read import pixel_format

_FORMATS: Final = ("PNG", "JPEG")
_GRAY_MODES: Final = frozenset(("1", "L", "LA"))
_PRINTED: Final = "CMYK"
_BOMBS: Final = (Image.DecompressionBombError, Image.DecompressionBombWarning)

_CELL: Final = 4
"""Side of the cells, in pixels, over which colors are averaged: noise of single pixels is no color."""

_MOST_TINT: Final = 16
"""The most by which the channels of a cell may differ in a gray picture, of 255.

Noise of 6 in each channel, kept by JPEG, reaches 15; the palest false colors (MATLAB's "bone") have 32. A gray picture
without noise has 0 at any quality of JPEG.
"""


def count_pixels(path: Path) -> int:
    """Return how many pixels the head of a picture declares. Raises InputError."""
    with _opened(path) as image:
        return image.width * image.height


def read(path: Path) -> npt.NDArray[np.uint8]:
    """Return the gray values of a PNG or JPEG picture (spec §1.1): [row, column]. Raises InputError.

    Call it only in a decoder process (`decoder_processes`).
    """
    with _opened(path) as image:
        if image.width * image.height > pixel_format.MAX_PIXELS:
            raise InputError(f"{path}: has more than {pixel_format.MAX_PIXELS} pixels; name a smaller picture")
        if getattr(image, "n_frames", 1) > 1:
            raise InputError(f"{path}: holds several pictures; name a file with one film")
        return _gray(path, ImageOps.exif_transpose(image))


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; an error of Pillow, also while it decodes, becomes InputError."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            yield image
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, *_BOMBS) as error:
        raise InputError(f"{path}: is not a readable picture of usual size; name a DICOM, PNG or JPEG file") from error


def _gray(path: Path, picture: Image.Image) -> npt.NDArray[np.uint8]:
    if picture.mode == _PRINTED:
        raise InputError(
            f"{path}: is stored for printing (CMYK), which has no certain gray; save the film itself in gray"
        )
    if picture.has_transparency_data and not _is_opaque(picture):
        raise InputError(f"{path}: has transparent parts, whose gray nobody knows; save the film without transparency")
    if picture.mode.startswith("I;16"):
        return _from_16_bits(path, np.asarray(picture))
    if _has_colors(picture):
        raise InputError(f"{path}: the picture has colors, and only films in gray are read; take the film itself")
    return np.asarray(picture.convert("L"))


def _is_opaque(picture: Image.Image) -> bool:
    return not picture.mode.startswith("I;16") and picture.convert("RGBA").getchannel("A").getextrema() == (255, 255)


def _has_colors(picture: Image.Image) -> bool:
    if picture.mode in _GRAY_MODES:
        return False
    cells = np.asarray(picture.convert("RGB").reduce(_CELL))
    return bool(np.ptp(cells, axis=2).max() > _MOST_TINT)


def _from_16_bits(path: Path, values: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Return 16-bit gray values in 8 bits (Pillow 13 would clip them). Raises InputError for 12 bits in 16.

    Nothing says how many bits such values have, and as they stand they are nearly black.
    """
    if values.max() < 2**15:
        raise InputError(f"{path}: uses less than half of its 16 bits and so is nearly black; save the film in 8 bits")
    return np.rint(values / np.float32(257)).astype(np.uint8)
