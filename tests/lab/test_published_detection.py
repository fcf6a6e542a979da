"""Detection as the paper measures it: figures by hand on made-up boxes, and what is chosen on other films."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.lab.evaluation.published.detection import Asked, Located, chosen, in_words, measure
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.statistics import Bootstrap
from models.lab.tasks.detection import DetectionSettings
from models.lab.tasks.prompts import ClassVectors
from models.network.detector import Detection

BY_WEIGHTS = DetectionSettings(by_prompts=False, by_weights=True)
AXIS = torch.eye(2)
ASKED = Asked(
    names=("mass", "edema"),
    vectors=ClassVectors(located_by=AXIS, positive=AXIS, negative=AXIS.flip(0)),
    shipped=BY_WEIGHTS,
)
NO_RESAMPLES = Bootstrap(resamples=0)
BOX = [0.5, 0.5, 0.4, 0.4]
WIDE = [0.5, 0.5, 0.64, 0.4]
"""Overlaps BOX by 0.625."""
CORNER = [0.05, 0.05, 0.1, 0.1]
"""Overlaps nothing else."""


def film(
    true: Sequence[tuple[str, list[float]]],
    boxes: Sequence[Sequence[list[float]]],
    scores: Sequence[Sequence[float]],
    tokens: torch.Tensor | None = None,
) -> Located:
    """A film with true boxes, and of each class the boxes [R, 4] that the network proposes, with their scores."""
    judged = torch.tensor([scores])
    tokens = torch.ones(*judged.shape, 2) if tokens is None else tokens
    return Located(
        PublishedLabels(boxes=tuple((name, np.array(box, dtype=np.float32)) for name, box in true)),
        Detection(
            boxes=torch.tensor([boxes]),
            scores=judged,
            tokens=tokens,
            aggregated_scores=judged.mean(dim=-1),
            aggregated=tokens.mean(dim=2),
        ),
    )


def test_figures_agree_with_numbers_computed_by_hand() -> None:
    # "mass": its box is met up to IoU 0.6, six of seven thresholds, but a film without a mass has a better score, so
    # the precision is a half at every recall. "edema": met at all seven.
    films = [
        film([("mass", BOX)], [[WIDE], [CORNER]], [[0.6], [0.1]]),
        film([("edema", BOX)], [[CORNER], [BOX]], [[0.9], [0.8]]),
    ]

    made = measure(films, ASKED, BY_WEIGHTS, NO_RESAMPLES)

    assert made["per_class"] == pytest.approx({"mass": 6 / 14, "edema": 1.0})
    assert made["map"] == pytest.approx((6 / 14 + 1) / 2)
    assert made["per_class_on_positives"] == pytest.approx({"mass": 6 / 7, "edema": 1.0})
    assert made["map_on_positives"] == pytest.approx((6 / 7 + 1) / 2)
    assert (made["films"], made["films_with"]) == (2, {"mass": 1, "edema": 1})


def test_an_enclosing_box_counts_once_for_its_class() -> None:
    halves = [[0.4, 0.5, 0.2, 0.4], [0.6, 0.5, 0.2, 0.4]]
    films = [film([("mass", BOX)], [halves, halves], [[0.6, 0.5], [0.1, 0.1]])]

    apart = measure(films, ASKED, BY_WEIGHTS, NO_RESAMPLES)["map_on_positives"]
    together = measure(films, ASKED, replace(BY_WEIGHTS, merge="enclose"), NO_RESAMPLES)["map_on_positives"]

    # A half overlaps the whole by 0.5, which is enough for five of seven thresholds.
    assert (apart, together) == (pytest.approx(5 / 7), pytest.approx(1.0))


def test_scale_score_and_overlap_are_chosen_by_precision() -> None:
    small = [0.5, 0.5, 0.2, 0.2]
    # Boxes of "mass" are drawn twice as large as the network's. The scores are of no use: the prompts alone tell.
    like, unlike = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    films = [
        film([("mass", BOX)], [[small], [CORNER]], [[0.5], [0.5]], torch.stack([like, like]).reshape(1, 2, 1, 2)),
        film([("edema", BOX)], [[small], [BOX]], [[0.9], [0.5]], torch.stack([unlike, unlike]).reshape(1, 2, 1, 2)),
    ]

    settings = chosen(films, ASKED)

    assert settings.scales == (2.0, 1.0)
    assert (settings.by_prompts, settings.by_weights) == (True, False)
    assert measure(films, ASKED, settings, NO_RESAMPLES)["map"] == pytest.approx(1.0)
    words = in_words(settings, ASKED, chosen_on="validate.jsonl")
    assert words["scales"] == {"mass": 2.0, "edema": 1.0}
    assert words["settings"] == {
        "chosen_on": "validate.jsonl",
        "scored_by": "prompts",
        "temperature": 1.0,
        "merge": "suppress",
        "overlap": settings.overlap,
    }


def test_overlaps_are_not_chosen_where_boxes_are_enclosed() -> None:
    asked = replace(ASKED, shipped=replace(BY_WEIGHTS, merge="enclose", overlap=0.25))

    settings = chosen([film([("mass", BOX)], [[BOX], [BOX]], [[0.5], [0.5]])], asked)

    assert (settings.merge, settings.overlap) == ("enclose", 0.25)


def test_the_fixed_overlap_is_measured_beside_the_chosen_one() -> None:
    films = [film([("mass", WIDE), ("mass", BOX)], [[BOX, WIDE], [CORNER, CORNER]], [[0.6, 0.5], [0.1, 0.1]])]

    made = measure(films, ASKED, replace(BY_WEIGHTS, overlap=0.95), NO_RESAMPLES)

    # Above 0.25 the second box is suppressed: of 101 recalls those up to a half have a precision of 1.
    assert (made["map"], made["map_nms_fixed"]) == (pytest.approx(1.0), pytest.approx(51 / 101))


def test_deviations_come_from_resampled_films() -> None:
    films = [film([("mass", BOX)], [[BOX if hit else CORNER], [CORNER]], [[0.5], [0.1]]) for hit in (True, False) * 4]

    deviations = measure(films, ASKED, BY_WEIGHTS, Bootstrap(resamples=20))["deviations"]

    assert set(deviations) == {"map", "map_nms_fixed", "map_on_positives"}  # type: ignore[call-overload] # by name
    assert all(0 < value < 0.5 for value in deviations.values())  # type: ignore[attr-defined] # by name
