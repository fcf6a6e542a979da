"""The size of a film's pixels in the patient, where it is calibrated. A broken attribute counts as absent."""

from __future__ import annotations

import math
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes

_CALIBRATED: Final = ("GEOMETRY", "FIDUCIAL")
_ALIKE: Final = 1e-3
_SPACINGS: Final = ("PixelSpacing", "ImagerPixelSpacing")


def calibrated_spacing(dataset: Dataset) -> tuple[float, float] | None:
    """Return mm from row to row and from column to column, in the patient; None if uncalibrated (PS3.3 10.7.1).

    Pixel Spacing counts if Pixel Spacing Calibration Type says how it was corrected. Imager Pixel Spacing is that of
    the detector, on which the heart is magnified: it counts only with an estimated magnification.
    """
    spacing, calibration = _spacing(dataset, "PixelSpacing"), attributes.text(dataset, "PixelSpacingCalibrationType")
    if spacing is not None and calibration.upper() in _CALIBRATED:
        return spacing
    imager = _spacing(dataset, "ImagerPixelSpacing")
    magnification = attributes.number(dataset, "EstimatedRadiographicMagnificationFactor")
    if imager is None or magnification is None or magnification < 1:
        return None
    return imager[0] / magnification, imager[1] / magnification


def has_oblong_pixels(dataset: Dataset) -> bool:
    """Say whether a film's pixels are not square, by more than a thousandth (PS3.3 10.7.1.3)."""
    return any(not math.isclose(*shape, rel_tol=_ALIKE) for shape in _shapes(dataset))


def pixel_shape(dataset: Dataset) -> tuple[int, int]:
    """Return the ratio of a pixel's height to its width (PS3.3 C.10.4); 1 to 1 if the film has no usable value."""
    for height, width in _shapes(dataset):
        if 0.01 < height < 100 and 0.01 < width < 100:
            return (1, 1) if height == width else (round(1000 * height), round(1000 * width))
    return (1, 1)


def pixel_size(dataset: Dataset) -> tuple[float, float] | None:
    """Return mm from row to row and from column to column, in the patient or on the detector; None if unknown."""
    return next((found for keyword in _SPACINGS if (found := _spacing(dataset, keyword)) is not None), None)


def _shapes(dataset: Dataset) -> list[tuple[float, float]]:
    """Return what a header says of the shape of pixels: the aspect ratio only without a spacing (C.7.6.3.1.7)."""
    spacings = [found for keyword in _SPACINGS if (found := _spacing(dataset, keyword)) is not None]
    ratio = _spacing(dataset, "PixelAspectRatio")
    return spacings or ([] if ratio is None else [ratio])


def _spacing(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    """Read row spacing and column spacing; None unless both are above 0 (PS3.3 10.7.1.3)."""
    try:
        row, column = (float(str(value)) for value in attributes.values(dataset, keyword))
    except ValueError:
        return None
    return (row, column) if 0 < row < float("inf") and 0 < column < float("inf") else None
