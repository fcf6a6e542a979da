"""The task `anatomy`: mean IoU (mIoU) of each region's best box with its true box.

Beside it the error of the cardiothoracic ratio, measured as the node measures it: the measured value minus the true
one. Films whose labels do not tell the ratio are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.boxes import to_corners
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.tasks.prompts import region_prompts
from models.reading.cardiothoracic import EDGE, ChestWidths

REGIONS: Final = tuple(region.name for region in region_prompts() if not region.members)
LUNGS: Final = ("right lung", "left lung")
LUNGS_AND_HEART: Final = (*LUNGS, "cardiac silhouette")
_LIMIT: Final = 1.96
"""Standard deviations from the mean between which 95 % of a normal distribution lie (Bland and Altman, 1986)."""


def overlaps(truths: Sequence[Truth], found: Sequence[Mapping[str, FloatArray]]) -> NDArray[np.float64]:
    """Return the IoU of every region of every film [film, region]; NaN if the region is unknown or not visible."""
    table = np.full((len(truths), len(REGIONS)), np.nan)
    for film, (truth, boxes) in enumerate(zip(truths, found, strict=True)):
        for place, name in enumerate(REGIONS):
            if name in truth.regions and name in boxes:
                table[film, place] = overlap(boxes[name], truth.regions[name])
    return table


def overlap(first: FloatArray, other: FloatArray) -> float:
    """Return the IoU of two center-size boxes [4]."""
    corners = [unit_boxes.to_corners(box.astype(np.float64)[np.newaxis]) for box in (first, other)]
    return float(unit_boxes.iou(*corners)[0, 0])


def per_region(table: NDArray[np.float64]) -> dict[str, float]:
    """Average each region over the films that show it."""
    seen = ~np.isnan(table)
    return {
        name: float(table[seen[:, place], place].mean()) for place, name in enumerate(REGIONS) if seen[:, place].any()
    }


def summary(regions: Mapping[str, float]) -> Figures:
    """Average over regions: all, both lungs, lungs and heart, and the rest; None if none of them is known."""
    return {
        "miou": mean(list(regions.values())),
        "lungs": mean([regions[name] for name in LUNGS if name in regions]),
        "lungs_and_heart": mean([regions[name] for name in LUNGS_AND_HEART])
        if set(LUNGS_AND_HEART) <= regions.keys()
        else None,
        "others": mean([value for name, value in regions.items() if name not in LUNGS_AND_HEART]),
    }


def measure(
    truths: Sequence[Truth], found: Sequence[Mapping[str, FloatArray]], bootstrap: Bootstrap
) -> dict[str, object]:
    """Compute all figures of the regions."""
    table = overlaps(truths, found)

    def figures(films: Indices) -> Figures:
        return summary(per_region(table[films]))

    regions = per_region(table)
    return {
        **summary(regions),
        "per_region": regions,
        "deviations": bootstrap.deviations(figures, len(truths)),
    }


def measure_ratio(truths: Sequence[Truth], found: Sequence[ChestWidths | None]) -> Figures:
    """Compute the figures of the ratio's errors, on films whose true ratio is known; none if there is no such film."""
    pairs = [
        (ratio, None if chest is None else chest.ratio)
        for truth, chest in zip(truths, found, strict=True)
        if (ratio := true_ratio(truth)) is not None
    ]
    if not pairs:
        return {}
    known = np.array([true for true, _ in pairs])
    errors = np.array([value - true for true, value in pairs if value is not None])
    figures: dict[str, float | None] = {
        "films": len(errors),
        "share_measured": len(errors) / len(pairs),
        "error_of_constant": float(np.abs(known - np.median(known)).mean()),
    }
    if len(errors) < 2:
        return figures
    bias, spread = float(errors.mean()), _LIMIT * float(errors.std(ddof=1))
    return figures | {
        "mean_absolute_error": float(np.abs(errors).mean()),
        "bias": bias,
        "lower": bias - spread,
        "upper": bias + spread,
    }


def true_ratio(truth: Truth) -> float | None:
    """Return the true ratio of a film: the labeled one, otherwise that of its boxes; None if it is not known."""
    thorax = true_thorax(truth)
    if truth.cardiothoracic_ratio is not None or thorax is None or LUNGS_AND_HEART[2] not in truth.regions:
        return truth.cardiothoracic_ratio
    return float(truth.regions[LUNGS_AND_HEART[2]][2]) / thorax


def true_thorax(truth: Truth) -> float | None:
    """Return the true inner width of the thorax in 0..1 of the square; None if it is not known, or cut off."""
    right, left = (truth.regions.get(name) for name in LUNGS_AND_HEART[:2])
    if right is None or left is None:
        return None
    edges = to_corners(np.stack([right, left]).astype(np.float64))
    begin, end = float(edges[0, 0]), float(edges[1, 2])
    return end - begin if EDGE <= begin < end <= 1 - EDGE else None
