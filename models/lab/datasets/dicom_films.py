"""Reads a DICOM film as VinDr-CXR's training pictures were made (spec §1): 8 bits, equalized.

Published pixels are the stored values, inverted for MONOCHROME1, stretched from the smallest to the largest, and
equalized by scikit-image. Here the same is computed on a table of the 256 values.
"""

from __future__ import annotations

from pathlib import Path

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.encaps import get_frame
from pydicom.uid import JPEG2000TransferSyntaxes, JPEGLSTransferSyntaxes, JPEGTransferSyntaxes

from models.errors import ModelError

_BINS = 256


def read_equalized(path: Path) -> NDArray[np.uint8]:
    """Return the picture of a film, [row, column]. Raises ModelError that names the file if it cannot be read."""
    try:
        film = dcmread(path)
        stored = _stored(film)
        is_inverted = film.PhotometricInterpretation == "MONOCHROME1"
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); download it again") from error
    except Exception as error:  # a damaged file meets many kinds of errors in pydicom and in the decoders
        raise ModelError(f"{path} is no film that can be decoded ({error}); download it again") from error
    if stored.ndim != 2:
        raise ModelError(f"{path} has {stored.ndim} dimensions of pixels instead of rows and columns")
    if stored.min() == stored.max():
        raise ModelError(f"{path} is blank; download it again")
    return equalized(eight_bits(stored, is_inverted=is_inverted))


def eight_bits(stored: NDArray[np.integer], *, is_inverted: bool) -> NDArray[np.uint8]:
    """Stretch stored values to 0..255, rounded down; a film of unsigned 8 bits is not stretched, as published."""
    least, most = int(stored.min()), int(stored.max())
    if stored.dtype == np.uint8:
        return np.asarray(most - stored if is_inverted else stored, dtype=np.uint8)
    values = np.arange(least, most + 1, dtype=np.int64)
    table = ((most - values if is_inverted else values - least) * 1.0 / (most - least) * 255).astype(np.uint8)
    return table[stored.astype(np.int64) - least]


def equalized(eight: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Equalize the histogram as scikit-image's `equalize_hist` does, in steps of 1/255, rounded down."""
    values = np.arange(_BINS) / 255.0
    counts = np.bincount(eight.ravel(), minlength=_BINS)
    bounds = (float(eight.min()) / 255.0, float(eight.max()) / 255.0)
    histogram, edges = np.histogram(values, bins=_BINS, range=bounds, weights=counts)
    shares = histogram.cumsum() / histogram.sum()
    table: NDArray[np.uint8] = (255 * np.interp(values, (edges[:-1] + edges[1:]) / 2, shares)).astype(np.uint8)
    return table[eight]


def _stored(film: Dataset) -> NDArray[np.integer]:
    """Decode the stored values: compressed ones by imagecodecs, which needs no plug-in of pydicom."""
    syntax = film.file_meta.TransferSyntaxUID
    frame = get_frame(film.PixelData, 0, number_of_frames=1) if syntax.is_encapsulated else b""
    if syntax in JPEG2000TransferSyntaxes:
        return np.asarray(imagecodecs.jpeg2k_decode(frame))
    if syntax in JPEGLSTransferSyntaxes:
        return np.asarray(imagecodecs.jpegls_decode(frame))
    if syntax in JPEGTransferSyntaxes:
        return np.asarray(imagecodecs.jpeg8_decode(frame))
    return np.asarray(film.pixel_array)
