"""Detection of the classes of VinDr-CXR, ChestX-ray14 and MS-CXR: mAP over IoU 0.1 to 0.7 (spec §9.2).

All classes of a data set are asked together. A film counts if it has a box of one of them, or if it is known to have
none; on such a film every class without a box is absent. So a box on a film without the class lowers the figure, as
published.

As written, a box is suppressed above a fixed IoU (`map_nms_fixed`); the published code chooses the IoU, too
(`map`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import torch

from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import Detections, Precision, best_settings, scored_by
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.tasks import detection
from models.lab.tasks.batch import Picture
from models.lab.tasks.detection import SHIPPED, DetectionSettings
from models.lab.tasks.prompts import ClassVectors, DataSet, class_prompts, embed_classes
from models.network.detector import Detection

_TEMPERATURES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """Classes that are asked together, and the published settings of their data set."""

    names: tuple[str, ...]
    vectors: ClassVectors
    shipped: DetectionSettings


class Located(NamedTuple):
    """A film's labels, and the boxes of each class before they are scored."""

    labels: PublishedLabels
    found: Detection


def classes_asked(model: PublishedModel, data_set: DataSet) -> Asked:
    """Return the classes to ask."""
    prompts = class_prompts(data_set)
    with torch.inference_mode():
        vectors = embed_classes(model.network, model.phrases, prompts)
    return Asked(names=tuple(prompt.name for prompt in prompts), vectors=vectors, shipped=SHIPPED[data_set])


def located(model: PublishedModel, asked: Asked, labels: PublishedLabels, picture: Picture) -> Located | None:
    """Locate the classes on a film; None if the film does not count."""
    if not labels.of(asked.names) and not {*asked.names} <= labels.located:
        return None
    return Located(labels, detection.locate(model.network, picture, asked.vectors.located_by))


def chosen(films: Sequence[Located], asked: Asked) -> DetectionSettings:
    """Choose settings; the order and the values are those of the published code (spec §9.2)."""

    def scored(start: DetectionSettings) -> list[DetectionSettings]:
        return [
            replace(start, by_prompts=False, by_weights=True),
            replace(start, by_prompts=True, by_weights=False, temperature=1.0),
            *(replace(start, by_prompts=True, by_weights=True, temperature=value) for value in _TEMPERATURES),
        ]

    return best_settings(
        asked.names, asked.shipped, scored, lambda settings: precision(films, asked, settings).per_class()
    )


def precision(films: Sequence[Located], asked: Asked, settings: DetectionSettings) -> Precision:
    """Compare scored and merged boxes with the true ones."""
    truths, found = [], []
    for labels, proposed in films:
        truths.append(Truth(boxes=labels.of(asked.names), located=frozenset(asked.names)))
        (rows,) = detection.detections(proposed, asked.vectors, settings)
        found.append(Detections(rows[:, :4], rows[:, 4].astype(np.intp), rows[:, 5]))
    return Precision(truths, found, classes=asked.names)


def measure(
    films: Sequence[Located], asked: Asked, settings: DetectionSettings, bootstrap: Bootstrap
) -> dict[str, object]:
    """Compute all figures of detection with these settings."""
    as_in_code = precision(films, asked, settings)
    as_written = precision(films, asked, replace(settings, overlap=asked.shipped.overlap))
    measured = {"map": as_in_code, "map_nms_fixed": as_written}

    def figures(some: Indices | None = None) -> Figures:
        return {name: mean(list(some_of.per_class(some).values())) for name, some_of in measured.items()}

    boxes = [labels.of(asked.names) for labels, _ in films]
    return {
        **figures(),
        "per_class": as_in_code.per_class(),
        "films": len(films),
        "films_with": {name: sum(name in own for own in boxes) for name in asked.names},
        "deviations": bootstrap.deviations(figures, len(films)),
    }


def in_words(settings: DetectionSettings, asked: Asked, *, chosen_on: str | None) -> dict[str, object]:
    """Return settings as they stand beside a result; chosen_on: the name of a file, None if they are as published."""
    return {
        "settings": {
            "chosen_on": chosen_on,
            "scored_by": scored_by(settings),
            "temperature": settings.temperature,
            "merge": settings.merge,
            "overlap": settings.overlap,
        },
        "scales": dict(zip(asked.names, settings.scales or (1.0,) * len(asked.names), strict=True)),
    }
