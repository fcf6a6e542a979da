"""Grounding of the phrases of MS-CXR: mIoU of masks, and mAP over IoU 0.1 to 0.7 (spec §9.3).

The phrases of a film are asked together, each once, without the padding of other films. A mask is what the boxes above
a score cover, on 1024 x 1024 pixels. Paper and published code differ, so both forms are computed. As written the IoU of
masks is the mean over phrases (`mask_miou`), and for mAP each phrase of a film is a class (`map`). In the published
code intersections and unions are summed over all phrases before they are divided (`mask_miou_pooled`), and for mAP all
phrases are of one class (`map_one_class`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models import boxes as unit_boxes
from models.engines import FloatArray
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.detection import SCALES, Detections, Precision
from models.lab.evaluation.published.labels import Phrase
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices
from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.detection import OVERLAP, groundings, locate
from models.lab.tasks.prompts import embed
from models.network.detector import Detection

SIDE: Final = 1024
LEAST_SCORES: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
_PHRASE: Final = "phrase"


class Grounded(NamedTuple):
    """A film's phrases, and what the network proposes for each; padding: [1, S], nowhere True."""

    phrases: tuple[Phrase, ...]
    found: Detection
    padding: Tensor


def grounded(model: PublishedModel, phrases: tuple[Phrase, ...], picture: Picture) -> Grounded | None:
    """Locate the phrases of a film; None if it has none."""
    if not phrases:
        return None
    vectors, padding = fill_up([embed(model.network, model.phrases, [(phrase.text,) for phrase in phrases])])
    return Grounded(phrases, locate(model.network, picture, vectors, padding), padding)


def chosen(films: Sequence[Grounded]) -> float:
    """Choose the scale by mAP of one class; of equals the one nearest 1."""
    scales = sorted(SCALES, key=lambda scale: abs(scale - 1))
    return max(scales, key=lambda scale: _precision(films, scale).per_class()[_PHRASE] or 0.0)


def measure(films: Sequence[Grounded], scale: float, bootstrap: Bootstrap) -> dict[str, object]:
    """Compute all figures of grounding."""
    counts = [len(film.phrases) for film in films]
    own = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    pixels, precision = _mask_pixels(films, scale), _precision(films, scale)
    by_phrase = np.array([precision.per_class(np.array([number]))[_PHRASE] for number in range(len(pixels))])

    def figures(some: Indices) -> Figures:
        phrases = np.concatenate([own[film] for film in some])
        return {
            "mask_miou": float(_ratios(pixels[phrases]).mean()),
            "mask_miou_pooled": float(_ratios(pixels[phrases].sum(axis=0)).mean()),
            "map": float(by_phrase[phrases].mean()),
            "map_one_class": precision.per_class(phrases)[_PHRASE],
        }

    return {
        **figures(np.arange(len(films))),
        "films": len(films),
        "phrases": sum(counts),
        "deviations": bootstrap.deviations(figures, len(films)),
    }


def in_words(scale: float, *, chosen_on: str | None) -> dict[str, object]:
    """Return settings as they stand beside a result; chosen_on: the name of a file, None if they are as published."""
    return {"settings": {"chosen_on": chosen_on, "scale": scale, "overlap": OVERLAP}}


def mask(boxes: FloatArray) -> NDArray[np.bool_]:
    """Return the pixels [SIDE, SIDE] that center-size boxes [n, 4] cover; edges are cut to whole pixels."""
    covered = np.zeros((SIDE, SIDE), dtype=np.bool_)
    corners = unit_boxes.to_corners(boxes).clip(0, 1)
    for left, top, right, bottom in (SIDE * corners).astype(np.intp).tolist():
        covered[top:bottom, left:right] = True
    return covered


def _mask_pixels(films: Sequence[Grounded], scale: float) -> NDArray[np.int64]:
    """Count the pixels that masks share and that either covers: [phrase, least score, 2]."""
    counted = []
    for phrases, found, padding in films:
        (of_film,) = groundings(found, padding, scale=scale)
        for phrase, rows in zip(phrases, of_film, strict=True):
            true = mask(phrase.boxes)
            masks = [mask(rows[rows[:, 4] > least, :4]) for least in LEAST_SCORES]
            counted.append([[int((true & own).sum()), int((true | own).sum())] for own in masks])
    return np.array(counted, dtype=np.int64)


def _ratios(pixels: NDArray[np.int64]) -> NDArray[np.float64]:
    ratios: NDArray[np.float64] = pixels[..., 0] / np.maximum(pixels[..., 1], 1)
    return ratios


def _precision(films: Sequence[Grounded], scale: float) -> Precision:
    truths, boxes = [], []
    for phrases, found, padding in films:
        (of_film,) = groundings(found, padding, scale=scale)
        for phrase, rows in zip(phrases, of_film, strict=True):
            truths.append(Truth(boxes={_PHRASE: phrase.boxes}, located=frozenset({_PHRASE})))
            boxes.append(Detections(rows[:, :4], np.zeros(len(rows), dtype=np.intp), rows[:, 4]))
    return Precision(truths, boxes, classes=(_PHRASE,))
