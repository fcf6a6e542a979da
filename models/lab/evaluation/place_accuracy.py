"""The boxes, sides and zones that a node reports for findings on patient films, and how many of them are right.

A box is right if its IoU with a true one is at least `OVERLAP`; a side or a zone is right if a true box lies there.
On a film without the finding none of them is right. A film counts if all true boxes of the finding are known, also if
there are none; a mined "No Finding" alone does not count as a film without boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from models.boxes import iou, to_box, to_corners
from models.contract import Box, PromptKind, Side, SideOf
from models.decisions import Decisions
from models.engines import FloatArray
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.request import SHARES
from models.lab.evaluation.statistics import Bootstrap, Indices
from models.lab.training.split import FOLDS, folds_of
from models.reading.decided_film import DecidedFilm
from models.reading.places import lungs, shown_boxes, side_certainty, where_possible
from node.read.framing import Framing

if TYPE_CHECKING:
    from models.lab.evaluation.evaluated_model import EvaluatedModel

OVERLAP: Final = 0.2
"""The IoU from which a box is right."""
_COUNTS: Final = tuple(dict.fromkeys(name for pair in SHARES.items() for name in reversed(pair)))
_UNIT: Final = 1000
"""Pixels of the square's side, where zones are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A reported box with its score, or a reported side or zone with the certainty of the side."""

    patient: str
    number: float
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedFilm:
    """A finding on a film; boxes are center-size, 0..1 of the square.

    true: its true boxes [n, 4]; None if they are not known
    shown: merged boxes [n, 4] within the lungs and their scores [n], without a score threshold
    certainties: the certainty of each side, from all boxes; side_of, zone_of: return the side or zone of boxes here
    """

    patient: str
    is_reported: bool
    true: FloatArray | None
    shown: tuple[FloatArray, FloatArray]
    certainties: Mapping[Side, float]
    side_of: SideOf
    zone_of: Callable[[FloatArray], str | None]

    @property
    def counted(self) -> FloatArray | None:
        """The true boxes [n, 4]; None if they are not known or the node does not report the finding."""
        return self.true if self.is_reported else None

    def drawn(self, box_score: float) -> FloatArray:
        """Return the boxes [n, 4] with at least this score."""
        boxes, scores = self.shown
        return boxes[scores >= box_score]

    def boxes(self) -> Iterator[Told]:
        """Yield each box, right from an IoU of `OVERLAP` with a true box; none on a film that does not count."""
        if self.counted is None:
            return
        corners = to_corners(self.counted.astype(np.float64))
        for box, score in zip(*self.shown, strict=True):
            overlap = iou(to_corners(box[np.newaxis].astype(np.float64)), corners).max(initial=0.0)
            yield Told(patient=self.patient, number=float(score), is_right=bool(overlap >= OVERLAP))

    def side(self, box_score: float) -> Told | None:
        """Return the side on which all drawn boxes lie; None if there is no such side, or the film does not count."""
        side = self._one_side(box_score)
        return None if side is None else self._told(side, is_right=side in self._true_sides())

    def both(self, box_score: float) -> bool | None:
        """Return whether true boxes lie on both sides; None unless drawn boxes lie on both and the film counts."""
        both = {Side.RIGHT, Side.LEFT}
        return (
            None
            if self.counted is None or not both <= self._sides(self.drawn(box_score))
            else (both <= self._true_sides())
        )

    def zone(self, box_score: float) -> Told | None:
        """Return the zone of one side with all drawn boxes; None if there is none, or the film does not count."""
        side = self._one_side(box_score)
        zone = None if side is None else self.zone_of(self.drawn(box_score))
        if side is None or zone is None or self.counted is None:
            return None
        there = {(own, self.zone_of(box[np.newaxis])) for box in self.counted for own in self._sides(box[np.newaxis])}
        return self._told(side, is_right=(side, zone) in there)

    def counts(self, box_score: float) -> dict[str, int]:
        """Return the counts of `SHARES` if boxes are drawn from this score on."""
        boxes = [told for told in self.boxes() if told.number >= box_score]
        side, both, zone = self.side(box_score), self.both(box_score), self.zone(box_score)
        return {
            "reported": self.is_reported,
            "with_box": self.is_reported and len(self.drawn(box_score)) > 0,
            "boxes": len(boxes),
            "boxes_right": sum(told.is_right for told in boxes),
            "sides": side is not None,
            "sides_right": side is not None and side.is_right,
            "both": both is not None,
            "both_right": bool(both),
            "zones": zone is not None,
            "zones_right": zone is not None and zone.is_right,
        }

    def _sides(self, boxes: FloatArray) -> set[Side | None]:
        return {self.side_of(float(x), float(width)) for x, _, width, _ in boxes}

    def _true_sides(self) -> set[Side | None]:
        return set() if self.counted is None else {self.side_of(float(x), 0.0) for x, _, _, _ in self.counted}

    def _one_side(self, box_score: float) -> Side | None:
        """Return the side on which all drawn boxes lie, as `side`."""
        sides = self._sides(self.drawn(box_score))
        return next(iter(sides)) if self.counted is not None and len(sides) == 1 else None

    def _told(self, side: Side, *, is_right: bool) -> Told:
        return Told(patient=self.patient, number=self.certainties[side], is_right=is_right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts by the names of `SHARES`, in all and for each fold; 95 % intervals of the shares, resampled by patient."""

    counts: Mapping[str, int]
    intervals: Mapping[str, Sequence[float]]
    by_fold: Sequence[Mapping[str, int]]

    def document(self) -> dict[str, object]:
        """Return counts, intervals and folds as a JSON object."""
        return {**self.counts, "intervals": self.intervals, "by_fold": self.by_fold}


def placed(model: EvaluatedModel, case: EvaluationCase) -> dict[str, PlacedFilm]:
    """Locate all findings on a film as a node does by default; returns also the unreported ones, by key."""
    from models.lab.evaluation.evaluated_model import side_of
    from node.read.findings import zone_of_boxes

    film, middle = model.decided(case)
    parts, decisions = lungs(film.prompts, film.visible), model.manifest.decisions
    by_spine, framing = partial(side_of, middle=middle), _framing(middle)
    regions = {
        prompt.key: framing.place(to_box(boxes[scores.argmax()]))
        for prompt, (boxes, scores) in zip(film.prompts, film.visible, strict=True)
        if prompt.kind is PromptKind.REGION
    }

    def zone_of(key: str, boxes: FloatArray) -> str | None:
        some: list[Box] = [framing.place(to_box(box)) for box in boxes]
        return zone_of_boxes(model.questions[key], some, regions, model.questions, framing=framing)

    return {
        prompt.key: PlacedFilm(
            patient=case.truth.patient or case.name,
            is_reported=index in film.reported,
            true=_known(case.truth, prompt.key),
            shown=_shown(film, index, parts, decisions),
            certainties=side_certainty(film.regions.boxes[0, index], film.regions.scores[0, index], side_of=by_spine),
            side_of=by_spine,
            zone_of=partial(zone_of, prompt.key),
        )
        for index, prompt in enumerate(film.prompts)
        if prompt.kind is PromptKind.PATHOLOGY
    }


def figures(films: Sequence[PlacedFilm], limits: Sequence[float], *, resamples: int) -> Figures:
    """Count reported and right boxes, sides and zones; limits: for each film the score from which a box is drawn."""
    counts = [film.counts(limit) for film, limit in zip(films, limits, strict=True)]
    table = np.array([[own[name] for name in _COUNTS] for own in counts], dtype=np.int64).reshape(-1, len(_COUNTS))
    patients = np.array([film.patient for film in films])
    folds = folds_of(patients)

    def summed(some: Indices) -> dict[str, int]:
        return dict(zip(_COUNTS, table[some].sum(axis=0).tolist(), strict=True))

    def shares(some: Indices) -> dict[str, float | None]:
        own = summed(some)
        return {part: own[part] / own[whole] if own[whole] else None for part, whole in SHARES.items()}

    return Figures(
        counts=summed(np.arange(len(films))),
        intervals=Bootstrap(resamples=resamples).intervals(shares, patients),
        by_fold=[summed(np.flatnonzero(folds == fold)) for fold in range(FOLDS)],
    )


def _shown(film: DecidedFilm, index: int, parts: FloatArray, decisions: Decisions) -> tuple[FloatArray, FloatArray]:
    boxes, scores = shown_boxes(film.regions.boxes[0, index], film.regions.scores[0, index], decisions)
    is_possible = where_possible(film.prompts[index], boxes, parts)
    return boxes[is_possible], scores[is_possible]


def _known(truth: Truth, key: str) -> FloatArray | None:
    """Return the true boxes [n, 4] of a finding; None if nobody who saw the film stated them."""
    if key in truth.boxes:
        return truth.boxes[key]
    is_seen = truth.is_normal or not truth.mined_normal
    return np.zeros((0, 4), dtype=np.float32) if key in truth.located and is_seen else None


def _framing(middle: float | None) -> Framing:
    square = Box(left=0.0, top=0.0, right=_UNIT, bottom=_UNIT)
    return Framing(columns=_UNIT, rows=_UNIT, square=square).about(middle)
