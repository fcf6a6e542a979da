"""The grayscale of a presentation state: modality LUT, VOI LUT or window, polarity and pixel shape of its film.

A presentation state replaces the image's own grayscale pipeline (PS3.3 C.11), so what the film has is copied, and what
contradicts itself is left out. A film without a window, or one that nobody could read so, is shown as it was read: a
viewer would show the whole range of its bits.
"""

from __future__ import annotations

import numpy as np
from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.grayscale_header import LookUpTable, WordTable, read_table
from node.outputs.patient import read_text, short_text
from node.read.grayscale import Stretch, Window

_LEAST_LINEAR = 16.0
"""Width of a window, in modality values, that is described as LINEAR (PS3.3 C.11.2.1.2), which adds 1."""


def describe(source: Dataset, state: Dataset, stretch: Stretch | None = None) -> None:
    """Give a presentation state the modality LUT, the VOI LUT or window and the polarity of its film.

    stretch: how the film was read if its header does not say it, or nobody could read it so
    """
    if stretch is None or stretch.has_modality:
        _describe_modality(source, state)
    voi = Dataset()
    if stretch is None:
        _describe_voi(source, voi)
    else:
        _describe_window(stretch.window, voi)
    if len(voi):
        state.SoftcopyVOILUTSequence = [voi]
    is_negative = _is_negative(source) if stretch is None else stretch.is_inverted
    state.PresentationLUTShape = "INVERSE" if is_negative else "IDENTITY"


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


def _describe_modality(source: Dataset, state: Dataset) -> None:
    """Copy the modality LUT, or else slope and intercept."""
    items = attributes.items(source, "ModalityLUTSequence")
    if items and (table := _modality_table(source, items[0])):
        state.ModalityLUTSequence = [table]
        return
    slope, intercept = attributes.number(source, "RescaleSlope"), attributes.number(source, "RescaleIntercept")
    if slope or intercept is not None:
        state.RescaleIntercept, state.RescaleSlope = _decimal(intercept or 0.0), _decimal(slope or 1.0)
        state.RescaleType = short_text(attributes.text(source, "RescaleType"), 16) or "US"


def _describe_voi(source: Dataset, voi: Dataset) -> None:
    """Copy the VOI LUT, or else the window, never both (PS3.3 C.11.8)."""
    items = attributes.items(source, "VOILUTSequence")
    if items and (table := _voi_table(source, items[0])):
        voi.VOILUTSequence = [table]
        return
    center, width = attributes.number(source, "WindowCenter"), attributes.number(source, "WindowWidth")
    function = read_text(source, "VOILUTFunction").upper()
    is_linear = function not in ("LINEAR_EXACT", "SIGMOID")
    if center is None or width is None or width <= 0 or (is_linear and width < 1):
        return
    voi.WindowCenter, voi.WindowWidth = _decimal(center), _decimal(width)
    if explanation := read_text(source, "WindowCenterWidthExplanation"):
        voi.WindowCenterWidthExplanation = explanation
    if not is_linear:
        voi.VOILUTFunction = function


def _describe_window(window: Window, voi: Dataset) -> None:
    """Describe a LINEAR_EXACT window by a LINEAR one, which every viewer knows, if its numbers have the digits."""
    is_linear = window.width >= _LEAST_LINEAR
    center, width = (window.center + 0.5, window.width + 1) if is_linear else (window.center, window.width)
    voi.WindowCenter, voi.WindowWidth = _decimal(center), _decimal(width)
    if not is_linear:
        voi.VOILUTFunction = "LINEAR_EXACT"


def _voi_table(source: Dataset, item: Dataset) -> Dataset | None:
    """Copy a VOI LUT, and scale its entries to 16 bits: the displayed gray is their share of the range."""
    if (table := _table(source, item)) is None:
        return None
    entries = np.rint(table.entries * (0xFFFF / table.top)).astype("<u2")
    return _encoded(entries, table.first, bits=16, explanation=item)


def _modality_table(source: Dataset, item: Dataset) -> Dataset | None:
    """Copy a modality LUT in 8 or 16 bits; its entries are values in a unit, so they are not scaled (C.11.1.1.1)."""
    if (table := _table(source, item)) is None:
        return None
    is_short = table.bits == 8 and table.entries.max() <= 0xFF
    copied = _encoded(table.entries, table.first, bits=8 if is_short else 16, explanation=item)
    copied.ModalityLUTType = short_text(attributes.text(item, "ModalityLUTType"), 16) or "US"
    return copied


def _table(source: Dataset, item: Dataset) -> LookUpTable | None:
    """Read a LUT; None if it contradicts itself."""
    try:
        table = read_table(source, item)
    except ValueError:
        return None
    return table if -0x8000 <= table.first <= 0xFFFF else None


def _encoded(entries: WordTable, first: int, *, bits: int, explanation: Dataset) -> Dataset:
    """Encode a LUT (PS3.3 C.11.1.1); the sign of `first` decides whether the descriptor is SS or US."""
    count = entries.size & 0xFFFF
    table = Dataset()
    if first < 0:
        table.add_new("LUTDescriptor", "SS", [count - 0x10000 if count > 0x7FFF else count, first, bits])
    else:
        table.add_new("LUTDescriptor", "US", [count, first, bits])
    if words := read_text(explanation, "LUTExplanation"):
        table.LUTExplanation = words
    data = entries.astype("<u2").tobytes() if bits == 16 else entries.astype("u1").tobytes()
    table.add_new("LUTData", "OW", data + b"\0" * (len(data) % 2))
    return table


def _decimal(value: float) -> str:
    """Write a number as DS, at most 16 characters (PS3.5 6.2)."""
    return f"{value:.9g}"
