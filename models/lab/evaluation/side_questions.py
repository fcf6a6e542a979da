"""The task `hints`: on films with a finding on both sides, whether the box for "... in the right lung" lies right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.cases import SideQuestion, Truth
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices


def is_followed(asked: SideQuestion, box: FloatArray) -> bool:
    """Return whether a box [4] overlaps the boxes of the side that was asked for more than those of the other side."""
    own, other = (_best(box, boxes) for boxes in (asked.boxes, asked.others))
    return own > other


def measure(truths: Sequence[Truth], boxes: Sequence[FloatArray], bootstrap: Bootstrap) -> dict[str, object]:
    """Compute all figures; boxes: for each film the center-size boxes [hint, 4] of its questions."""
    followed = [
        (film, asked.taught, is_followed(asked, box))
        for film, (truth, found) in enumerate(zip(truths, boxes, strict=True))
        for asked, box in zip(truth.hints, found, strict=True)
    ]
    table = np.array(followed, dtype=np.int64).reshape(-1, 3)

    def figures(films: Indices) -> Figures:
        times = np.bincount(films, minlength=len(truths))[table[:, 0]]
        return {name: _share(table[:, 2], times * mask) for name, mask in _kinds(table[:, 1]).items()}

    return {
        **figures(np.arange(len(truths))),
        "asked": len(table),
        "deviations": bootstrap.deviations(figures, len(truths)),
    }


def _kinds(taught: Indices) -> dict[str, Indices]:
    return {"accuracy": np.ones_like(taught), "accuracy_taught": taught, "accuracy_untaught": 1 - taught}


def _share(followed: Indices, times: Indices) -> float | None:
    return float((followed * times).sum() / times.sum()) if times.sum() else None


def _best(box: FloatArray, boxes: FloatArray) -> float:
    if not len(boxes):
        return 0.0
    return float(unit_boxes.iou(unit_boxes.to_corners(box[np.newaxis]), unit_boxes.to_corners(boxes)).max())
