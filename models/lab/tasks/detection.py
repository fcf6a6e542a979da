"""Pathology detection: boxes of the classes of a data set, each with a score (spec §9.2).

All classes of a film are queried together and see each other, as published (spec §4.2, BUG-2): leaving one out
changes the boxes of the others. Films do not affect each other. The post decoder is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.tasks.batch import Picture, as_array
from models.lab.tasks.prompts import ClassVectors
from models.network.chex import Chex
from models.network.detector import Detection
from models.reading.phrasebook import contrast

Merge = Literal["suppress", "enclose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSettings:
    """How R boxes of a class become its detections.

    by_prompts: score a box by comparing its content with the class and its opposite
    by_weights: score it by the detector's own score; the product of the two if both are set
    temperature: divides the difference of cosines (spec §8); 1 is what is published as "sigmoid"
    scales: factors for width and height of a class's boxes, in class order; empty leaves them unchanged
    merge: "suppress" drops boxes that overlap a better one of their class by more than `overlap`; "enclose" joins all
    boxes of a class into one, with the best of their scores
    """

    by_prompts: bool = True
    by_weights: bool = False
    temperature: float = 1.0
    scales: tuple[float, ...] = ()
    merge: Merge = "suppress"
    overlap: float = 0.25


SHIPPED: Mapping[str, DetectionSettings] = {
    "vindr": DetectionSettings(by_weights=True, temperature=0.5),
    "nih8": DetectionSettings(temperature=0.1, merge="enclose"),
    "mscxr": DetectionSettings(temperature=0.1),
}
"""The published settings, by data set. The scales behind the paper's figures were never published (spec §9.2)."""


def locate(network: Chex, picture: Picture, prompts: Tensor) -> Detection:
    """Locate prompts [C, dim], the same for every film."""
    patches, positions, _ = picture
    found: Detection = network.detector(patches, positions, prompts.expand(len(patches), -1, -1), group=None)
    return found


def detections(found: Detection, classes: ClassVectors, settings: DetectionSettings) -> list[FloatArray]:
    """Score and merge the boxes of C classes; may be called again with other settings.

    Returns for each film [detection, 6]: center x, center y, width, height, number of the class, score. With "suppress"
    the best come first, among equals the first class first; with "enclose" they are in class order.
    """
    boxes, scores = as_array(found.boxes), _scores(found, classes, settings)
    if settings.scales:
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
    """Remove duplicates within each class, of boxes [C, R, 4] with scores [C, R]; then sort all classes together."""
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
