"""How far the cardiothoracic ratio, and the width of the thorax under it, are off; measured as the node measures them.

An error is the measured value minus the true one; that of the thorax is a share of its true width. What a film's labels
do not tell is left out: a file with boxes of lungs alone has errors of the thorax only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from models.boxes import to_corners
from models.lab.evaluation.anatomy import LUNGS_AND_HEART
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.statistics import Figures
from models.reading.cardiothoracic import EDGE, ChestWidths

_LIMIT: Final = 1.96
"""Standard deviations from the mean between which 95 % of a normal distribution lie (Bland and Altman, 1986)."""


_Pair = tuple[float, float | None]
"""The true and the measured value of a film; None if it was not measured."""


def measure(truths: Sequence[Truth], found: Sequence[ChestWidths | None]) -> dict[str, object]:
    """Compute the figures of ratio and thorax; those that no film's labels tell are left out."""
    ratios, widths = list[_Pair](), list[_Pair]()
    for truth, chest in zip(truths, found, strict=True):
        if (ratio := true_ratio(truth)) is not None:
            ratios.append((ratio, None if chest is None else chest.ratio))
        if (width := true_thorax(truth)) is not None:
            widths.append((1.0, None if chest is None else chest.thorax.width / width))
    made: dict[str, object] = {}
    if ratios:
        known = np.array([true for true, _ in ratios])
        constant = float(np.abs(known - np.median(known)).mean())
        made["cardiothoracic_ratio"] = {**_errors(ratios), "error_of_constant": constant}
    if widths:
        made["thorax_width"] = _errors(widths)
    return made


def true_ratio(truth: Truth) -> float | None:
    """Return the true ratio of a film: what its labels say, otherwise that of its boxes; None if it is not known."""
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


def _errors(pairs: Sequence[_Pair]) -> Figures:
    """Compute the figures of errors, of films whose true value is known."""
    errors = np.array([value - true for true, value in pairs if value is not None])
    figures: dict[str, float | None] = {"films": len(errors), "share_measured": len(errors) / len(pairs)}
    if len(errors) < 2:
        return figures
    bias, spread = float(errors.mean()), _LIMIT * float(errors.std(ddof=1))
    return figures | {
        "mean_absolute_error": float(np.abs(errors).mean()),
        "bias": bias,
        "lower": bias - spread,
        "upper": bias + spread,
    }
