"""What given boxes hold: the class of each box of MS-CXR, and 53 classes of each region of Chest ImaGenome (spec §9.4).

The boxes of a film see each other, as published; films are read one by one, so none sees the padding of others. Areas
under the ROC curve need no threshold, so nothing is chosen on other films.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.engines import FloatArray
from models.lab.evaluation.anatomy import REGIONS
from models.lab.evaluation.published.analysis import PUBLISHED, Analysis
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.regions import areas
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, area_under_curve, mean
from models.lab.tasks import regions
from models.lab.tasks.batch import Picture
from models.lab.tasks.prompts import ClassVectors, DataSet, class_prompts, embed, embed_classes, region_prompts

MSCXR = tuple(prompt.name for prompt in class_prompts("mscxr"))
CIG = tuple(prompt.name for prompt in class_prompts("cig"))


class Classified(NamedTuple):
    """The boxes of a film: the class of each [box], by its number, and the score of every class, [box, class]."""

    classes: NDArray[np.intp]
    scores: FloatArray


class Judged(NamedTuple):
    """The regions of a film: scores [region, class], NaN of an unknown region, and whether it holds each class."""

    scores: NDArray[np.float32]
    there: NDArray[np.bool_]


def vectors_of(model: PublishedModel, data_set: DataSet) -> ClassVectors:
    """Embed the classes of a data set."""
    with torch.inference_mode():
        return embed_classes(model.network, model.phrases, class_prompts(data_set))


def features_of(model: PublishedModel, picture: Picture, boxes: Sequence[FloatArray]) -> Tensor:
    """Compute the features [1, box, dim] of the boxes [4] of a film, which see each other."""
    given = torch.from_numpy(np.stack(boxes)[np.newaxis])
    return regions.features_together(model.network, picture, given, torch.zeros(given.shape[:2], dtype=torch.bool))


def regions_asked(model: PublishedModel, picture: Picture, given: Mapping[str, FloatArray], how: Analysis) -> Tensor:
    """Compute the features [1, region, dim] of regions, asked for as an analysis says."""
    if how.asked_by == "box":
        return features_of(model, picture, list(given.values()))
    phrases = {region.name: region.phrases for region in region_prompts()}
    named = embed(model.network, model.phrases, [phrases[name] for name in given])
    return model.network.find(*picture, named.unsqueeze(0))[3]


def classified(
    model: PublishedModel, classes: ClassVectors, labels: PublishedLabels, picture: Picture
) -> Classified | None:
    """Classify the boxes of a film of MS-CXR; None if it has none."""
    own = [(MSCXR.index(name), box) for name, box in labels.boxes if name in MSCXR]
    if not own:
        return None
    features = features_of(model, picture, [box for _, box in own])
    scores, _ = regions.classify_one(features, classes.positive)
    return Classified(np.array([number for number, _ in own], dtype=np.intp), scores[0])


def measure_boxes(films: Sequence[Classified], bootstrap: Bootstrap) -> dict[str, object]:
    """Compute the figures of MS-CXR: each class against the rest, over all boxes of all films."""

    def areas(some: Indices) -> dict[str, float | None]:
        classes = np.concatenate([films[film].classes for film in some])
        scores = np.concatenate([films[film].scores for film in some]).astype(np.float64)
        return {name: area_under_curve(classes == number, scores[:, number]) for number, name in enumerate(MSCXR)}

    def figures(some: Indices) -> Figures:
        return {"auroc": mean(list(areas(some).values()))}

    everything = np.arange(len(films))
    classes = np.concatenate([film.classes for film in films])
    return {
        **figures(everything),
        "per_class": areas(everything),
        "films": len(films),
        "boxes_of": {name: int((classes == number).sum()) for number, name in enumerate(MSCXR)},
        "deviations": bootstrap.deviations(figures, len(films)),
    }


def judged(
    model: PublishedModel, classes: ClassVectors, labels: PublishedLabels, picture: Picture, how: Analysis = PUBLISHED
) -> Judged | None:
    """Score all classes for the labeled regions of a film of Chest ImaGenome (RC); None if no region is labeled."""
    names = list(labels.region_findings)
    if not names:
        return None
    features = regions_asked(model, picture, {name: labels.regions[name] for name in names}, how)
    scores, _ = regions.classify_each(features, classes.positive, classes.negative)
    table = np.full((len(REGIONS), len(CIG)), np.nan, dtype=np.float32)
    table[[REGIONS.index(name) for name in names]] = scores[0]
    there = [[key in labels.region_findings.get(name, ()) for key in CIG] for name in REGIONS]
    return Judged(table, np.array(there, dtype=np.bool_))


def measure_regions(films: Sequence[Judged], bootstrap: Bootstrap) -> dict[str, object]:
    """Compute the figures of Chest ImaGenome.

    The area of a class is the mean over regions, weighted by how often they hold it; `auroc` is the mean over classes,
    `auroc_weighted` that over all pairs, weighted likewise. A pair that all films have, or none, has no area.
    """
    scores, there = (np.array(part) for part in zip(*films, strict=True))
    everything = np.arange(len(films))

    def figures(some: Indices) -> Figures:
        areas, weights = _pairs(scores[some], there[some])
        total = weights.sum()
        return {
            "auroc": mean(list(_per_class(areas, weights).values())),
            "auroc_weighted": float((weights * areas).sum() / total) if total else None,
        }

    by_class = _per_class(*_pairs(scores, there))
    return {
        **figures(everything),
        "per_class": by_class,
        "films": len(films),
        "regions_with": {name: int(there[:, :, number].sum()) for number, name in enumerate(CIG)},
        "deviations": bootstrap.deviations(figures, len(films)),
    }


def _pairs(scores: NDArray[np.float32], there: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the area of each pair, and its weight, both [region, class]; 0 and 0 for a pair without an area."""
    found = areas(scores, there, least=1)
    return np.nan_to_num(found), there.sum(axis=0) * ~np.isnan(found)


def _per_class(areas: NDArray[np.float64], weights: NDArray[np.float64]) -> dict[str, float | None]:
    totals, sums = weights.sum(axis=0), (weights * areas).sum(axis=0)
    return {name: float(sums[n] / totals[n]) if totals[n] else None for n, name in enumerate(CIG)}
