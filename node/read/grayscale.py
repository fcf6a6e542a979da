"""Map stored pixel values to displayed gray: the DICOM grayscale pipeline as a table (PS3.4 N.2).

A film has at most 65536 different stored values. So every step (modality LUT, VOI LUT or window, inversion, padding)
works on a table of the possible values and their counts, and the picture is looked up once at the end.

A header may ask for gray values that nobody could read: a window beside the values, a table of 12 bits that declares
16. A network then finds nothing, and the report would say so. So `legible` measures the picture that a header asks for,
and everything that reads or shows a film uses the header that it returns.

The table look-up is not pydicom's: `apply_voi` 3.0.2 keeps the index in the type of the *output*, so that an 8-bit LUT
over 12-bit values wraps around, and `apply_modality_lut` accepts no 12-bit LUT. The windows are not pydicom's because
those refuse or propagate a NaN, and return the stored range instead of 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from node.dicom.grayscale_header import GrayscaleHeader, LookUpTable, UnusableTable

FloatTable = npt.NDArray[np.float64]

_TAIL = 0.005
"""Share of pixels ignored at each end if a film has no window: markers and collimation must not set the contrast."""

_COUNTED_AT_ONCE = 2**18

_SAMPLED = 256
"""About so many rows and columns of the analyzed square are measured."""
_LEAST_GRAYS, _LEAST_SPAN = 16, 48
"""A picture of fewer of 256 grays, or of grays that lie closer together, cannot be read by a person."""
_LEAST_SHOWN = 0.5
"""Minimum share of the visible range that must have a gray other than black and white."""
_BLACK, _WHITE = 4, 251
_BACKGROUND = 1 / 16
"""The share of the range at each end that may be black or white: background and collimation, markers and bones."""
_LEAST_FOREGROUND = 0.5
"""If less than this share of what is not background lies between, the stored values themselves are clipped."""

_MOST_HIDDEN, _MOST_HIDDEN_INSIDE = 0.5, 0.1
"""Shares of the analyzed square: a padding range that hides as much, or more inside the exposed field, is ignored."""
_MARK = 50
"""Structures smaller than this part of the square's side, such as letters, are no part of the exposed field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The stored values of one film.

    values: [level], every value that the declared bits can hold, in steps of 1
    padding: [level], whether the value marks pixels outside the exposed field (PS3.3 C.7.5.1.1.2)
    is_padding_ignored: whether the header's padding range would hide much of the film, so that `padding` marks nothing
    indices: [row, column], the place of each pixel's value in `values`
    count: counts the pixels lazily; a film with a window needs no counts
    """

    values: npt.NDArray[np.int64]
    padding: npt.NDArray[np.bool_]
    is_padding_ignored: bool
    indices: npt.NDArray[np.uint16]
    count: Callable[[], npt.NDArray[np.int64]]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many pixels have the value: [level]."""
        return self.count()

    @property
    def is_blank(self) -> bool:
        """Whether the analyzed square has one value, ignoring the outermost 0.5 % of pixels at each end, or none."""
        counts = self.analyzed
        return not counts.any() or _tails(counts)[0] == _tails(counts)[1]

    @property
    def analyzed(self) -> npt.NDArray[np.int64]:
        """How many exposed pixels of the analyzed square have the value, in a sample of its pixels: [level]."""
        sample = _sample(self.indices)
        return np.where(self.padding, 0, np.bincount(sample.ravel(), minlength=self.values.size))

    @property
    def exposed(self) -> npt.NDArray[np.bool_]:
        """Which values occur inside the exposed field."""
        return (self.counts > 0) & ~self.padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """How a film is shown that has no VOI LUT and no window, or none by which a person could read it.

    window: LINEAR_EXACT (PS3.3 C.11.2.1.3.2), of modality values, or of stored values if not `has_modality`
    is_inverted: whether low values are bright
    """

    window: Window
    is_inverted: bool
    has_modality: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which modality values are shown from black to white: center and width."""

    center: float
    width: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.center) and math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"a window needs a finite center and a positive width, got {self.center}, {self.width}")


def levels_of(header: GrayscaleHeader, indices: npt.NDArray[np.uint16], *, lowest: int, bits: int) -> Levels:
    """Return the stored values; `indices` are those minus `lowest`, the smallest value that `bits` can hold."""
    values = np.arange(lowest, lowest + 2**bits)

    @cache
    def count() -> npt.NDArray[np.int64]:
        flat, counts = indices.ravel(), np.zeros(values.size, dtype=np.int64)
        for first in range(0, flat.size, _COUNTED_AT_ONCE):  # `bincount` copies its input to 64 bits
            counts += np.bincount(flat[first : first + _COUNTED_AT_ONCE], minlength=values.size)
        return counts

    padding = _padding(header, values)
    is_ignored = header.pixel_padding_range_limit is not None and _hides_film(padding, _sample(indices))
    padding &= not is_ignored
    return Levels(values=values, padding=padding, is_padding_ignored=is_ignored, indices=indices, count=count)


def legible(header: GrayscaleHeader, levels: Levels) -> GrayscaleHeader | None:
    """Return the header with which a person can read a film: its own, or one that is stretched; None if nobody can.

    A stretched header has no VOI LUT and no window, so that `displayed` uses the range of the exposed values; if that
    cannot be read either, it has no modality LUT, slope and intercept. What was bright stays bright. A window that
    cannot be used is stretched, too: a viewer may try to use it.
    Raises ValueError for a LUT that cannot be used.
    """
    own, counts = displayed(header, levels), levels.analyzed
    is_window_unusable = header.voi_lut is None and header.has_window and usable_window(header) is None
    if _is_legible(own, counts) and not is_window_unusable:
        return header
    without_voi = replace(header, voi_lut=None, window_center=None, window_width=None)
    stored = replace(without_voi, modality_lut=None, rescale_slope=None, rescale_intercept=None)
    for stretched in (without_voi, stored):
        gray = displayed(stretched, levels)
        if _is_legible(gray, counts):
            return replace(stretched, is_inverted=stretched.is_inverted != _is_negative(own, gray, counts))
    return None


def has_outliers(header: GrayscaleHeader, levels: Levels) -> bool:
    """Whether a few pixels are so bright or dark that the others could not be read between minimum and maximum."""
    modality = _modality(header, levels.values)
    return not _is_legible(_stretch(modality, *_range(modality, levels, tail=0.0)), levels.analyzed)


def displayed(header: GrayscaleHeader, levels: Levels) -> FloatTable:
    """Return the displayed gray of every level, 0 black to 1 white: modality, VOI, polarity; padding is black.

    Uses the first of several VOI LUTs or windows, and a LUT rather than a window. A window that is absent, NaN or not
    positive is replaced by the range of the exposed values without the outermost 0.5 % of pixels at each end.
    Raises ValueError for a LUT that cannot be used.
    """
    modality = _modality(header, levels.values)
    if header.voi_lut is not None:
        table = _usable(header.voi_lut)
        gray = _look_up(table, modality) / table.top
    elif (window := usable_window(header)) is not None:
        gray = through_window(modality, window, function=header.voi_lut_function)
    else:
        gray = _stretch(modality, *_range(modality, levels, tail=_TAIL))
    if header.is_inverted:
        gray = 1.0 - gray
    return np.where(levels.padding, 0.0, gray)


def equalized(header: GrayscaleHeader, levels: Levels) -> FloatTable:
    """Return the gray of every level as in the published weights' training pictures (spec §15), 0..1 in 255 steps.

    Stretches modality values from minimum to maximum to 8 bits (rounded down, like a cast), inverts them for
    MONOCHROME1, and equalizes the histogram of the whole picture. If outliers would leave few grays to the others,
    ignores the outermost 0.5 % of pixels at each end.
    """
    modality = _modality(header, levels.values)
    tail = _TAIL if has_outliers(header, levels) else 0.0
    eight = np.floor(_stretch(modality, *_range(modality, levels, tail=tail)) * 255).astype(np.int64)
    if header.is_inverted:
        eight = 255 - eight
    eight = np.where(levels.padding, 0, eight)
    histogram = np.bincount(eight, weights=levels.counts, minlength=256).astype(np.int64)
    return _equalize(histogram)[eight] / 255.0


def usable_window(header: GrayscaleHeader) -> Window | None:
    """Return the first window, if it has a width that its function allows (PS3.3 C.11.2.1.2 and .3)."""
    center, width = header.window_center, header.window_width
    if center is None or width is None:
        return None
    is_usable = width > 0 if header.voi_lut_function in ("SIGMOID", "LINEAR_EXACT") else width >= 1
    return Window(center=center, width=width) if is_usable else None


def through_window(values: FloatTable, window: Window, *, function: str) -> FloatTable:
    """Return the gray of modality values in a window that can be used (PS3.3 C.11.2.1.2 and .3), 0 black to 1 white.

    function: LINEAR_EXACT, SIGMOID, or any other for LINEAR
    """
    center, width = window.center, window.width
    if function == "SIGMOID":
        with np.errstate(over="ignore"):  # a very narrow window is a threshold
            return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (values - center) / width, -700.0, 700.0)))
    if function == "LINEAR_EXACT":
        return _stretch(values, center - width / 2, center + width / 2)
    return _stretch(values, center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2)


def window_of(header: GrayscaleHeader, levels: Levels) -> Window:
    """Return the window with which `displayed` shows a film; for a VOI LUT, the range of values that it distinguishes.

    Raises ValueError for a LUT that cannot be used.
    """
    window = usable_window(header) if header.voi_lut is None else None
    if window is not None:
        return window
    low, high = _range(_modality(header, levels.values), levels, tail=_TAIL)
    return Window(center=(low + high) / 2, width=high - low or 1.0)


def windowed(header: GrayscaleHeader, levels: Levels, window: Window, *, is_inverted: bool = False) -> FloatTable:
    """Return the gray of every level in another window (LINEAR_EXACT, PS3.3 C.11.2.1.3.2); otherwise as `displayed`.

    is_inverted: whether black and white are exchanged
    Raises ValueError for a LUT that cannot be used.
    """
    gray = through_window(_modality(header, levels.values), window, function="LINEAR_EXACT")
    if header.is_inverted != is_inverted:
        gray = 1.0 - gray
    return np.where(levels.padding, 0.0, gray)


EQUALIZED: Final = "mimic_jpg"
TABLES: dict[str, Callable[[GrayscaleHeader, Levels], FloatTable]] = {"voi": displayed, EQUALIZED: equalized}
"""The `gray` modes of a model's manifest."""


def _is_legible(gray: FloatTable, counts: npt.NDArray[np.int64]) -> bool:
    """Return whether a person can read a picture: it has grays, they lie apart, and it is not mostly black and white.

    gray: [level], 0..1, of the picture; counts: [level], of the pixels that are measured
    What the whole range of values would show at its ends may be black or white.
    """
    if not np.isfinite(gray).all():
        return False
    eight = np.rint(gray * 255).astype(np.int64)
    histogram = np.bincount(eight, weights=counts, minlength=256).astype(np.int64)
    low, high = _tails(histogram)
    is_shown = (eight >= _BLACK) & (eight <= _WHITE)
    foreground = _foreground(counts)
    return bool(
        np.count_nonzero(histogram[low : high + 1]) >= _LEAST_GRAYS
        and high - low >= _LEAST_SPAN
        and foreground[is_shown].sum() >= _LEAST_SHOWN * foreground.sum()
    )


def _foreground(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Leave out the pixels near both ends of the range of stored values, unless the values are clipped: [level].

    Then few are left beside the end that most pixels are near, which is background.
    """
    low, high = _tails(counts)
    position = (np.arange(counts.size) - low) / max(high - low, 1)
    dark, bright = counts[position <= _BACKGROUND].sum(), counts[position >= 1 - _BACKGROUND].sum()
    foreground = np.where((position > _BACKGROUND) & (position < 1 - _BACKGROUND), counts, 0)
    is_clipped = foreground.sum() <= _LEAST_FOREGROUND * (counts.sum() - max(dark, bright))
    return counts if is_clipped else foreground


def _tails(counts: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the first and last place, ignoring the outermost 0.5 % of what is counted at each end."""
    reached = np.cumsum(counts) / counts.sum()
    return int(np.searchsorted(reached, _TAIL, side="right")), int(np.searchsorted(reached, 1 - _TAIL, side="left"))


def _is_negative(own: FloatTable, stretched: FloatTable, counts: npt.NDArray[np.int64]) -> bool:
    """Return whether a stretch inverts the header's display; never for a header that shows one gray."""
    finite = np.nan_to_num(own)
    difference = finite - finite[np.flatnonzero(counts)[0]]
    return float((counts * difference * (stretched - np.average(stretched, weights=counts))).sum()) < 0


def _equalize(histogram: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the table of OpenCV's equalizeHist: the first gray that occurs becomes 0; float32, half to even."""
    first = int(np.flatnonzero(histogram)[0])
    rest = int(histogram.sum() - histogram[first])
    if rest == 0:
        return np.arange(256, dtype=np.int64)
    reached = np.cumsum(histogram) - histogram[: first + 1].sum()
    scaled = np.rint(reached.astype(np.float32) * (np.float32(255) / np.float32(rest)))
    table: npt.NDArray[np.int64] = np.clip(scaled, 0, 255).astype(np.int64)
    return table


def _modality(header: GrayscaleHeader, values: npt.NDArray[np.int64]) -> FloatTable:
    """Apply the modality LUT, or else slope and intercept (PS3.3 C.11.1); a slope of 0 or NaN is ignored."""
    if header.modality_lut is not None:
        return _look_up(_usable(header.modality_lut), values)
    with np.errstate(over="ignore"):  # an absurd slope
        return values.astype(np.float64) * (header.rescale_slope or 1.0) + (header.rescale_intercept or 0.0)


def _usable(table: LookUpTable | UnusableTable) -> LookUpTable:
    """Return a LUT. Raises ValueError for an unusable LUT, because a film must not be shown without its LUT."""
    if isinstance(table, UnusableTable):
        raise ValueError(table.reason)
    return table


def _look_up(table: LookUpTable, inputs: npt.NDArray[np.int64] | FloatTable) -> FloatTable:
    """Map values through a LUT (PS3.3 C.11.1.1); values outside its range get its first or last entry."""
    first = table.first
    if first >= 2**15 and inputs.min() < 0:
        first -= 2**16  # encoded as US although the input is signed
    indices = np.clip(np.rint(inputs) - first, 0, table.entries.size - 1).astype(np.int64)
    found: FloatTable = table.entries[indices].astype(np.float64)
    return found


def _stretch(values: FloatTable, low: float, high: float) -> FloatTable:
    """Map low..high to 0..1 and clip; if low and high are equal, apply a threshold."""
    if high <= low:
        return (values > low).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # so is a very narrow range; an absurd slope is infinite
        return np.clip((values - low) / (high - low), 0.0, 1.0)


def _range(values: FloatTable, levels: Levels, *, tail: float) -> tuple[float, float]:
    """Return the lowest and highest exposed value, ignoring a share `tail` of the pixels at each end.

    If nearly all pixels have the same value, returns the whole range.
    """
    exposed = levels.exposed
    order = np.argsort(values[exposed], kind="stable")
    rising, counts = values[exposed][order], levels.counts[exposed][order]
    reached = np.cumsum(counts) / counts.sum()
    low = float(rising[np.searchsorted(reached, tail, side="right")])
    high = float(rising[np.searchsorted(reached, 1.0 - tail, side="left")])
    return (low, high) if low < high else (float(rising[0]), float(rising[-1]))


def _padding(header: GrayscaleHeader, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the padding value or range; a value encoded with the wrong sign is converted to the sign of the film."""
    value, limit = header.pixel_padding_value, header.pixel_padding_range_limit
    if value is None:
        return np.zeros(values.shape, dtype=bool)
    ends = [_signed_as(end, values) for end in (value, value if limit is None else limit)]
    return (values >= min(ends)) & (values <= max(ends))


def _sample(indices: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Return some of the pixels of the analyzed square: [row, column].

    It is the largest central square, in whatever way a model resizes it.
    """
    rows, columns = indices.shape
    side = min(rows, columns)
    top, left, stride = (rows - side) // 2, (columns - side) // 2, max(1, side // _SAMPLED)
    return indices[top : top + side : stride, left : left + side : stride]


def _hides_film(padding: npt.NDArray[np.bool_], sample: npt.NDArray[np.uint16]) -> bool:
    """Return whether a padding range hides more than the surround of the exposed field.

    padding: [level]; sample: [row, column], of the analyzed square
    The field is the smallest convex region with all that is shown and the middle of the square. Lungs are as dark as
    the surround and may touch the edge, so a fill from there would take them for surround. Of one value that occurs
    nothing could be seen.
    """
    hidden = padding[sample]
    if np.unique(sample[hidden]).size <= 1:
        return False
    side = hidden.shape[0]
    mark = np.ones((max(1, side // _MARK),) * 2, np.uint8)
    shown = cv2.erode((~hidden).astype(np.uint8), mark, borderValue=1)
    shown[side // 4 : side - side // 4, side // 4 : side - side // 4] = 1
    field = cv2.fillConvexPoly(np.zeros_like(shown), cv2.convexHull(cv2.findNonZero(shown)), 1)
    return bool(hidden.mean() >= _MOST_HIDDEN or (hidden & (field > 0)).mean() > _MOST_HIDDEN_INSIDE)


def _signed_as(value: int, values: npt.NDArray[np.int64]) -> int:
    """Convert a 16-bit value to signed if the film's values are signed, else to unsigned."""
    if values[0] < 0 and value >= 2**15:
        return value - 2**16
    return value + 2**16 if values[0] >= 0 and value < 0 else value
