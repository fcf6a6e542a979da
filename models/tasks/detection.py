"""Pathology detection: boxes of the classes of a data set, each with a score (SPEC.md 9.2).

All classes of a film are asked at once and see each other, as published (SPEC.md 4.2, BUG-2): without one of them the
boxes of the others differ. Films do not see each other. The post decoder takes no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models import boxes as unit_boxes
from models.answers import FloatArray
from models.chex import Chex
from models.detector import Detection
from models.phrasebook import contrast
from models.tasks.batch import Picture, as_array
from models.tasks.prompts import ClassVectors

Merge = Literal["suppress", "enclose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSettings:
    """How R boxes of a class become its detections.

    by_prompts: the score of a box says how far what it holds is from the opposite of its class
    by_weights: it is the detector's own score of the box; the product of the two where both are set
    temperature: divides the difference of cosines (SPEC.md 8); 1 is what is published as "sigmoid"
    scales: what width and height of a class's boxes are multiplied by, in class order; empty for as they are
    merge: "suppress" drops boxes that overlap a better one of their class by more than `overlap`; "enclose" leaves one
    box per class, around all of its boxes, with the best of their scores
    """

    by_prompts: bool = True
    by_weights: bool = False
    temperature: float = 1.0
    scales: tuple[float, ...] = ()
    merge: Merge = "suppress"
    overlap: float = 0.25

    def __post_init__(self) -> None:
        if not (self.by_prompts or self.by_weights):
            raise ValueError("a box must be scored by prompts, by weights, or both")
        if self.temperature <= 0:
            raise ValueError(f"temperature ({self.temperature}) must be above 0")
        if any(scale <= 0 for scale in self.scales):
            raise ValueError("scales must be above 0")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap ({self.overlap}) must lie in 0..1")


SHIPPED: Mapping[str, DetectionSettings] = {
    "vindr": DetectionSettings(by_weights=True, temperature=0.5),
    "nih8": DetectionSettings(temperature=0.1, merge="enclose"),
    "mscxr": DetectionSettings(temperature=0.1),
}
"""The published settings, by data set. The scales behind the paper's figures were never published (SPEC.md 9.2)."""


def detect(network: Chex, picture: Picture, classes: ClassVectors, settings: DetectionSettings) -> list[FloatArray]:
    """Detect classes in films; see `locate` and `detections`."""
    return detections(locate(network, picture, classes.located_by), classes, settings)


def locate(network: Chex, picture: Picture, prompts: Tensor) -> Detection:
    """Find prompts [C, dim], the same in every film."""
    patches, positions, _ = picture
    found: Detection = network.detector(patches, positions, prompts.expand(len(patches), -1, -1), group=None)
    return found


def detections(found: Detection, classes: ClassVectors, settings: DetectionSettings) -> list[FloatArray]:
    """Score and merge the boxes of C classes; may be called again with other settings.

    Returns for each film [detection, 6]: center x, center y, width, height, number of the class, score. Suppressed ones
    come best first, the first class of equals first; enclosed ones in class order. Raises ValueError where the scales
    are not one per class.
    """
    boxes, scores = as_array(found.boxes), _scores(found, classes, settings)
    if settings.scales:
        if len(settings.scales) != boxes.shape[1]:
            raise ValueError(f"{len(settings.scales)} scales do not fit {boxes.shape[1]} classes")
        factors = np.array(settings.scales, dtype=np.float32)[:, np.newaxis, np.newaxis]
        boxes = unit_boxes.clip(unit_boxes.scale(boxes, factors))
    films = zip(boxes, scores, strict=True)
    if settings.merge == "enclose":
        return [_enclosed(*film) for film in films]
    return [_suppressed(*film, overlap=settings.overlap) for film in films]


def _scores(found: Detection, classes: ClassVectors, settings: DetectionSettings) -> FloatArray:
    """Score every box: [F, C, R]."""
    weights = as_array(found.scores)
    if not settings.by_prompts:
        return weights
    likely = contrast(
        as_array(found.tokens),
        positive=as_array(classes.positive)[:, np.newaxis],
        negative=as_array(classes.negative)[:, np.newaxis],
        temperature=settings.temperature,
    )
    return likely * weights if settings.by_weights else likely


def _suppressed(boxes: FloatArray, scores: FloatArray, *, overlap: float) -> FloatArray:
    """Drop what each class has twice, of boxes [C, R, 4] with scores [C, R]; then bring all classes into one order."""
    corners = unit_boxes.to_corners(boxes)
    kept = [
        (number, box)
        for number, (found, judged) in enumerate(zip(corners, scores, strict=True))
        for box in unit_boxes.suppress(found, judged, threshold=overlap)
    ]
    best_first = np.array(sorted(kept, key=lambda place: -scores[place]), dtype=np.intp).reshape(-1, 2)
    numbers, places = best_first.T
    return _rows(boxes[numbers, places], numbers, scores[numbers, places])


def _enclosed(boxes: FloatArray, scores: FloatArray) -> FloatArray:
    """Join the boxes [C, R, 4] of each class, with scores [C, R], into one."""
    around = unit_boxes.to_center_size(unit_boxes.enclosing(unit_boxes.to_corners(boxes)))
    return _rows(around, np.arange(len(boxes)), scores.max(axis=1))


def _rows(boxes: FloatArray, numbers: NDArray[np.intp], scores: FloatArray) -> FloatArray:
    return np.column_stack([boxes, numbers, scores]).astype(np.float32)
