"""The attributes that map a film's stored values to gray: modality LUT, VOI LUT, windows, polarity, padding.

Parsed only for a film that is decoded, and from the Dataset that holds its pixels: LUTs are long, and a header that
was read for routing does not load long values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset

from node.dicom import attributes

WordTable = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTable:
    """A modality or VOI LUT (PS3.3 C.11.1.1, C.11.2.1.1).

    entries: [entry], at least one
    first: the input value that the first entry maps, from the descriptor
    bits: bits per entry, from the descriptor; not checked here
    """

    entries: WordTable
    first: int
    bits: int

    @property
    def top(self) -> float:
        """The entry that is shown white: the highest value that `bits` can hold, or the highest entry if that fits not.

        Agfa CR declares 16 bits over entries up to 4095, which would be nearly black.
        """
        highest = float(self.entries.max())
        return highest if self.is_scaled or highest > self._declared else self._declared

    @property
    def is_scaled(self) -> bool:
        """Whether the highest entry is below half of the range that `bits` declare, so that it is shown white."""
        return 0 < float(self.entries.max()) < self._declared / 2

    @property
    def _declared(self) -> float:
        return 2.0 ** min(self.bits, 16) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableTable:
    """A LUT in the header that contradicts itself; reason: why, without any value from the header."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrayscaleHeader:
    """The attributes of the grayscale pipeline (PS3.4 N.2); a number that is absent or broken is None.

    modality_lut, voi_lut: the first of their sequence; None where the sequence has no item
    window_center, window_width: the first window (PS3.3 C.11.2.1.2)
    has_window: whether the header has a center or a width, even if it is broken
    voi_lut_function: LINEAR, LINEAR_EXACT or SIGMOID, or any other text of the header, in upper case
    is_inverted: whether low values are bright: MONOCHROME1, or an INVERSE presentation LUT (PS3.3 C.11.6.1.2)
    is_disputed: whether these two contradict each other, so that some viewers show the other ones' negative
    pixel_padding_value, pixel_padding_range_limit: PS3.3 C.7.5.1.1.2
    """

    modality_lut: LookUpTable | UnusableTable | None = None
    rescale_slope: float | None = None
    rescale_intercept: float | None = None
    voi_lut: LookUpTable | UnusableTable | None = None
    window_center: float | None = None
    window_width: float | None = None
    has_window: bool = False
    voi_lut_function: str = ""
    is_inverted: bool = False
    is_disputed: bool = False
    pixel_padding_value: int | None = None
    pixel_padding_range_limit: int | None = None


UNCHANGED: Final = GrayscaleHeader(window_center=128.0, window_width=256.0, has_window=True)
"""Shows 0 to 255 as they are."""


def parse_grayscale(dataset: Dataset, *, photometric_interpretation: str) -> GrayscaleHeader:
    """Parse the attributes of the grayscale pipeline.

    photometric_interpretation: from `film_header.PixelFormat`
    """
    is_negative = photometric_interpretation.upper() == "MONOCHROME1"
    shape = attributes.text(dataset, "PresentationLUTShape").upper()
    return GrayscaleHeader(
        modality_lut=_first_table(dataset, "ModalityLUTSequence"),
        rescale_slope=attributes.number(dataset, "RescaleSlope"),
        rescale_intercept=attributes.number(dataset, "RescaleIntercept"),
        voi_lut=_first_table(dataset, "VOILUTSequence"),
        window_center=attributes.number(dataset, "WindowCenter"),
        window_width=attributes.number(dataset, "WindowWidth"),
        has_window=any(attributes.values(dataset, keyword) for keyword in ("WindowCenter", "WindowWidth")),
        voi_lut_function=attributes.text(dataset, "VOILUTFunction").upper(),
        is_inverted=is_negative or shape == "INVERSE",
        is_disputed=shape == ("IDENTITY" if is_negative else "INVERSE"),
        pixel_padding_value=attributes.whole(dataset, "PixelPaddingValue"),
        pixel_padding_range_limit=attributes.whole(dataset, "PixelPaddingRangeLimit"),
    )


def read_table(film: Dataset, item: Dataset) -> LookUpTable:
    """Read one item of a film's LUT sequence.

    film: the whole object, whose encoding gives the byte order of words (PS3.5 7.3)
    Raises ValueError for a LUT without a descriptor, or with fewer entries than its descriptor declares.
    """
    descriptor = [int(str(part)) for part in attributes.values(item, "LUTDescriptor")]
    if len(descriptor) != 3:
        raise ValueError("a LUT needs a descriptor of three values")
    count = descriptor[0] & 0xFFFF or 0x10000  # in a signed film, pydicom reads 65535 as -1
    data = attributes.values(item, "LUTData")
    if data and isinstance(data[0], bytes):
        table = _unpacked(data[0], count, order=">" if film.original_encoding[1] is False else "<")
    else:
        table = np.array([int(str(entry)) & 0xFFFF for entry in data], dtype=np.uint16)
    if table.size < count:
        raise ValueError("a LUT has fewer entries than its descriptor says")
    return LookUpTable(entries=table[:count], first=descriptor[1], bits=descriptor[2])


def _first_table(dataset: Dataset, keyword: str) -> LookUpTable | UnusableTable | None:
    items = attributes.items(dataset, keyword)
    try:
        return read_table(dataset, items[0]) if items else None
    except ValueError as error:
        return UnusableTable(reason=str(error))


def _unpacked(data: bytes, count: int, *, order: str) -> WordTable:
    """Unpack the entries from OW: 16-bit words, or two 8-bit entries in each word, low byte first (C.11.1.1.1)."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), f"{order}u2").astype("<u2")
    return words if len(data) >= 2 * count else words.view("u1").astype(np.uint16)
