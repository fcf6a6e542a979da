"""Baselines that use no image: constant answers. Every figure of a model is printed beside one of them.

They are chosen with knowledge of the films that are measured, so a model that uses the image should still be better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from language.labels import Labeler
from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation import anatomy, regions, reports
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections, Precision
from models.lab.evaluation.statistics import Bootstrap, Figures
from models.lab.phantoms import FINDINGS


def constant_detection(truths: Sequence[Truth]) -> Figures:
    """Baseline of `detection`: every finding on every film in its mean box, with its frequency as score."""
    found = {key: [truth.boxes[key] for truth in truths if key in truth.boxes] for key in FINDINGS}
    keys = [key for key, boxes in found.items() if boxes]
    boxes = [unit_boxes.to_corners(np.concatenate(found[key]).astype(np.float64)).mean(axis=0) for key in keys]
    everywhere = Detections(
        unit_boxes.to_center_size(np.array(boxes).reshape(-1, 4)).astype(np.float32),
        np.array([FINDINGS.index(key) for key in keys], dtype=np.intp),
        np.array([len(found[key]) / len(truths) for key in keys], dtype=np.float32),
    )
    return Precision(truths, [everywhere] * len(truths)).figures()


def constant_regions(truths: Sequence[Truth]) -> dict[str, object]:
    """Baseline of `anatomy`: every region on every film in the box that fits best of their mean, median and boxes."""
    best = dict[str, FloatArray]()
    for name in anatomy.REGIONS:
        own = [truth.regions[name] for truth in truths if name in truth.regions]
        if own:
            corners = unit_boxes.to_corners(np.stack(own).astype(np.float64))
            middles = np.stack([corners.mean(axis=0), np.median(corners, axis=0)])
            candidates = np.concatenate([middles, corners])
            suits = unit_boxes.iou(candidates, corners).mean(axis=1)
            best[name] = unit_boxes.to_center_size(candidates[int(suits.argmax())]).astype(np.float32)
    return anatomy.measure(truths, [best] * len(truths), Bootstrap(resamples=0))


def identity(truths: Sequence[Truth]) -> Figures:
    """Baseline of `region_classification`: the frequency of each finding in a region of that name."""
    held = {name: [truth for truth in truths if name in truth.region_findings] for name in anatomy.REGIONS}
    shares = {
        name: [np.mean([key in truth.region_findings[name] for truth in films]) for key in FINDINGS]
        for name, films in held.items()
        if films
    }
    said = [
        np.array([shares[name] for name in truth.region_findings], dtype=np.float32).reshape(-1, len(FINDINGS))
        for truth in truths
    ]
    return {"auroc_pooled": regions.pooled(regions.judged_of(truths, said))}


def all_positive(truths: Sequence[Truth], labeler: Labeler) -> Figures:
    """Baseline of `report`: every class on every film."""
    everything = dict.fromkeys(labeler.classes, True)
    return reports.efficacy(reports.labels_of(truths, [everything] * len(truths), labeler.classes))
