"""The grayscale of a presentation state: modality LUT, VOI LUT or window, polarity and pixel shape of its film.

A presentation state replaces the image's own grayscale pipeline (PS3.3 C.11), so what the film has is copied, and what
contradicts itself is left out. A film without a window, or one that nobody could read so, is shown as it was read: a
viewer would show the whole range of its bits.
"""

from __future__ import annotations

import numpy as np
from highdicom import (
    VOILUT,
    ModalityLUT,
    ModalityLUTTransformation,
    PresentationLUTTransformation,
    VOILUTFunctionValues,
)
from highdicom.pr import SoftcopyVOILUTTransformation
from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.grayscale_header import LookUpTable, read_table
from node.outputs import highdicom_gaps
from node.outputs.patient import read_text, short_text
from node.read.grayscale import Stretch, Window

_LEAST_LINEAR = 16.0
"""Width of a window, in modality values, that is described as LINEAR (PS3.3 C.11.2.1.2), which adds 1."""


def modality_of(source: Dataset, stretch: Stretch | None) -> ModalityLUTTransformation | None:
    """Return the modality LUT of a film, or else slope and intercept; None if it has neither.

    stretch, here and below: how the film was read if its header does not say it, or nobody could read it so
    """
    if stretch is not None and not stretch.has_modality:
        return None
    items = attributes.items(source, "ModalityLUTSequence")
    if items and (table := _modality_table(source, items[0])):
        return ModalityLUTTransformation(modality_lut=table)
    slope, intercept = attributes.number(source, "RescaleSlope"), attributes.number(source, "RescaleIntercept")
    if not slope and intercept is None:
        return None
    unit = short_text(attributes.text(source, "RescaleType"), 16) or "US"
    return ModalityLUTTransformation(rescale_intercept=intercept or 0.0, rescale_slope=slope or 1.0, rescale_type=unit)


def voi_of(source: Dataset, stretch: Stretch | None) -> SoftcopyVOILUTTransformation | None:
    """Return the VOI LUT of a film, or else the window, never both (PS3.3 C.11.8); None if it has neither."""
    return _voi(source) if stretch is None else _voi_of_window(stretch.window)


def polarity_of(source: Dataset, stretch: Stretch | None) -> PresentationLUTTransformation:
    """Return whether a film is shown with low values bright."""
    is_negative = _is_negative(source) if stretch is None else stretch.is_inverted
    return PresentationLUTTransformation(presentation_lut_shape="INVERSE" if is_negative else "IDENTITY")


def pixel_shape(source: Dataset) -> tuple[int, int]:
    """Return the ratio of a pixel's height to its width (PS3.3 C.10.4); 1 to 1 if the film has no usable value."""
    for keyword in ("PixelAspectRatio", "PixelSpacing", "ImagerPixelSpacing"):
        try:
            height, width = (float(str(value)) for value in attributes.values(source, keyword))
        except ValueError:
            continue
        if 0.01 < height < 100 and 0.01 < width < 100:  # the test film RG1 has 0\0
            return (1, 1) if height == width else (round(1000 * height), round(1000 * width))
    return (1, 1)


def _is_negative(source: Dataset) -> bool:
    """Say whether the film shows low values bright."""
    photometric, shape = (read_text(source, word) for word in ("PhotometricInterpretation", "PresentationLUTShape"))
    return photometric.upper() == "MONOCHROME1" or shape.upper() == "INVERSE"


def _voi(source: Dataset) -> SoftcopyVOILUTTransformation | None:
    items = attributes.items(source, "VOILUTSequence")
    if items and (table := _voi_table(source, items[0])):
        return SoftcopyVOILUTTransformation(voi_luts=[table])
    center, width = attributes.number(source, "WindowCenter"), attributes.number(source, "WindowWidth")
    function = read_text(source, "VOILUTFunction").upper()
    is_linear = function not in ("LINEAR_EXACT", "SIGMOID")
    if center is None or width is None or width <= 0 or (is_linear and width < 1):
        return None
    words = read_text(source, "WindowCenterWidthExplanation")
    return SoftcopyVOILUTTransformation(
        window_center=[center],  # as a list, because highdicom 0.28.2 splits an explanation of one window into letters
        window_width=[width],
        window_explanation=[words] if words else None,
        voi_lut_function=None if is_linear else function,
    )


def _voi_of_window(window: Window) -> SoftcopyVOILUTTransformation:
    """Describe a LINEAR_EXACT window by a LINEAR one, which every viewer knows, if its numbers have the digits."""
    if window.width >= _LEAST_LINEAR:
        return SoftcopyVOILUTTransformation(window_center=window.center + 0.5, window_width=window.width + 1)
    exact = VOILUTFunctionValues.LINEAR_EXACT
    return SoftcopyVOILUTTransformation(window_center=window.center, window_width=window.width, voi_lut_function=exact)


def _voi_table(source: Dataset, item: Dataset) -> VOILUT | None:
    """Copy a VOI LUT, and scale its entries to 16 bits: the displayed gray is their share of the range."""
    if (table := _table(source, item)) is None:
        return None
    entries = np.rint(table.entries * (0xFFFF / table.top)).astype("<u2")
    copied = VOILUT(0, entries, read_text(item, "LUTExplanation") or None)
    highdicom_gaps.map_from(copied, table.first)
    return copied


def _modality_table(source: Dataset, item: Dataset) -> ModalityLUT | None:
    """Copy a modality LUT in 8 or 16 bits; its entries are values in a unit, so they are not scaled (C.11.1.1.1)."""
    if (table := _table(source, item)) is None:
        return None
    is_short = table.bits == 8 and table.entries.max() <= 0xFF
    entries = table.entries.astype("u1" if is_short else "<u2")
    unit = short_text(attributes.text(item, "ModalityLUTType"), 16) or "US"
    copied = ModalityLUT(unit, 0, entries, read_text(item, "LUTExplanation") or None)
    highdicom_gaps.map_from(copied, table.first)
    return copied


def _table(source: Dataset, item: Dataset) -> LookUpTable | None:
    """Read a LUT; None if it contradicts itself."""
    try:
        table = read_table(source, item)
    except ValueError:
        return None
    return table if -0x8000 <= table.first <= 0xFFFF else None
