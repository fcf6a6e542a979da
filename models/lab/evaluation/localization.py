"""Average precision of findings' boxes on patient films, beside two constant boxes.

A finding counts if enough films have boxes of it. On those films alone a figure says how well the boxes fit; on all
films it counts too that boxes on the others have lower scores. The scale, and the constant boxes, are chosen on the
films of four fifths of the patients and used on those of the fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import IOUS, SCALES, Detections, Precision
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices
from models.lab.evaluation.thresholds import LEAST_POSITIVES
from models.lab.phantoms import FINDINGS
from models.lab.training.split import FOLDS, folds_of

Scaled = Callable[[float], Sequence[Detections]]
"""Returns the detections on all films at a scale of the boxes."""
_MIDDLE: Final = 0.5


def measure(
    truths: Sequence[Truth], scaled: Scaled, bootstrap: Bootstrap, *, least: int = LEAST_POSITIVES
) -> dict[str, object]:
    """Compute the figures of each finding with boxes on at least `least` patient films.

    Phantoms have no patients.
    """
    keys = [key for key in FINDINGS if sum(bool(truth.patient) and key in truth.boxes for truth in truths) >= least]
    found = {scale: scaled(scale) for scale in SCALES} if keys else {}
    return {key: _figures(truths, found, key, bootstrap) for key in keys}


def _figures(
    truths: Sequence[Truth], found: Mapping[float, Sequence[Detections]], key: str, bootstrap: Bootstrap
) -> dict[str, object]:
    patients = np.array([truth.patient for truth in truths])
    folds = folds_of(patients)
    own = {scale: [of_finding(film, key) for film in films] for scale, films in found.items()}
    fitted = cross_fitted(truths, own, key, folds)
    constant = constant_boxes(truths, key, folds)
    model, rival = (Precision(truths, some, classes=(key,)) for some in (fitted, constant))

    is_positive = np.array([key in truth.boxes for truth in truths])

    def figures(films: Indices) -> Figures:
        made: dict[str, float | None] = {}
        for suffix, some in (("", films), ("_on_positives", films[is_positive[films]])):
            own, other = (precision.per_class(some)[key] if len(some) else None for precision in (model, rival))
            gain = None if own is None or other is None else own - other
            made |= {f"precision{suffix}": own, f"two_constant_boxes{suffix}": other, f"gain{suffix}": gain}
        return made

    return {
        "films": int(is_positive.sum()),
        **figures(np.arange(len(truths))),
        "intervals": bootstrap.intervals(figures, patients),
    }


def of_finding(detections: Detections, key: str) -> Detections:
    """Return the detections of one finding, as those of the first class."""
    own = detections.classes == FINDINGS.index(key)
    return Detections(detections.boxes[own], np.zeros(int(own.sum()), dtype=np.intp), detections.scores[own])


def cross_fitted(
    truths: Sequence[Truth], found: Mapping[float, Sequence[Detections]], key: str, folds: Indices
) -> list[Detections]:
    """Return the detections on each film at the scale that is best on the films of other folds; of equals nearest 1."""
    precisions = {
        scale: Precision(truths, found[scale], classes=(key,)) for scale in sorted(found, key=lambda it: abs(it - 1))
    }
    best = {}
    for fold in range(FOLDS):
        others = np.flatnonzero(folds != fold)
        best[fold] = max(precisions, key=lambda scale: precisions[scale].per_class(others)[key] or 0.0)
    return [found[best[int(fold)]][number] for number, fold in enumerate(folds)]


def constant_boxes(truths: Sequence[Truth], key: str, folds: Indices) -> list[Detections]:
    """Detect the finding on each film in the best box of either half of the square, chosen on other folds."""
    constant = []
    for fold in range(FOLDS):
        others = [truth for truth, own in zip(truths, folds, strict=True) if own != fold]
        constant.append(_best_two(others, key))
    return [constant[int(fold)] for fold in folds]


def _best_two(truths: Sequence[Truth], key: str) -> Detections:
    """Return for either half the mean, median or true box that reaches most of `IOUS`, scored by frequency."""
    boxes, scores = list[FloatArray](), list[float]()
    all_boxes = [truth.boxes[key] for truth in truths if key in truth.boxes]
    for is_left in (True, False):
        own = [some[(some[:, 0] < _MIDDLE) == is_left] for some in all_boxes]
        corners = unit_boxes.to_corners(np.concatenate(own or [np.zeros((0, 4))]).astype(np.float64))
        if not len(corners):
            continue
        candidates = np.concatenate([[corners.mean(axis=0), np.median(corners, axis=0)], corners])
        overlaps = unit_boxes.iou(candidates, corners)
        reached = np.mean([overlaps >= least for least in IOUS], axis=(0, 2))
        boxes.append(unit_boxes.to_center_size(candidates[int(reached.argmax())]).astype(np.float32))
        scores.append(sum(len(some) > 0 for some in own) / len(truths))
    return Detections(
        np.array(boxes, dtype=np.float32).reshape(-1, 4),
        np.zeros(len(boxes), dtype=np.intp),
        np.array(scores, dtype=np.float32),
    )
