"""Merge boxes of one finding that overlap: weighted boxes fusion (Solovyev et al. 2021) of the boxes of one network.

Suppression would drop the worse of two boxes although it saw something; fusion takes the mean of both. There is one
network, so a score is never rescaled by the number of models that agree.
"""

from __future__ import annotations

import numpy as np

from models.boxes import iou, to_corners
from models.engines import FloatArray


def fuse(boxes: FloatArray, scores: FloatArray, *, overlap: float) -> tuple[FloatArray, FloatArray]:
    """Merge boxes that overlap, and return the merged boxes [box, 4] with their scores [box], best first.

    Each box, best first, joins the merged box that it overlaps most, if that is by more than `overlap`; otherwise it
    begins one of its own. A merged box is the mean of its boxes weighted by their scores; its score is their mean.
    boxes: [box, 4], center-size; scores: [box], above 0; overlap: an IoU, 0..1
    """
    groups: list[list[int]] = []
    exact, merged = boxes.astype(np.float64), np.empty((0, 4))
    for index in np.argsort(-scores, kind="stable").tolist():
        shared = iou(to_corners(exact[index : index + 1]), to_corners(merged))[0]
        if groups and shared.max() > overlap:
            place = int(shared.argmax())
            groups[place].append(index)
            merged[place] = np.average(exact[groups[place]], axis=0, weights=scores[groups[place]])
        else:
            groups.append([index])
            merged = np.vstack((merged, exact[index]))
    means = np.array([scores[group].mean() for group in groups])
    order = np.argsort(-means, kind="stable")
    return merged[order].astype(boxes.dtype), means[order].astype(scores.dtype)
