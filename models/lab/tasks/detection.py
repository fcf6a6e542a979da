"""Boxes of the classes of a data set (pathology detection, spec §9.2), and of sentences (grounding, spec §9.3).

All prompts of a film are queried together and see each other, as published (spec §4.2, BUG-2): leaving a class out
changes the boxes of the others. Sentences also see the padding of the others: their boxes depend on how far other films
of the batch lengthen their row. Ground films one by one if results must not depend on the batch. The post decoder is
not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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
OVERLAP: Final = 0.25
"""The published overlap from which the worse one of two boxes is removed."""


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
    overlap: float = OVERLAP


SHIPPED: Mapping[str, DetectionSettings] = {
    "vindr": DetectionSettings(by_weights=True, temperature=0.5),
    "nih8": DetectionSettings(temperature=0.1, merge="enclose"),
    "mscxr": DetectionSettings(temperature=0.1),
}
"""The published settings, by data set. The scales behind the paper's figures were never published (spec §9.2)."""


def locate(network: Chex, picture: Picture, prompts: Tensor, padding: Tensor | None = None) -> Detection:
    """Locate prompts: [C, dim], the same for every film, or [F, S, dim], padded by `batch.fill_up`.

    Padding gets boxes and scores of zero.
    """
    patches, positions, _ = picture
    asked = prompts.expand(len(patches), -1, -1)
    found: Detection = network.detector(patches, positions, asked, group=None, padding=padding)
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


def groundings(found: Detection, padding: Tensor, *, scale: float = 1.0) -> list[list[FloatArray]]:
    """Choose the boxes of each sentence; may be called again with another scale.

    scale: factor for width and height of all boxes; 1 is as published
    Returns for each film and each of its sentences [box, 5]: center x, center y, width, height, score; best first,
    without those that overlap a better one by more than `OVERLAP`.
    """
    boxes = unit_boxes.clip(unit_boxes.scale(as_array(found.boxes), scale))
    films = zip(boxes, as_array(found.scores), ~padding.cpu().numpy(), strict=True)
    return [
        [_of_sentence(*sentence) for sentence in zip(located[given], scores[given], strict=True)]
        for located, scores, given in films
    ]


def _of_sentence(boxes: FloatArray, scores: FloatArray) -> FloatArray:
    """Remove duplicate boxes of one sentence, boxes [R, 4] with scores [R]."""
    kept = unit_boxes.suppress(unit_boxes.to_corners(boxes), scores, threshold=OVERLAP)
    return np.column_stack([boxes, scores])[kept]


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
