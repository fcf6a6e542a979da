"""The grayscale of a presentation state: modality LUT, VOI LUT or window, polarity and pixel shape of its film.

A presentation state replaces the image's own grayscale pipeline (PS3.3 C.11), so the film's attributes are copied, and
contradictory ones are left out. A film without a usable window is shown with the gray values of its reading: a viewer
would show the whole range of its bits. A window narrower than 1 is written as a VOI LUT, because the attribute does not
allow it (PS3.3 C.11.2.1.2). A VOI LUT maps whole numbers, so then it maps stored values, without slope and intercept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from highdicom import (
    VOILUT,
    ModalityLUT,
    ModalityLUTTransformation,
    PresentationLUTTransformation,
)
from highdicom.pr import SoftcopyVOILUTTransformation
from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.grayscale_header import LookUpTable, read_table
from node.outputs import highdicom_gaps
from node.outputs.patient import read_text, short_text
from node.read.grayscale import FloatTable, Stretch, through_window

_EXACT, _SIGMOID = "LINEAR_EXACT", "SIGMOID"
_REACH = {_EXACT: 0.5, _SIGMOID: 4.0}
"""Beyond this many widths from its center, a window shows black or white only."""
_LEAST_LINEAR = 16.0
"""Width of a window, in modality values, that is described as LINEAR (PS3.3 C.11.2.1.2), which adds 1."""


def modality_of(source: Dataset, stretch: Stretch | None) -> ModalityLUTTransformation | None:
    """Return the modality LUT of a film, or else slope and intercept; None if it has neither.

    stretch, here and below: the gray value mapping of the reading, if the header has no usable one
    """
    if stretch is not None and not stretch.has_modality:
        return None
    items = attributes.items(source, "ModalityLUTSequence")
    if items and (table := _modality_table(source, items[0])):
        return ModalityLUTTransformation(modality_lut=table)
    slope, intercept = attributes.number(source, "RescaleSlope"), attributes.number(source, "RescaleIntercept")
    if (not slope and intercept is None) or _narrow(source, stretch) is not None:
        return None
    unit = short_text(attributes.text(source, "RescaleType"), 16) or "US"
    return ModalityLUTTransformation(rescale_intercept=intercept or 0.0, rescale_slope=slope or 1.0, rescale_type=unit)


def voi_of(source: Dataset, stretch: Stretch | None) -> SoftcopyVOILUTTransformation | None:
    """Return the VOI LUT of a film, or else the window, never both (PS3.3 C.11.8); None if it has neither."""
    if stretch is None and (table := _own_table(source)) is not None:
        return SoftcopyVOILUTTransformation(voi_luts=[table])
    window = _window(source, stretch)
    if window is None:
        return None
    if window.width < 1:
        return SoftcopyVOILUTTransformation(voi_luts=[_table_of(window, source, stretch)])
    return SoftcopyVOILUTTransformation(
        window_center=[window.center],  # as a list, because highdicom 0.28.2 splits an explanation into letters
        window_width=[window.width],
        window_explanation=[window.words] if window.words else None,
        voi_lut_function=window.function,
    )


def polarity_of(source: Dataset, stretch: Stretch | None) -> PresentationLUTTransformation:
    """Return whether a film is shown with low values bright."""
    is_negative = _is_negative(source) if stretch is None else stretch.is_inverted
    return PresentationLUTTransformation(presentation_lut_shape="INVERSE" if is_negative else "IDENTITY")


def _is_negative(source: Dataset) -> bool:
    """Return whether the film shows low values bright."""
    photometric, shape = (read_text(source, word) for word in ("PhotometricInterpretation", "PresentationLUTShape"))
    return photometric.upper() == "MONOCHROME1" or shape.upper() == "INVERSE"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A window of modality values; function: VOI LUT Function, None for LINEAR; words: its explanation, or ""."""

    center: float
    width: float
    function: str | None
    words: str = ""


def _window(source: Dataset, stretch: Stretch | None) -> _Window | None:
    """Return the window in which a film is shown, if no VOI LUT shows it; None if it has none that can be used."""
    if stretch is not None:
        exact = stretch.window
        if exact.width < _LEAST_LINEAR:
            return _Window(center=exact.center, width=exact.width, function=_EXACT)
        return _Window(center=exact.center + 0.5, width=exact.width + 1, function=None)  # LINEAR, known to every viewer
    center, width = attributes.number(source, "WindowCenter"), attributes.number(source, "WindowWidth")
    function = read_text(source, "VOILUTFunction").upper()
    is_linear = function not in _REACH
    if center is None or width is None or width <= 0 or (is_linear and width < 1):
        return None
    words = read_text(source, "WindowCenterWidthExplanation")
    return _Window(center=center, width=width, function=None if is_linear else function, words=words)


def _narrow(source: Dataset, stretch: Stretch | None) -> _Window | None:
    """Return the film's window if it is too narrow for the attribute."""
    window = None if stretch is None and _own_table(source) is not None else _window(source, stretch)
    return None if window is None or window.width >= 1 else window


def _own_table(source: Dataset) -> VOILUT | None:
    items = attributes.items(source, "VOILUTSequence")
    return _voi_table(source, items[0]) if items else None


def _table_of(window: _Window, source: Dataset, stretch: Stretch | None) -> VOILUT:
    """Write a window as a VOI LUT of 16 bits: of the entries of a modality LUT, or of stored values without one."""
    slope, intercept = 1.0, 0.0
    if modality_of(source, stretch) is None and (stretch is None or stretch.has_modality):
        slope = attributes.number(source, "RescaleSlope") or 1.0
        intercept = attributes.number(source, "RescaleIntercept") or 0.0
    reach = window.width * _REACH[window.function or _EXACT]
    low, high = sorted((window.center + end - intercept) / slope for end in (-reach, reach))
    lowest = -0x8000 if attributes.whole(source, "PixelRepresentation") == 1 else 0
    first = min(max(math.floor(low), lowest), lowest + 0xFFFE)
    last = min(max(math.ceil(high), first + 1), lowest + 0xFFFF)
    values: FloatTable = np.arange(first, last + 1).astype(np.float64) * slope + intercept
    gray = through_window(values, center=window.center, width=window.width, function=window.function or "")
    table = VOILUT(0, np.rint(gray * 0xFFFF).astype("<u2"), window.words or None)
    highdicom_gaps.map_from(table, first)
    return table


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
