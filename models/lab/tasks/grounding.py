"""Sentence grounding: the boxes of a sentence (spec §9.3).

All sentences of a film see each other and, as published, the padding of the others (spec §4.2, BUG-2): boxes depend
on the other sentences of the film and on how far other films of the batch lengthen its row. Ground films one by one if
results must not depend on the batch. The post decoder is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.tasks.batch import Picture, as_array
from models.network.chex import Chex
from models.network.detector import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundingSettings:
    """How R boxes of a sentence become its result; the defaults are the published ones.

    scale: factor for width and height of all boxes
    overlap: a box that overlaps a better one of its sentence by more is removed
    """

    scale: float = 1.0
    overlap: float = 0.25


def locate(network: Chex, picture: Picture, sentences: Tensor, padding: Tensor) -> Detection:
    """Locate sentences [F, S, dim] of films, padded by `batch.fill_up`; padding gets boxes and scores of zero."""
    patches, positions, _ = picture
    found: Detection = network.detector(patches, positions, sentences, group=None, padding=padding)
    return found


def groundings(found: Detection, padding: Tensor, settings: GroundingSettings) -> list[list[FloatArray]]:
    """Choose the boxes of each sentence; may be called again with other settings.

    Returns for each film and each of its sentences [box, 5]: center x, center y, width, height, score; best first.
    """
    boxes = unit_boxes.clip(unit_boxes.scale(as_array(found.boxes), settings.scale))
    films = zip(boxes, as_array(found.scores), ~padding.cpu().numpy(), strict=True)
    return [
        [
            _suppressed(*sentence, overlap=settings.overlap)
            for sentence in zip(located[given], scores[given], strict=True)
        ]
        for located, scores, given in films
    ]


def _suppressed(boxes: FloatArray, scores: FloatArray, *, overlap: float) -> FloatArray:
    """Remove duplicate boxes of one sentence, boxes [R, 4] with scores [R]."""
    kept = unit_boxes.suppress(unit_boxes.to_corners(boxes), scores, threshold=overlap)
    return np.column_stack([boxes, scores])[kept]
