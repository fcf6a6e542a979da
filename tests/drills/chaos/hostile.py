"""Small films that hurt a decoder: the film of the tests, whose compressed pixels were damaged. No patient's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import imagecodecs
import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.uid import JPEGLosslessSV1, JPEGLSLossless, RLELossless

from tests.drills.encodings import with_frame
from tests.support import films

_SECTOR_BYTES: Final = 512


def rle_panics() -> Dataset:
    """Make a film in RLE with a zeroed sector: pylibjpeg-rle 2.2.0 panics, which is no `Exception`."""
    frame, begin = _frame(films.compressed(films.thumbnail(), RLELossless)), 61504
    return with_frame(
        films.thumbnail(), frame[:begin] + bytes(_SECTOR_BYTES) + frame[begin + _SECTOR_BYTES :], RLELossless
    )


def jpegls_blocks() -> Dataset:
    """Make a film in JPEG-LS that is cut off: CharLS of pyjpegls 1.5.1 takes 15 s, and holds the interpreter."""
    frame = _frame(films.compressed(films.thumbnail(), JPEGLSLossless))
    return with_frame(films.thumbnail(), frame[:66100], JPEGLSLossless)


def lossless_aborts() -> Dataset:
    """Make a film in lossless JPEG with a wrong marker behind the first: GDCM 3.2.6 aborts the process."""
    pixels = films.thumbnail().pixel_array.astype(np.uint16)
    frame = bytes(imagecodecs.ljpeg_encode(pixels, bitspersample=16))
    return with_frame(films.thumbnail(), frame[:2] + b"\x0d" + frame[3:], JPEGLosslessSV1)


HOSTILE: Final[Mapping[str, Callable[[], Dataset]]] = {
    "rle": rle_panics,
    "jpegls": jpegls_blocks,
    "lossless": lossless_aborts,
}


def _frame(film: Dataset) -> bytes:
    [frame] = generate_frames(film.PixelData, number_of_frames=1)
    return frame
