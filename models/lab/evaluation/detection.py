"""How well findings are located: mean average precision over IoU 0.1 to 0.7, computed by pycocotools.

Average precision is COCO's: the mean of the precision at 101 recalls. A finding counts on films where all of its boxes
are known; a finding without any box there has no figure.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, mean
from models.lab.phantoms import FINDINGS
from models.lab.tasks.detection import DetectionSettings

if TYPE_CHECKING:
    from pycocotools.cocoeval import COCOeval

IOUS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SCALES: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0)
OVERLAPS: Final = (0.05, 0.1, 0.25, 0.5)
SUBSETS: Final[Mapping[str, tuple[str, ...]]] = {
    "large_four": ("cardiomegaly", "pneumothorax", "edema", "pleural_effusion"),
    "consolidation_and_opacity": ("consolidation", "lung_opacity"),
}
_SIDE: Final = 1000
"""Pixels of the square's side, as COCO counts in pixels."""


class Detections(NamedTuple):
    """The detections on one film: boxes [n, 4] center-size, the number of each one's class, and its score."""

    boxes: FloatArray
    classes: Indices
    scores: FloatArray


class Precision:
    """Average precision of the classes, over a set of films or a part of it."""

    def __init__(
        self, truths: Sequence[Truth], found: Sequence[Detections], *, classes: Sequence[str] = FINDINGS
    ) -> None:
        """Match boxes once; the figures of resampled films are cheap afterwards."""
        self._classes = classes
        with contextlib.redirect_stdout(io.StringIO()):
            self._coco = _compared(truths, found, classes)
        films = len(truths)
        self._matches = np.array(self._coco.evalImgs, dtype=object).reshape(len(classes), films)
        for number, key in enumerate(classes):
            unknown = [film for film, truth in enumerate(truths) if key not in truth.located]
            self._matches[number, unknown] = None

    def per_class(self, films: Indices | None = None) -> dict[str, float | None]:
        """Return the average precision of each class over films, by their numbers; None if none has a box of it."""
        matches = self._matches if films is None else self._matches[:, films]
        self._coco.evalImgs = list(matches.reshape(-1))
        for parameters in (self._coco.params, self._coco._paramsEval):
            parameters.imgIds = list(range(matches.shape[1]))
        with contextlib.redirect_stdout(io.StringIO()):
            self._coco.accumulate()
        precision = self._coco.eval["precision"][:, :, :, 0, 0]
        return {
            key: float(precision[:, :, number].mean()) if precision[0, 0, number] >= 0 else None
            for number, key in enumerate(self._classes)
        }

    def figures(self, films: Indices | None = None) -> Figures:
        """Return `map` over all classes and over each subset."""
        return summary(self.per_class(films))


def best_settings(
    names: Sequence[str],
    start: DetectionSettings,
    scored: Callable[[DetectionSettings], Sequence[DetectionSettings]],
    precision: Callable[[DetectionSettings], Mapping[str, float | None]],
    *,
    overlaps: Sequence[float] = OVERLAPS,
) -> DetectionSettings:
    """Choose a scale for each class, then how boxes are scored, then the IoU for suppression (spec §9.2).

    scored: the ways to score boxes; precision: the average precision of each class; overlaps: the IoUs to compare
    Of equals the first, and the scale nearest 1.
    """

    def best(settings: Sequence[DetectionSettings]) -> DetectionSettings:
        return max(settings, key=lambda some: mean(list(precision(some).values())) or 0.0)

    by_scale = {
        scale: precision(replace(start, scales=(scale,) * len(names)))
        for scale in sorted(SCALES, key=lambda scale: abs(scale - 1))
    }
    scales = tuple(max(by_scale, key=lambda scale: by_scale[scale].get(name) or 0.0) for name in names)
    chosen = best(scored(replace(start, scales=scales)))
    if chosen.merge == "enclose":
        return chosen
    return best([replace(chosen, overlap=overlap) for overlap in overlaps])


def scored_by(settings: DetectionSettings) -> Literal["prompts", "weights", "both"]:
    """Name how boxes are scored, as a manifest does."""
    if settings.by_prompts and settings.by_weights:
        return "both"
    return "prompts" if settings.by_prompts else "weights"


def summary(per_class: Mapping[str, float | None]) -> Figures:
    """Average over classes and over subsets of them."""
    subsets = {name: mean([per_class.get(key) for key in keys]) for name, keys in SUBSETS.items()}
    return {"map": mean(list(per_class.values())), **subsets}


def measure(truths: Sequence[Truth], found: Sequence[Detections], bootstrap: Bootstrap) -> dict[str, object]:
    """Compute all figures of detection."""
    precision = Precision(truths, found)
    return {
        **precision.figures(),
        "per_class": precision.per_class(),
        "deviations": bootstrap.deviations(precision.figures, len(truths)),
    }


def _compared(truths: Sequence[Truth], found: Sequence[Detections], classes: Sequence[str]) -> COCOeval:
    """Let COCO match the detections with the true boxes."""
    from pycocotools.coco import COCO  # of the extra `evaluate`; calibration on patient films needs none of it
    from pycocotools.cocoeval import COCOeval

    numbers = {key: number for number, key in enumerate(classes, 1)}
    there = COCO()
    there.dataset = {
        "images": [{"id": film} for film in range(1, len(truths) + 1)],
        "categories": [{"id": number, "name": key} for key, number in numbers.items()],
        "annotations": [
            {"image_id": film, "category_id": numbers[key], **_annotation(box)}
            for film, truth in enumerate(truths, 1)
            for key, boxes in truth.boxes.items()
            if key in numbers
            for box in boxes
        ],
    }
    # COCO treats a match with number 0 as no match.
    for number, annotation in enumerate(there.dataset["annotations"], 1):
        annotation["id"] = number
    there.createIndex()
    answers = [
        {"image_id": film, "category_id": int(number) + 1, "score": float(score), **_annotation(box)}
        for film, detections in enumerate(found, 1)
        for box, number, score in zip(*detections, strict=True)
    ]
    judged = COCO()
    judged.dataset = {
        "images": there.dataset["images"],
        "categories": there.dataset["categories"],
        "annotations": [{"id": number, **answer} for number, answer in enumerate(answers, 1)],
    }
    judged.createIndex()
    evaluation = COCOeval(there, judged, "bbox")
    evaluation.params.iouThrs = np.array(IOUS)
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
    evaluation.params.maxDets = [100]
    evaluation.evaluate()
    return evaluation


def _annotation(box: FloatArray) -> dict[str, object]:
    left, top, right, bottom = (float(edge) * _SIDE for edge in unit_boxes.to_corners(box))
    width, height = right - left, bottom - top
    return {"bbox": [left, top, width, height], "area": width * height, "iscrowd": 0}
