"""Baselines that use no image: constant answers. Every figure of a model is printed beside one of them.

`Habits` is what the training phantoms show on average: where boxes are, and how often findings are present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from language.labels import Labeler
from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation import anatomy, regions, reports
from models.lab.evaluation.cases import Truth, truth_of_phantom
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.statistics import Bootstrap, Figures
from models.lab.phantoms import FINDINGS, PhantomSet, phantom

_SIDE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Habits:
    """The averages of a set of films.

    regions: the mean box of each; findings: the mean box of each, and the share of films that have it
    shares: the share of films with a finding in a region, by region and finding
    """

    regions: Mapping[str, FloatArray]
    findings: Mapping[str, tuple[FloatArray, float]]
    shares: Mapping[tuple[str, str], float]


def habits_of(truths: Sequence[Truth]) -> Habits:
    """Average over films."""
    located = {name: [truth.regions[name] for truth in truths if name in truth.regions] for name in anatomy.REGIONS}
    found = {key: [truth.boxes[key] for truth in truths if key in truth.boxes] for key in FINDINGS}
    return Habits(
        regions={name: _mean(np.stack(boxes)) for name, boxes in located.items() if boxes},
        findings={
            key: (_mean(np.concatenate(boxes)), len(boxes) / len(truths)) for key, boxes in found.items() if boxes
        },
        shares={
            (name, key): float(np.mean([key in there for there in held]))
            for name in anatomy.REGIONS
            if (held := [truth.region_findings[name] for truth in truths if name in truth.region_findings])
            for key in FINDINGS
        },
    )


def training_habits(count: int) -> Habits:
    """Average over the first training phantoms; small pictures suffice, because only the labels are used."""
    return habits_of([truth_of_phantom(phantom(seed, side=_SIDE)) for seed in PhantomSet(first=0, count=count).seeds])


def constant_detection(truths: Sequence[Truth], habits: Habits) -> Figures:
    """Baseline of `detection`: every finding on every film in its mean box, with its frequency as score."""
    keys = [key for key in FINDINGS if key in habits.findings]
    boxes = np.array([habits.findings[key][0] for key in keys], dtype=np.float32).reshape(-1, 4)
    scores = np.array([habits.findings[key][1] for key in keys], dtype=np.float32)
    everywhere = Detections(boxes, np.array([FINDINGS.index(key) for key in keys], dtype=np.intp), scores)
    return Precision(truths, [everywhere] * len(truths)).figures()


def constant_regions(truths: Sequence[Truth], boxes: Mapping[str, FloatArray], bootstrap: Bootstrap) -> object:
    """Baseline of `anatomy`: every region in the same box on every film."""
    return anatomy.measure(truths, [boxes] * len(truths), bootstrap)


def best_constants(truths: Sequence[Truth]) -> dict[str, FloatArray]:
    """Return for each region the constant box that fits these films best: the mean, the median or one of their boxes.

    It is chosen with knowledge of the test films, so a model that uses the image should still be better.
    """
    best = {}
    for name in anatomy.REGIONS:
        own = [truth.regions[name] for truth in truths if name in truth.regions]
        if own:
            corners = unit_boxes.to_corners(np.stack(own).astype(np.float64))
            middles = np.stack([corners.mean(axis=0), np.median(corners, axis=0)])
            candidates = np.concatenate([middles, corners])
            suits = unit_boxes.iou(candidates, corners).mean(axis=1)
            best[name] = unit_boxes.to_center_size(candidates[int(suits.argmax())]).astype(np.float32)
    return best


def identity(truths: Sequence[Truth], habits: Habits) -> Figures:
    """Baseline of `region_classification`: the frequency of each finding in a region of that name."""
    said = [
        np.array(
            [[habits.shares.get((name, key), 0.0) for key in FINDINGS] for name in truth.region_findings],
            dtype=np.float32,
        ).reshape(-1, len(FINDINGS))
        for truth in truths
    ]
    judged = regions.judged_of(truths, said)
    return {"auroc_pooled": regions.pooled(judged)}


def all_positive(truths: Sequence[Truth], labeler: Labeler) -> Figures:
    """Baseline of `report`: every class on every film."""
    everything = dict.fromkeys(labeler.classes, True)
    return reports.efficacy(reports.labels_of(truths, [everything] * len(truths), labeler.classes))


def _mean(boxes: FloatArray) -> FloatArray:
    """Average the edges of boxes [n, 4]."""
    mean: FloatArray = unit_boxes.to_center_size(unit_boxes.to_corners(boxes.astype(np.float64)).mean(axis=0))
    return mean.astype(np.float32)
