"""How well regions are located: the mean overlap (mIoU) of each region's best box with its true box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.tasks.prompts import region_prompts

REGIONS: Final = tuple(region.name for region in region_prompts() if not region.members)
LUNGS: Final = ("right lung", "left lung")
LUNGS_AND_HEART: Final = (*LUNGS, "cardiac silhouette")


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
