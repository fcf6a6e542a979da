"""Fuses the boxes that several readers of VinDr-CXR drew, as published: weighted boxes fusion of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from models.errors import ModelError

Boxes = Sequence[Sequence[float]]

_OVERLAP: Final = 0.1
_LEAST_SCORE: Final = 0.0001


def check_library() -> None:
    """Raise ModelError if the library is missing, before hours of work."""
    try:
        import ensemble_boxes  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModelError("ensemble-boxes is missing; run pip install -c constraints.txt '.[paper]'") from error


def fused(found: Mapping[str, Boxes]) -> dict[str, list[list[float]]]:
    """Fuse the boxes of each class, left, top, right, bottom in pixels; a single box stays as it is."""
    # Imported here: it compiles for a second, and nothing else needs it.
    from ensemble_boxes import weighted_boxes_fusion

    several = {name: np.array(boxes, dtype=np.float64) for name, boxes in found.items() if len(boxes) > 1}
    fused = {name: [list(box) for box in boxes] for name, boxes in found.items() if len(boxes) == 1}
    if not several:
        return fused
    least = min(boxes.min() for boxes in several.values())
    most = max(boxes.max() for boxes in several.values())
    names = list(several)
    boxes, _, classes = weighted_boxes_fusion(
        [((own - least) / (most - least)).tolist() for own in several.values()],
        [[1.0] * len(own) for own in several.values()],
        [[number] * len(own) for number, own in enumerate(several.values())],
        weights=[1] * len(several),
        iou_thr=_OVERLAP,
        skip_box_thr=_LEAST_SCORE,
    )
    for box, number in zip((boxes * (most - least) + least).round(3).tolist(), classes.astype(int), strict=True):
        fused.setdefault(names[number], []).append(box)
    return fused
