"""Pathology detection: scores, scales and merging by hand, and what a detection may depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.engines import FloatArray
from models.lab.tasks.batch import Picture
from models.lab.tasks.detection import SHIPPED, DetectionSettings, detections, locate
from models.lab.tasks.prompts import ClassVectors
from models.network.chex import Chex
from models.network.detector import Detection
from tests.models.test_chex import DIM, SIZES

BY_WEIGHTS = DetectionSettings(by_prompts=False, by_weights=True)

# A class holds its own axis, and its opposite holds the other one.
POSITIVE, NEGATIVE = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
CLASSES = ClassVectors(located_by=POSITIVE, positive=POSITIVE, negative=NEGATIVE)

LEFT, RIGHT = [0.2, 0.5, 0.2, 0.4], [0.8, 0.5, 0.2, 0.4]
NEAR_LEFT = [0.22, 0.5, 0.2, 0.4]


def found(boxes: list[list[list[float]]], scores: list[list[float]], tokens: Tensor | None = None) -> Detection:
    """One film with boxes [C, R, 4] and their scores [C, R]."""
    judged = torch.tensor([scores])
    tokens = torch.ones(*judged.shape, 2) if tokens is None else tokens
    aggregated = judged.mean(dim=-1)
    return Detection(
        boxes=torch.tensor([boxes]),
        scores=judged,
        tokens=tokens,
        aggregated_scores=aggregated,
        aggregated=tokens.mean(dim=2),
    )


def rows_of(proposed: Detection, settings: DetectionSettings) -> FloatArray:
    (rows,) = detections(proposed, CLASSES, settings)
    return rows


def test_boxes_under_better_ones_of_their_class_are_dropped() -> None:
    proposed = found([[LEFT, NEAR_LEFT, RIGHT], [LEFT, RIGHT, NEAR_LEFT]], [[0.3, 0.5, 0.2], [0.6, 0.4, 0.1]])

    rows = rows_of(proposed, BY_WEIGHTS)

    wanted = [[*LEFT, 1, 0.6], [*NEAR_LEFT, 0, 0.5], [*RIGHT, 1, 0.4], [*RIGHT, 0, 0.2]]
    np.testing.assert_allclose(rows, wanted, atol=1e-6)


def test_an_enclosing_box_has_the_best_score_in_class_order() -> None:
    settings = DetectionSettings(by_prompts=False, by_weights=True, merge="enclose")

    rows = rows_of(found([[LEFT, RIGHT], [NEAR_LEFT, NEAR_LEFT]], [[0.1, 0.3], [0.9, 0.2]]), settings)

    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.8, 0.4, 0, 0.3], [*NEAR_LEFT, 1, 0.9]], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        (DetectionSettings(), 1.0),
        (DetectionSettings(by_weights=True), 0.25),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_box_is_scored_by_what_it_holds(settings: DetectionSettings, factor: float, temperature: float) -> None:
    # The length of a vector is not its meaning: cosines are 1 to the class and 0 to its opposite.
    tokens = torch.tensor([[[[5.0, 0.0]], [[0.1, 0.0]]]])
    settings = DetectionSettings(by_weights=settings.by_weights, temperature=temperature)

    rows = rows_of(found([[LEFT], [LEFT]], [[0.25], [0.25]], tokens), settings)

    likely = 1 / (1 + math.exp(-1 / temperature))
    np.testing.assert_allclose(rows[:, 4:], [[0, factor * likely], [1, factor * (1 - likely)]], atol=1e-6)


def test_the_shipped_settings_are_the_published_ones() -> None:
    shipped = {
        name: (settings.temperature, settings.by_weights, settings.by_prompts, settings.merge, settings.scales)
        for name, settings in SHIPPED.items()
    }

    assert shipped == {
        "vindr": (0.5, True, True, "suppress", ()),
        "nih8": (0.1, False, True, "enclose", ()),
        "mscxr": (0.1, False, True, "suppress", ()),
    }
    assert {settings.overlap for settings in SHIPPED.values()} == {0.25}


@pytest.fixture(scope="module")
def network() -> Chex:
    torch.manual_seed(11)
    return Chex(SIZES).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def picture(network: Chex) -> Picture:
    return network.encode_image(torch.randn(3, 48, 48, generator=torch.Generator().manual_seed(4)))


@pytest.fixture(scope="module")
def classes() -> ClassVectors:
    return ClassVectors(*torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(5)))


def detect(network: Chex, picture: Picture, classes: ClassVectors, settings: DetectionSettings) -> list[FloatArray]:
    return detections(locate(network, picture, classes.located_by), classes, settings)


def test_a_film_is_detected_as_if_it_were_alone(network: Chex, picture: Picture, classes: ClassVectors) -> None:
    together = detect(network, picture, classes, SHIPPED["vindr"])

    patches, positions, cls = (part[1:2] for part in picture)
    (alone,) = detect(network, (patches, positions, cls), classes, SHIPPED["vindr"])
    np.testing.assert_allclose(alone, together[1], atol=1e-6)


def test_classes_of_a_film_see_each_other_as_published(network: Chex, picture: Picture, classes: ClassVectors) -> None:
    all_of_them = locate(network, picture, classes.located_by)

    fewer = locate(network, picture, classes.located_by[:3])

    assert (all_of_them.boxes[:, :3] - fewer.boxes).abs().max() > 1e-4
