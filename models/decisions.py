"""The decision values of a manifest: thresholds, the films they were measured on, and the other cut-offs.

And the measured error of what is no decision: the cardiothoracic ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.bounds import require_positive, require_unit

PHANTOMS = "phantoms"
"""The population of films that a program draws; every other population is of real films."""
LEFT_OUT: Final = 1.0
"""The threshold, in a manifest, of a finding that is left out: absent whatever its probability."""


Numbers = TypeVar("Numbers", NDArray[np.float32], NDArray[np.float64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The band of probabilities in which a finding is to be reviewed, up to its threshold, as films showed it.

    lower: the probability from which it is not absent
    below, missed: the films below the band, and how many of them show the finding
    within, shown: the films in the band, and how many of them show it
    normal: the share of the films without any finding that lie in it; None if it was not counted
    """

    lower: float
    below: int
    missed: int
    within: int
    shown: int
    normal: float | None = None

    def __post_init__(self) -> None:
        require_unit(self, "lower")
        if self.normal is not None:
            require_unit(self, "normal")
        if not 0 <= self.missed <= self.below or not 0 <= self.shown <= self.within:
            raise ValueError("missed and shown are counts of the films below and within; correct them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The films on which a finding's threshold was measured: their population, and how many show the finding or not.

    band: None where it was not measured; then `Decisions.review_band` is its width
    threshold: the measured one, where a person has set another since; its band was measured below it. Else None
    """

    measured_on: str
    positives: int
    negatives: int
    band: Band | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if not self.measured_on.strip():
            raise ValueError("measured_on must name the population of the films")
        require_positive(self, "positives", "negatives")
        if self.threshold is not None:
            require_unit(self, "threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomThreshold:
    """The threshold of a finding on phantoms, whose other threshold is for real films; counts of phantoms.

    band: as in a `Measurement`
    """

    threshold: float
    positives: int
    negatives: int
    band: Band | None = None

    def __post_init__(self) -> None:
        require_unit(self, "threshold")
        require_positive(self, "positives", "negatives")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """The logistic curve by which a difference of cosines is the probability of a finding on films of people.

    slope: above 0, so that no order changes; offset: the logit at a difference of 0
    """

    slope: float
    offset: float

    def __post_init__(self) -> None:
        require_positive(self, "slope")
        if not np.isfinite(self.offset):
            raise ValueError(f"offset ({self.offset}) must be finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRule:
    """From which score a box of a finding is drawn, or from which certainty its side is named, on patient films.

    measured_on: the population of the films; least: the score of the box, or the certainty of the side, 0..1
    told, right: on films of patients on whose films it was not chosen: how often it was told, and how often right
    """

    measured_on: str
    least: float
    told: int
    right: int

    def __post_init__(self) -> None:
        if not self.measured_on.strip() or self.measured_on == PHANTOMS:
            raise ValueError("measured_on must name a population of films of people")
        require_unit(self, "least")
        if not 0 <= self.right <= self.told:
            raise ValueError("right is a count of what was told; correct both")


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioError:
    """How far the cardiothoracic ratio was off on films whose true ratio is known.

    measured_on: the population of the films; films: how many of them had a ratio
    bias: the mean error; lower, upper: the limits of agreement, between which 95 % of normally distributed errors lie
    """

    measured_on: str
    films: int
    mean_absolute_error: float
    bias: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.measured_on.strip():
            raise ValueError("measured_on must name the population of the films")
        require_positive(self, "films")
        require_unit(self, "mean_absolute_error")
        if not -1 <= self.lower <= self.bias <= self.upper <= 1:
            raise ValueError(f"bias ({self.bias}) must lie between lower ({self.lower}) and upper ({self.upper})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdChange:
    """A finding's threshold that was chosen again, and why; at: when, UTC in ISO 8601; by: a person."""

    finding: str
    before: float
    after: float
    reason: str
    by: str
    at: str

    def __post_init__(self) -> None:
        require_unit(self, "before", "after")
        for key in ("finding", "reason", "by"):
            if not getattr(self, key).strip():
                raise ValueError(f"{key} must not be blank")
        datetime.fromisoformat(self.at)

    @property
    def described(self) -> str:
        """A change of a threshold: time, person and reason."""
        return f"{self.finding} {self.before:g} to {self.after:g}, {self.at}, {self.by}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """How scores become answers (design §5); `models.reading.decision` applies them.

    temperature: divides the difference of cosines to the positive and the negative prompt (spec §8)
    readout: of findings on films of people, by prompt key, instead of the temperature
    thresholds: probability from which a finding is present, by prompt key; `default_threshold` for every other key;
    `LEFT_OUT` for a finding that is left out
    measurements: where thresholds come from, by prompt key; a threshold without a measurement was never measured
    phantoms: thresholds on phantoms, by prompt key, of findings whose threshold in `thresholds` is for real films
    review_band: width of the band below a threshold in which a finding is indeterminate, where none was measured
    box_threshold: score from which a box is reported
    region_threshold: positiveness above which a region's sentence is kept (spec §9.1.4)
    merge_overlap: overlap (IoU) above which two reported boxes of one prompt are merged; 1 merges none, as published
    most_boxes: the most boxes that are reported for one prompt, the best ones; None for all, as published
    boxes, sides: of findings on films of people, by prompt key (`models.reading.places`); if both are empty, a finding
    has its best box whatever its score, and the side of its boxes, as published
    """

    temperature: float
    default_threshold: float
    thresholds: Mapping[str, float] = field(default_factory=dict)
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    phantoms: Mapping[str, PhantomThreshold] = field(default_factory=dict)
    review_band: float
    box_threshold: float
    region_threshold: float
    merge_overlap: float = 1.0
    most_boxes: int | None = None
    boxes: Mapping[str, PlaceRule] = field(default_factory=dict)
    sides: Mapping[str, PlaceRule] = field(default_factory=dict)
    readout: Mapping[str, Readout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_positive(self, "temperature")
        require_unit(self, "default_threshold", "review_band", "box_threshold", "region_threshold", "merge_overlap")
        if self.most_boxes is not None:
            require_positive(self, "most_boxes")
        for key, threshold in self.thresholds.items():
            if not 0 <= threshold <= 1:
                raise ValueError(f"thresholds.{key} ({threshold}) must lie in 0..1")
        for key in self.measurements:
            if key not in self.thresholds:
                raise ValueError(f"measurements.{key} belongs to no threshold; add thresholds.{key} or remove it")
        for key in self.readout:
            if not self.is_of_people(key):
                raise ValueError(f"readout.{key} needs measurements.{key} on films of people; add it or remove this")
        for key in self.phantoms:
            if key not in self.measurements or not (self.is_of_people(key) or self.leaves_out(key)):
                raise ValueError(
                    f"phantoms.{key} needs measurements.{key}, on real films or with thresholds.{key} = {LEFT_OUT}; "
                    "add it or remove this"
                )
        for table, bands in (
            (
                "measurements",
                {key: (own.band, self._measured_threshold(key)) for key, own in self.measurements.items()},
            ),
            ("phantoms", {key: (own.band, own.threshold) for key, own in self.phantoms.items()}),
        ):
            for key, (band, threshold) in bands.items():
                if band is not None and threshold == LEFT_OUT:
                    raise ValueError(f"{table}.{key}.band belongs to a finding that is left out; remove it")
                if band is not None and band.lower > threshold:
                    raise ValueError(f"{table}.{key}.band.lower ({band.lower}) must not be above the threshold")

    def on_phantoms(self) -> Decisions:
        """Return the decisions for phantoms: their thresholds, and neither a readout nor a rule of places."""
        return replace(
            self,
            thresholds=dict(self.thresholds) | {key: own.threshold for key, own in self.phantoms.items()},
            measurements=dict(self.measurements)
            | {
                key: Measurement(measured_on=PHANTOMS, positives=own.positives, negatives=own.negatives, band=own.band)
                for key, own in self.phantoms.items()
            },
            phantoms={},
            boxes={},
            sides={},
            readout={},
        )

    def probability(self, key: str | None, differences: Numbers) -> Numbers:
        """Return the probabilities of a prompt, by its readout or else by spec §8: those that all outputs have.

        key: of the prompt in the prompt set; None for other words
        differences: of the cosines of features to the prompt and to its opposite
        """
        own = None if key is None else self.readout.get(key)
        return sigmoid(differences / self.temperature if own is None else own.slope * differences + own.offset)

    def measured(
        self, key: str, threshold: float, measurement: Measurement, *, readout: Readout | None = None
    ) -> Decisions:
        """Return the decisions with a new threshold of a finding; readout: that it was chosen with, on real films.

        One on real films goes before one on phantoms, and each replaces only its like.
        """
        phantoms = dict(self.phantoms)
        if measurement.measured_on == PHANTOMS:
            if self.is_of_people(key):
                return replace(self, phantoms=phantoms | {key: _on_phantoms(threshold, measurement)})
            phantoms.pop(key, None)
        elif key in self.measurements and key not in phantoms and not self.is_of_people(key):
            phantoms[key] = _on_phantoms(self._measured_threshold(key), self.measurements[key])
        return replace(
            self,
            thresholds=dict(self.thresholds) | {key: threshold},
            measurements=dict(self.measurements) | {key: measurement},
            phantoms=phantoms,
            readout={other: own for other, own in self.readout.items() if other != key}
            | ({} if readout is None else {key: readout}),
        )

    def leaving_out(self, key: str) -> Decisions:
        """Return the decisions without a finding on real films, unless its threshold was measured on them."""
        if self.is_of_people(key):
            return self
        measurement = self.measurements[key]
        return replace(
            self,
            thresholds=dict(self.thresholds) | {key: LEFT_OUT},
            measurements=dict(self.measurements) | {key: replace(measurement, band=None, threshold=None)},
            phantoms=dict(self.phantoms) | {key: _on_phantoms(self._measured_threshold(key), measurement)},
        )

    def set_by_hand(self, key: str, threshold: float) -> Decisions:
        """Return the decisions with a finding's threshold as a person wants it; what was measured of it stays.

        The review of a finding begins where it began, or at the new threshold if that is lower: what was present and is
        not any more is to be reviewed. A finding that was never measured stays so.
        Raises ValueError if it was measured on phantoms alone and is left out on real films.
        """
        if key in self.phantoms and not self.is_of_people(key):
            raise ValueError(f"{key} is left out, and was measured on phantoms alone; calibrate it on films of people")
        measurements = dict(self.measurements)
        if measurement := measurements.get(key):
            measured = self._measured_threshold(key)
            measurements[key] = replace(measurement, threshold=None if threshold == measured else measured)
        return replace(self, thresholds=dict(self.thresholds) | {key: threshold}, measurements=measurements)

    def _measured_threshold(self, key: str) -> float:
        measured = self.measurements[key].threshold
        return self.thresholds[key] if measured is None else measured

    def is_of_people(self, key: str) -> bool:
        """Return whether the threshold of a finding was measured on films of people."""
        measurement = self.measurements.get(key)
        return measurement is not None and measurement.measured_on != PHANTOMS

    def threshold(self, key: str) -> float:
        """Return the probability from which the finding of a prompt is present."""
        return self.thresholds.get(key, self.default_threshold)

    def box_score(self, key: str) -> float:
        """Return the score from which a box of a finding is drawn on films of people that have rules of places."""
        return self.boxes[key].least if key in self.boxes else self.box_threshold

    @property
    def left_out(self) -> tuple[str, ...]:
        """The keys of the findings that are left out."""
        return tuple(filter(self.leaves_out, self.thresholds))

    def leaves_out(self, key: str) -> bool:
        """Return whether the finding of a prompt is left out: neither present nor indeterminate at any probability."""
        return self.threshold(key) == LEFT_OUT

    @property
    def measured_keys(self) -> tuple[str, ...]:
        """The findings with a measured threshold that are not left out."""
        return tuple(key for key in self.measurements if not self.leaves_out(key))

    def lower(self, key: str | None) -> float:
        """Return the probability from which the finding of a prompt is not absent; key: None for other words."""
        if key is None:
            return self.default_threshold - self.review_band
        measurement = self.measurements.get(key)
        if measurement is not None and measurement.band is not None:
            return min(measurement.band.lower, self.threshold(key))
        measured = self.threshold(key) if measurement is None else self._measured_threshold(key)
        return min(measured, self.threshold(key)) - self.review_band


def sigmoid(logits: Numbers) -> Numbers:
    """Return the probabilities of logits, without overflow."""
    return np.add(0.5, 0.5 * np.tanh(logits / 2), dtype=logits.dtype)


def _on_phantoms(threshold: float, measurement: Measurement) -> PhantomThreshold:
    return PhantomThreshold(
        threshold=threshold,
        positives=measurement.positives,
        negatives=measurement.negatives,
        band=measurement.band,
    )
