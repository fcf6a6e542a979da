"""From stored pixel values to the gray that is displayed: the DICOM grayscale pipeline as a table (PS3.4 N.2).

A film has at most 65536 different stored values, so every step (modality LUT, VOI LUT or window, inversion, padding)
works on a table of the possible values and on how often each occurs, and the picture is looked up once at the end.

Our own table look-up instead of pydicom's: `apply_voi` 3.0.2 keeps the index in the type of the *output*, so that an
8-bit LUT over 12-bit values wraps around, and `apply_modality_lut` takes no 12-bit LUT. Windows are our own because
theirs refuse or spread a NaN and return the stored range instead of 0..1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset

from node import attributes

FloatTable = npt.NDArray[np.float64]
WordTable = npt.NDArray[np.uint16]

_TAIL = 0.005
"""Share of pixels cut at each end where a film names no window: markers and collimation must not set the contrast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The stored values of one film.

    values: [level], every value the declared bits can hold, rising by one
    counts: [level], how many pixels have it
    padding: [level], whether it marks pixels outside the exposed field (PS3.3 C.7.5.1.1.2)
    """

    values: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    padding: npt.NDArray[np.bool_]

    @property
    def exposed(self) -> npt.NDArray[np.bool_]:
        """Which values occur inside the exposed field."""
        return (self.counts > 0) & ~self.padding


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTable:
    """A modality or VOI LUT (PS3.3 C.11.1.1, C.11.2.1.1).

    entries: [entry], at least one
    first: the value that the first entry is for, as the descriptor says it
    bits: how many an entry is said to have; whether that makes sense is not checked
    """

    entries: WordTable
    first: int
    bits: int

    @property
    def top(self) -> float:
        """The highest value an entry can have; where one exceeds the bits, the highest that it has."""
        return max(2.0**self.bits - 1, float(self.entries.max()))


def read_table(film: Dataset, item: Dataset) -> LookUpTable:
    """Read one item of a film's LUT sequence.

    film: the whole object; its encoding tells the order of the bytes in words (PS3.5 7.3)
    Raises ValueError for a LUT without a descriptor or with fewer entries than that says.
    """
    descriptor = [int(str(part)) for part in attributes.values(item, "LUTDescriptor")]
    if len(descriptor) != 3:
        raise ValueError("a LUT needs a descriptor of three values")
    count = descriptor[0] & 0xFFFF or 0x10000  # of a signed film, 65535 is read as -1
    data = attributes.values(item, "LUTData")
    if data and isinstance(data[0], bytes):
        table = _unpacked(data[0], count, order=">" if film.original_encoding[1] is False else "<")
    else:
        table = np.array([int(str(entry)) & 0xFFFF for entry in data], dtype=np.uint16)
    if table.size < count:
        raise ValueError("a LUT has fewer entries than its descriptor says")
    return LookUpTable(entries=table[:count], first=descriptor[1], bits=descriptor[2])


def _unpacked(data: bytes, count: int, *, order: str) -> WordTable:
    """Take the entries out of OW: 16-bit words, or two entries of 8 bits in each, low byte first (C.11.1.1.1)."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), f"{order}u2").astype("<u2")
    return words if len(data) >= 2 * count else words.view("u1").astype(np.uint16)


def count_levels(dataset: Dataset, indices: npt.NDArray[np.uint16], *, lowest: int, bits: int) -> Levels:
    """Count stored values; `indices` are stored values less `lowest`, the smallest value that `bits` can hold."""
    values = np.arange(lowest, lowest + 2**bits)
    return Levels(
        values=values,
        counts=np.bincount(indices.ravel(), minlength=values.size),
        padding=_padding(dataset, values),
    )


def displayed(dataset: Dataset, levels: Levels) -> FloatTable:
    """Return the displayed gray of every level, 0 black to 1 white: modality, VOI, polarity; padding is black.

    Of several VOI LUTs or windows the first holds, and a LUT before a window. A window that is absent, NaN or not
    positive is replaced by the range of the exposed values without their outermost 0.5 % at each end.
    """
    modality = _modality(dataset, levels.values)
    tables = attributes.items(dataset, "VOILUTSequence")
    if tables:
        table = read_table(dataset, tables[0])
        gray = _look_up(table, modality) / table.top
    elif (windowed := _window(dataset, modality)) is not None:
        gray = windowed
    else:
        gray = _stretch(modality, *_range(modality, levels, tail=_TAIL))
    if _is_inverted(dataset):
        gray = 1.0 - gray
    return np.where(levels.padding, 0.0, gray)


def equalized(dataset: Dataset, levels: Levels) -> FloatTable:
    """Return the gray of every level as in the pictures the published weights saw (SPEC.md 15), 0..1 in 255 steps.

    Modality values are stretched from minimum to maximum to 8 bits (cut off, as a cast does), inverted for
    MONOCHROME1, and equalized over the whole picture.
    """
    modality = _modality(dataset, levels.values)
    eight = np.floor(_stretch(modality, *_range(modality, levels, tail=0.0)) * 255).astype(np.int64)
    if _is_inverted(dataset):
        eight = 255 - eight
    eight = np.where(levels.padding, 0, eight)
    histogram = np.bincount(eight, weights=levels.counts, minlength=256).astype(np.int64)
    return _equalize(histogram)[eight] / 255.0


TABLES: dict[str, Callable[[Dataset, Levels], FloatTable]] = {"voi": displayed, "mimic_jpg": equalized}
"""The `gray` modes of a model's manifest."""


def _equalize(histogram: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the table of OpenCV's equalizeHist: the first occurring gray becomes 0, rounding is to even in float32."""
    first = int(np.flatnonzero(histogram)[0])
    rest = int(histogram.sum() - histogram[first])
    if rest == 0:
        return np.arange(256, dtype=np.int64)
    reached = np.cumsum(histogram) - histogram[: first + 1].sum()
    scaled = np.rint(reached.astype(np.float32) * (np.float32(255) / np.float32(rest)))
    table: npt.NDArray[np.int64] = np.clip(scaled, 0, 255).astype(np.int64)
    return table


def _modality(dataset: Dataset, values: npt.NDArray[np.int64]) -> FloatTable:
    """Apply the modality LUT or rescale (PS3.3 C.11.1); a slope of 0 or NaN is none."""
    tables = attributes.items(dataset, "ModalityLUTSequence")
    if tables:
        return _look_up(read_table(dataset, tables[0]), values)
    slope, intercept = attributes.number(dataset, "RescaleSlope"), attributes.number(dataset, "RescaleIntercept")
    return values.astype(np.float64) * (slope or 1.0) + (intercept or 0.0)


def _look_up(table: LookUpTable, inputs: npt.NDArray[np.int64] | FloatTable) -> FloatTable:
    """Map values through a LUT (PS3.3 C.11.1.1); those outside it take its first or last entry."""
    first = table.first
    if first >= 2**15 and inputs.min() < 0:
        first -= 2**16  # written as US although the input is signed
    indices = np.clip(np.rint(inputs) - first, 0, table.entries.size - 1).astype(np.int64)
    found: FloatTable = table.entries[indices].astype(np.float64)
    return found


def _window(dataset: Dataset, values: FloatTable) -> FloatTable | None:
    """Apply the first window (PS3.3 C.11.2.1.2 and .3); None when it is absent or cannot be used."""
    center, width = attributes.number(dataset, "WindowCenter"), attributes.number(dataset, "WindowWidth")
    function = attributes.text(dataset, "VOILUTFunction").upper()
    if center is None or width is None or width <= 0:
        return None
    if function == "SIGMOID":
        return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (values - center) / width, -700.0, 700.0)))
    if function == "LINEAR_EXACT":
        return _stretch(values, center - width / 2, center + width / 2)
    if width < 1:
        return None
    return _stretch(values, center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2)


def _stretch(values: FloatTable, low: float, high: float) -> FloatTable:
    """Map low..high to 0..1 and clip; a threshold where both are one."""
    if high <= low:
        return (values > low).astype(np.float64)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def _range(values: FloatTable, levels: Levels, *, tail: float) -> tuple[float, float]:
    """Return the lowest and highest exposed value, without a share `tail` of the pixels at each end.

    Where nearly all pixels have one value the whole range is taken.
    """
    exposed = levels.exposed
    order = np.argsort(values[exposed], kind="stable")
    rising, counts = values[exposed][order], levels.counts[exposed][order]
    reached = np.cumsum(counts) / counts.sum()
    low = float(rising[np.searchsorted(reached, tail, side="right")])
    high = float(rising[np.searchsorted(reached, 1.0 - tail, side="left")])
    return (low, high) if low < high else (float(rising[0]), float(rising[-1]))


def _is_inverted(dataset: Dataset) -> bool:
    """Say whether low values are bright: MONOCHROME1, or a presentation LUT that says so (PS3.3 C.11.6.1.2)."""
    return (
        attributes.text(dataset, "PhotometricInterpretation").upper() == "MONOCHROME1"
        or attributes.text(dataset, "PresentationLUTShape").upper() == "INVERSE"
    )


def _padding(dataset: Dataset, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the padding value or range; a value written with the other sign is read with the film's."""
    value = attributes.whole(dataset, "PixelPaddingValue")
    if value is None:
        return np.zeros(values.shape, dtype=bool)
    limit = attributes.whole(dataset, "PixelPaddingRangeLimit")
    ends = [_signed_as(end, values) for end in (value, value if limit is None else limit)]
    return (values >= min(ends)) & (values <= max(ends))


def _signed_as(value: int, values: npt.NDArray[np.int64]) -> int:
    """Read a 16-bit value as signed when the film's values are signed, as unsigned when they are not."""
    if values[0] < 0 and value >= 2**15:
        return value - 2**16
    return value + 2**16 if values[0] >= 0 and value < 0 else value
