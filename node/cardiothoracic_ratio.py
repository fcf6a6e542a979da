"""The measurement on a film: the cardiothoracic ratio, its two lines, and its error.

Each type checks itself when it is made. Lines are in pixels of the *stored* film, as boxes are (`domain`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BANDS: Final = (0.50, 0.55, 0.60)
"""Where a band of the ratio ends and the next begins."""


class View(StrEnum):
    """The projection of a frontal film, as its header names it."""

    PA = "PA"
    AP = "AP"


class Incomparable(StrEnum):
    """Why a ratio has no band: bands are for adults in a PA view, by a model that was measured on such films."""

    VIEW_UNKNOWN = "view_unknown"
    VIEW_AP = "view_ap"
    AGE_UNKNOWN = "age_unknown"
    CHILD = "child"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLine:
    """A line along the rows or along the columns of a film, from the lower coordinate to the higher.

    start, end: column and row
    """

    start: tuple[float, float]
    end: tuple[float, float]

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (*self.start, *self.end))):
            raise ValueError(f"a line needs finite ends, got {self.start} and {self.end}")
        steps = [end - start for start, end in zip(self.start, self.end, strict=True)]
        if min(steps) != 0 or max(steps) <= 0:
            raise ValueError(f"a line must lie along rows or columns and not be empty, got {self.start} to {self.end}")

    @property
    def is_vertical(self) -> bool:
        """Whether the line lies along the columns: the film is stored lying on its side."""
        return self.start[0] == self.end[0]

    @property
    def length(self) -> float:
        """The length in pixels."""
        return max(self.end[0] - self.start[0], self.end[1] - self.start[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredError:
    """How far the model's ratio was off on films whose true ratio is known.

    measured_on: the population of the films; films: how many of them had a ratio
    mean_absolute: mean absolute error; lower, upper: 95 % limits of agreement
    """

    measured_on: str
    films: int
    mean_absolute: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardiothoracicRatio:
    """The width of the heart by the inner width of the thorax, both along the patient's left-right axis.

    heart, thorax: the lines that were measured. Both lie along one axis of the film, so pixel spacing cancels out
    view: None if the header names none
    objection: why the ratio has no band
    mm_per_pixel: along the lines, if the header gives a calibrated spacing
    error: None if nobody measured it
    """

    heart: MeasuredLine
    thorax: MeasuredLine
    view: View | None = None
    objection: Incomparable | None = Incomparable.VIEW_UNKNOWN
    mm_per_pixel: float | None = None
    error: MeasuredError | None = None

    def __post_init__(self) -> None:
        if self.heart.is_vertical != self.thorax.is_vertical:
            raise ValueError("the widths of heart and thorax must be measured along one axis")
        if self.heart.length >= self.thorax.length:
            raise ValueError(f"a heart of {self.heart.length} pixels fits in no thorax of {self.thorax.length}")
        if self.mm_per_pixel is not None and not 0 < self.mm_per_pixel < math.inf:
            raise ValueError(f"mm_per_pixel ({self.mm_per_pixel}) must be above 0 and finite")
        if self.objection is None and self.view is not View.PA:
            raise ValueError("only in a PA view a ratio can be compared")

    @property
    def value(self) -> float:
        """The ratio, above 0 and below 1."""
        return self.heart.length / self.thorax.length

    @property
    def hundredths(self) -> int:
        """The ratio as people read it: in hundredths, rounded, with halves rounded up."""
        return math.floor(100 * self.value + 0.5)

    @property
    def band(self) -> int | None:
        """How many of `BANDS` the ratio reaches as people read it; None if it cannot be compared."""
        return None if self.objection else sum(self.hundredths >= round(100 * limit) for limit in BANDS)

    def millimeters(self, line: MeasuredLine) -> float | None:
        """Return the length of a line in mm; None without a calibrated spacing."""
        return None if self.mm_per_pixel is None else line.length * self.mm_per_pixel
