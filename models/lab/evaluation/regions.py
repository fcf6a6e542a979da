"""How well a region's features show what the region holds: areas under the ROC curve.

The pooled area is that of one curve over all regions and findings. The area per pair is the mean over those pairs of a
region and a finding that are present on some films and absent on others: only it excludes what the region's name alone
reveals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.lab.evaluation.anatomy import REGIONS
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, area_under_curve, mean
from models.lab.phantoms import FINDINGS

LEAST: Final = 5
"""A pair needs this many films with the finding, and as many without, to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Every region and finding of every film.

    scores: [film, region, finding], NaN where unknown; there: same shape, whether the finding is present
    """

    scores: NDArray[np.float64]
    there: NDArray[np.bool_]


def judged_of(truths: Sequence[Truth], scores: Sequence[NDArray[np.float32]]) -> Judged:
    """Join the scores of each film's regions, [region that it shows, finding], with the labels."""
    shape = (len(truths), len(REGIONS), len(FINDINGS))
    table, there = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    places = {name: place for place, name in enumerate(REGIONS)}
    numbers: dict[str, int] = {key: number for number, key in enumerate(FINDINGS)}
    for film, (truth, said) in enumerate(zip(truths, scores, strict=True)):
        known = [numbers[key] for key in numbers if key in truth.judged]
        for row, region in zip(said, truth.region_findings, strict=True):
            place = places[region]
            table[film, place, known] = row[known]
            there[film, place, [numbers[key] for key in truth.region_findings[region]]] = True
    return Judged(scores=table, there=there)


def pooled(judged: Judged) -> float | None:
    """Return the area under one curve of all known entries."""
    return _area(judged.there.reshape(-1), judged.scores.reshape(-1), least=1)


def areas(scores: NDArray[np.floating], there: NDArray[np.bool_], *, least: int = LEAST) -> NDArray[np.float64]:
    """Return the area of each pair of a region and a finding, of [film, region, finding]; NaN of a pair without one."""
    made = np.full(there.shape[1:], np.nan)
    for region, finding in np.ndindex(*made.shape):
        value = _area(there[:, region, finding], scores[:, region, finding].astype(np.float64), least=least)
        made[region, finding] = np.nan if value is None else value
    return made


def _area(there: NDArray[np.bool_], scores: NDArray[np.float64], *, least: int) -> float | None:
    """Return the area under a curve [n]; None if fewer than `least` are positive, or negative."""
    known = ~np.isnan(scores)
    positive = int(np.count_nonzero(there & known))
    if min(positive, int(np.count_nonzero(known)) - positive) < least:
        return None
    return area_under_curve(there[known], scores[known])


def measure(judged: Judged, bootstrap: Bootstrap) -> dict[str, object]:
    """Compute all figures of region classification."""

    def figures(films: Indices) -> Figures:
        drawn = Judged(scores=judged.scores[films], there=judged.there[films])
        return {"auroc_pooled": pooled(drawn), "auroc_per_pair": _mean(areas(drawn.scores, drawn.there))}

    by_finding = areas(judged.scores, judged.there).T
    return {
        **figures(np.arange(len(judged.scores))),
        "per_finding": {key: _mean(own) for key, own in zip(FINDINGS, by_finding, strict=True)},
        "deviations": bootstrap.deviations(figures, len(judged.scores)),
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    """Return the mean of the areas that there are."""
    return mean(values[~np.isnan(values)].tolist())
