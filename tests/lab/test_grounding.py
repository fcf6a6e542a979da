"""Sentence grounding: which boxes stay, by hand, and what they may depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.grounding import GroundingSettings, groundings, locate
from models.network.chex import Chex
from models.network.detector import Detection
from tests.models.test_chex import DIM, SIZES

PUBLISHED = GroundingSettings()
LEFT, NEAR_LEFT, RIGHT = [0.3, 0.5, 0.2, 0.4], [0.32, 0.5, 0.2, 0.4], [0.5, 0.5, 0.2, 0.4]


@pytest.fixture(scope="module")
def network() -> Chex:
    torch.manual_seed(13)
    return Chex(SIZES).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def picture(network: Chex) -> Picture:
    return network.encode_image(torch.randn(2, 48, 48, generator=torch.Generator().manual_seed(6)))


def sentences(*counts: int) -> list[Tensor]:
    """Embeddings of as many sentences for each film."""
    source = torch.Generator().manual_seed(8)
    return [torch.randn(count, DIM, generator=source) for count in counts]


def found(boxes: list[list[list[float]]], scores: list[list[float]]) -> Detection:
    """One film with boxes [S, R, 4] and their scores [S, R]."""
    judged = torch.tensor([scores])
    return Detection(
        boxes=torch.tensor([boxes]),
        scores=judged,
        tokens=torch.zeros(*judged.shape, DIM),
        aggregated_scores=judged.mean(dim=-1),
        aggregated=torch.zeros(*judged.shape[:2], DIM),
    )


def test_boxes_of_a_sentence_come_best_first_without_overlaps() -> None:
    proposed = found([[LEFT, NEAR_LEFT, RIGHT], [RIGHT, LEFT, NEAR_LEFT]], [[0.2, 0.4, 0.6], [0.1, 0.5, 0.3]])

    ((first, second),) = groundings(proposed, torch.tensor([[False, False]]), PUBLISHED)

    np.testing.assert_allclose(first, [[*RIGHT, 0.6], [*NEAR_LEFT, 0.4]], atol=1e-6)
    np.testing.assert_allclose(second, [[*LEFT, 0.5], [*RIGHT, 0.1]], atol=1e-6)


def test_a_film_that_fills_its_row_is_grounded_as_if_alone(network: Chex, picture: Picture) -> None:
    rows = sentences(3, 1)
    together = locate(network, picture, *fill_up(rows))

    patches, positions, cls = (part[:1] for part in picture)
    alone = locate(network, (patches, positions, cls), *fill_up(rows[:1]))

    torch.testing.assert_close(alone.boxes, together.boxes[:1])
    torch.testing.assert_close(alone.scores, together.scores[:1])


def test_padding_finds_nothing_but_sentences_see_it_as_published(network: Chex, picture: Picture) -> None:
    rows = sentences(3, 1)
    together = locate(network, picture, *fill_up(rows))

    patches, positions, cls = (part[1:] for part in picture)
    alone = locate(network, (patches, positions, cls), *fill_up(rows[1:]))

    assert together.boxes[1, 1:].count_nonzero() == 0 and together.scores[1, 1:].count_nonzero() == 0
    assert (alone.boxes - together.boxes[1:, :1]).abs().max() > 1e-4
