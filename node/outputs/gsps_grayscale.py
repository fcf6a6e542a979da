"""The grayscale of a presentation state: modality LUT, VOI LUT or window, polarity and pixel shape of its film.

A presentation state replaces the image's own grayscale pipeline (PS3.3 C.11), so the film's attributes are copied, and
contradictory ones are left out. A film without a usable window is shown with the gray values of its reading: a viewer
would show the whole range of its bits. A window narrower than 1 is written as a VOI LUT, because the attribute does not
allow it (PS3.3 C.11.2.1.2). A VOI LUT maps whole numbers, so then it maps stored values, without slope and intercept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

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
from node.dicom.grayscale_header import GrayscaleHeader, LookUpTable, UnusableTable, parse_grayscale
from node.outputs import highdicom_gaps
from node.outputs.patient import read_text, short_text
from node.read.grayscale import FloatTable, Stretch, Window, through_window, usable_window

_EXACT, _SIGMOID = "LINEAR_EXACT", "SIGMOID"
_REACH = {_EXACT: 0.5, _SIGMOID: 4.0}
"""Beyond this many widths from its center, a window shows black or white only."""
_LEAST_LINEAR = 16.0
"""Width of a window, in modality values, that is described as LINEAR (PS3.3 C.11.2.1.2), which adds 1."""


class Transformations(TypedDict):
    """The arguments of a presentation state for the grayscale of its film."""

    modality_lut_transformation: ModalityLUTTransformation | None
    voi_lut_transformations: list[SoftcopyVOILUTTransformation] | None
    presentation_lut_transformation: PresentationLUTTransformation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A window of modality values; function: VOI LUT Function, None for LINEAR; words: its explanation, or ""."""

    center: float
    width: float
    function: str | None
    words: str = ""


def transformations(source: Dataset, stretch: Stretch | None) -> Transformations:
    """Return the grayscale of a film: its VOI LUT, or else the window, never both (PS3.3 C.11.8).

    stretch: the gray value mapping of the reading, if the header has no usable one
    """
    photometric = attributes.text(source, "PhotometricInterpretation")
    header = parse_grayscale(source, photometric_interpretation=photometric)
    has_modality = stretch is None or stretch.has_modality
    table = _voi_table(source, header) if stretch is None else None
    window = _window(source, header, stretch) if table is None else None
    is_narrow = window is not None and window.width < 1
    modality = _modality(source, header, has_slope=not is_narrow) if has_modality else None
    if window is not None and is_narrow:
        slope, intercept = _slope_of(header) if has_modality and modality is None else (1.0, 0.0)
        lowest = -0x8000 if attributes.whole(source, "PixelRepresentation") == 1 else 0
        table = _table_of(window, slope, intercept, lowest=lowest)
    is_inverted = header.is_inverted if stretch is None else stretch.is_inverted
    return Transformations(
        modality_lut_transformation=modality,
        voi_lut_transformations=_voi(table, window),
        presentation_lut_transformation=PresentationLUTTransformation("INVERSE" if is_inverted else "IDENTITY"),
    )


def _voi(table: VOILUT | None, window: _Window | None) -> list[SoftcopyVOILUTTransformation] | None:
    if table is not None:
        return [SoftcopyVOILUTTransformation(voi_luts=[table])]
    if window is None:
        return None
    return [
        SoftcopyVOILUTTransformation(
            window_center=[window.center],  # as a list, because highdicom 0.28.2 splits an explanation into letters
            window_width=[window.width],
            window_explanation=[window.words] if window.words else None,
            voi_lut_function=window.function,
        )
    ]


def _modality(source: Dataset, header: GrayscaleHeader, *, has_slope: bool) -> ModalityLUTTransformation | None:
    """Return the modality LUT of a film, or else slope and intercept if they are written; None if it has neither.

    A LUT has 8 or 16 bits; its entries are values in a unit, so they are not scaled (C.11.1.1.1).
    """
    if (table := _usable(header.modality_lut)) is not None:
        item = attributes.items(source, "ModalityLUTSequence")[0]
        is_short = table.bits == 8 and table.entries.max() <= 0xFF
        entries = table.entries.astype("u1" if is_short else "<u2")
        unit = short_text(attributes.text(item, "ModalityLUTType"), 16) or "US"
        copied = ModalityLUT(unit, 0, entries, read_text(item, "LUTExplanation") or None)
        highdicom_gaps.map_from(copied, table.first)
        return ModalityLUTTransformation(modality_lut=copied)
    if not has_slope or (not header.rescale_slope and header.rescale_intercept is None):
        return None
    slope, intercept = _slope_of(header)
    unit = short_text(attributes.text(source, "RescaleType"), 16) or "US"
    return ModalityLUTTransformation(rescale_intercept=intercept, rescale_slope=slope, rescale_type=unit)


def _slope_of(header: GrayscaleHeader) -> tuple[float, float]:
    return header.rescale_slope or 1.0, header.rescale_intercept or 0.0


def _window(source: Dataset, header: GrayscaleHeader, stretch: Stretch | None) -> _Window | None:
    """Return the window in which a film is shown, if no VOI LUT shows it; None if it has none that can be used."""
    if stretch is not None:
        exact = stretch.window
        if exact.width < _LEAST_LINEAR:
            return _Window(center=exact.center, width=exact.width, function=_EXACT)
        return _Window(center=exact.center + 0.5, width=exact.width + 1, function=None)  # LINEAR, known to every viewer
    if (found := usable_window(header)) is None:
        return None
    function = header.voi_lut_function if header.voi_lut_function in _REACH else None
    words = read_text(source, "WindowCenterWidthExplanation")
    return _Window(center=found.center, width=found.width, function=function, words=words)


def _table_of(window: _Window, slope: float, intercept: float, *, lowest: int) -> VOILUT:
    """Write a window as a VOI LUT of 16 bits: of the entries of a modality LUT, or of stored values without one.

    lowest: the lowest stored value that the film may have
    """
    reach = window.width * _REACH[window.function or _EXACT]
    low, high = sorted((window.center + end - intercept) / slope for end in (-reach, reach))
    first = min(max(math.floor(low), lowest), lowest + 0xFFFE)
    last = min(max(math.ceil(high), first + 1), lowest + 0xFFFF)
    values: FloatTable = np.arange(first, last + 1).astype(np.float64) * slope + intercept
    gray = through_window(values, Window(center=window.center, width=window.width), function=window.function or "")
    table = VOILUT(0, np.rint(gray * 0xFFFF).astype("<u2"), window.words or None)
    highdicom_gaps.map_from(table, first)
    return table


def _voi_table(source: Dataset, header: GrayscaleHeader) -> VOILUT | None:
    """Copy a VOI LUT, and scale its entries to 16 bits: the displayed gray is their share of the range."""
    if (table := _usable(header.voi_lut)) is None:
        return None
    item = attributes.items(source, "VOILUTSequence")[0]
    entries = np.rint(table.entries * (0xFFFF / table.top)).astype("<u2")
    copied = VOILUT(0, entries, read_text(item, "LUTExplanation") or None)
    highdicom_gaps.map_from(copied, table.first)
    return copied


def _usable(table: LookUpTable | UnusableTable | None) -> LookUpTable | None:
    """Return a LUT whose first value can be written; None if it contradicts itself."""
    return table if isinstance(table, LookUpTable) and -0x8000 <= table.first <= 0xFFFF else None
