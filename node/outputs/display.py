"""How a source film is displayed, carried over into its presentation state (PS3.3 C.10.4, C.11.1, C.11.6, C.11.8).

Only the first table or window is carried: a viewer shows that one at first, and `node.grayscale` used it. A broken one
is left out: the viewer then chooses its own, as it would for the film itself.
"""

from __future__ import annotations

import struct

import numpy as np
from pydicom.dataset import Dataset

from node import attributes
from node.outputs.patient import read_text, short_text


def describe_grayscale(source: Dataset, state: Dataset) -> None:
    """Give a presentation state the modality LUT, the VOI LUT or window and the polarity of its film."""
    _describe_modality(source, state)
    voi = Dataset()
    _describe_voi(source, voi)
    if len(voi):
        state.SoftcopyVOILUTSequence = [voi]
    is_negative = (
        read_text(source, "PhotometricInterpretation") == "MONOCHROME1"
        or read_text(source, "PresentationLUTShape") == "INVERSE"
    )
    state.PresentationLUTShape = "INVERSE" if is_negative else "IDENTITY"


def pixel_shape(source: Dataset) -> tuple[int, int]:
    """Return height and width of a pixel in proportion (PS3.3 C.10.4): square where the film says nothing usable."""
    for keyword in ("PixelAspectRatio", "PixelSpacing", "ImagerPixelSpacing"):
        try:
            height, width = (float(str(value)) for value in attributes.values(source, keyword))
        except ValueError:
            continue
        if 0.01 < height < 100 and 0.01 < width < 100:  # RG1 says 0\0
            return (1, 1) if height == width else (round(1000 * height), round(1000 * width))
    return (1, 1)


def _describe_modality(source: Dataset, state: Dataset) -> None:
    """Carry over the way from stored values to the modality's own: a table, or slope and intercept."""
    items = attributes.items(source, "ModalityLUTSequence")
    if items and (table := _table(source, items[0])):
        table.ModalityLUTType = short_text(attributes.text(items[0], "ModalityLUTType"), 16) or "US"
        state.ModalityLUTSequence = [table]
        return
    slope, intercept = attributes.number(source, "RescaleSlope"), attributes.number(source, "RescaleIntercept")
    if slope and intercept is not None:
        state.RescaleIntercept, state.RescaleSlope = _decimal(intercept), _decimal(slope)
        state.RescaleType = short_text(attributes.text(source, "RescaleType"), 16) or "US"


def _describe_voi(source: Dataset, voi: Dataset) -> None:
    """Carry over the table or else the window, never both (PS3.3 C.11.8)."""
    items = attributes.items(source, "VOILUTSequence")
    if items and (table := _table(source, items[0])):
        voi.VOILUTSequence = [table]
        return
    center, width = attributes.number(source, "WindowCenter"), attributes.number(source, "WindowWidth")
    function = read_text(source, "VOILUTFunction")
    is_linear = function not in ("LINEAR_EXACT", "SIGMOID")
    if center is None or width is None or width <= 0 or (is_linear and width < 1):
        return
    voi.WindowCenter, voi.WindowWidth = _decimal(center), _decimal(width)
    if explanation := read_text(source, "WindowCenterWidthExplanation"):
        voi.WindowCenterWidthExplanation = explanation
    if not is_linear:
        voi.VOILUTFunction = function


def _table(source: Dataset, item: Dataset) -> Dataset | None:
    """Copy a lookup table, its entries as little-endian words; None if it contradicts itself (PS3.3 C.11.1.1)."""
    try:
        count, first, bits = (int(str(value)) for value in attributes.values(item, "LUTDescriptor"))
        data = _entries(source, item)
    except (ValueError, struct.error):
        return None
    count &= 0xFFFF  # a signed film makes 65535 read as -1
    entries = count or 0x10000
    if len(data) < entries or not 8 <= bits <= 16 or not -0x8000 <= first <= 0xFFFF:
        return None
    table = Dataset()
    if first < 0:
        table.add_new("LUTDescriptor", "SS", [count - 0x10000 if count > 0x7FFF else count, first, bits])
    else:
        table.add_new("LUTDescriptor", "US", [count, first, bits])
    if explanation := read_text(item, "LUTExplanation"):
        table.LUTExplanation = explanation
    table.add_new("LUTData", "OW", data[: 2 * entries] + b"\0" * (len(data) % 2))
    return table


def _entries(source: Dataset, item: Dataset) -> bytes:
    """Return the entries of a table: words, or bytes where the sender packed two of 8 bits into each (C.11.1.1.1)."""
    values = attributes.values(item, "LUTData")
    if values and isinstance(values[0], bytes):
        is_big_endian = source.original_encoding[1] is False
        return np.frombuffer(values[0], ">u2").astype("<u2").tobytes() if is_big_endian else values[0]
    return struct.pack(f"<{len(values)}H", *(int(str(value)) & 0xFFFF for value in values))


def _decimal(value: float) -> str:
    """Write a number as DS, at most 16 characters (PS3.5 6.2)."""
    return f"{value:.9g}"
