"""Grounding as the paper measures it: figures by hand on made-up boxes, and what is chosen on other films."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from models.lab.evaluation.published.grounding import SIDE, Grounded, Settings, chosen, in_words, mask, measure
from models.lab.evaluation.published.labels import Phrase
from models.lab.evaluation.statistics import Bootstrap
from models.lab.tasks.grounding import GroundingSettings
from models.network.detector import Detection

NO_RESAMPLES = Bootstrap(resamples=0)
LEFT_HALF = [0.25, 0.5, 0.5, 1.0]
MIDDLE = [0.5, 0.5, 0.5, 1.0]
QUARTER = [0.125, 0.5, 0.25, 1.0]


def film(true: Sequence[list[list[float]]], boxes: Sequence[list[list[float]]], scores: list[list[float]]) -> Grounded:
    """A film with the true boxes of each phrase, and those that the network proposes for it."""
    judged = torch.tensor([scores])
    phrases = tuple(Phrase(f"phrase {n}", np.array(own, dtype=np.float32)) for n, own in enumerate(true))
    found = Detection(
        boxes=torch.tensor([boxes]),
        scores=judged,
        tokens=torch.zeros(*judged.shape, 2),
        aggregated_scores=judged.mean(dim=-1),
        aggregated=torch.zeros(*judged.shape[:2], 2),
    )
    return Grounded(phrases, found, torch.zeros(1, len(true), dtype=torch.bool))


def test_figures_agree_with_numbers_computed_by_hand() -> None:
    # The first phrase shares a quarter of the picture with its half, of three quarters, up to the score 0.35; above, it
    # has no mask and its half is missed. The second meets its quarter at every score.
    films = [
        film([[LEFT_HALF]], [[MIDDLE]], [[0.35]]),
        film([[QUARTER]], [[QUARTER]], [[0.9]]),
    ]

    made = measure(films, Settings(), NO_RESAMPLES)

    found, missed = (1 / 4 + 1 / 4) / (3 / 4 + 1 / 4), (1 / 4) / (1 / 2 + 1 / 4)
    assert made["by_score"] == pytest.approx({"0.1": found, "0.2": found, "0.3": found, "0.4": missed, "0.5": missed})
    assert made["mask_miou_pooled"] == pytest.approx((3 * found + 2 * missed) / 5), "as in the published code"
    assert made["mask_miou"] == pytest.approx((3 * (1 / 3 + 1) / 2 + 2 * (0 + 1) / 2) / 5), "as written"
    assert made["mask_iou"] == pytest.approx(found), "above 0.3, as published"
    # Sorted by score, the second is right first. The first is right at the IoU 0.1 to 0.3: of the 101 recalls the
    # precision is 1 at all, from 0.4 on at those up to a half, which are 51.
    assert made["map_one_class"] == pytest.approx((3 + 4 * 51 / 101) / 7), "as in the published code"
    assert made["map"] == pytest.approx((3 / 7 + 1) / 2), "as written"
    assert (made["films"], made["phrases"]) == (2, 2)


def test_a_mask_is_what_boxes_cover_together() -> None:
    covered = mask(np.array([LEFT_HALF, MIDDLE], dtype=np.float32))

    assert covered.shape == (SIDE, SIDE)
    assert covered.mean() == pytest.approx(3 / 4)
    assert not mask(np.zeros((0, 4), dtype=np.float32)).any()


def test_scale_overlap_and_score_are_chosen_on_films() -> None:
    small = [0.5, 0.5, 0.2, 0.2]
    # The network's boxes are half as large as the true ones; a wrong one of low score is in every mask but the last.
    films = [film([[[0.5, 0.5, 0.4, 0.4]]], [[small, [0.1, 0.1, 0.1, 0.1]]], [[0.6, 0.45]])]

    settings = chosen(films)

    assert (settings.boxes.scale, settings.least_score) == (2.0, 0.5)
    made = measure(films, settings, NO_RESAMPLES)
    assert made["mask_iou"] == pytest.approx(1.0, abs=0.01)
    assert in_words(settings, chosen_on=None)["settings"] == {
        "chosen_on": None,
        "scale": 2.0,
        "overlap": GroundingSettings().overlap,
        "least_score": 0.5,
    }


def test_deviations_come_from_resampled_films() -> None:
    hit, miss = (
        film([[LEFT_HALF], [QUARTER]], [[LEFT_HALF], [box]], [[0.9], [0.8]]) for box in (QUARTER, [0.9, 0.9, 0.1, 0.1])
    )
    films = [hit, miss] * 4

    deviations = measure(films, Settings(), Bootstrap(resamples=20))["deviations"]

    assert all(0 < value < 0.5 for value in deviations.values())  # type: ignore[attr-defined] # by name
    figures = {"mask_miou", "mask_miou_pooled", "mask_iou", "map", "map_one_class"}
    assert set(deviations) == figures  # type: ignore[call-overload] # by name
