"""Given boxes: how those of a batch are brought to one length, what is said of one, and what that may depend on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.regions import features_apart, features_together
from models.network.chex import Chex
from tests.models.test_chex import DIM, picture_of, small_network


@pytest.fixture(scope="module")
def network() -> Chex:
    return small_network(seed=17)


@pytest.fixture(scope="module")
def picture(network: Chex) -> Picture:
    return picture_of(network, seed=9)


def boxes(*counts: int) -> list[Tensor]:
    """As many boxes for each film."""
    source = torch.Generator().manual_seed(10)
    return [0.2 + 0.6 * torch.rand(count, 4, generator=source) for count in counts]


def one_film(picture: Picture, film: int) -> Picture:
    patches, positions, cls = (part[film : film + 1] for part in picture)
    return patches, positions, cls


def test_separate_boxes_are_described_as_without_prompts(network: Chex, picture: Picture) -> None:
    given_boxes, padding = fill_up(boxes(2, 2))

    features = features_apart(network, picture, given_boxes, padding)

    described = network.describe(*picture, given_boxes, torch.zeros(2, 2, DIM), torch.zeros(2, 2))
    torch.testing.assert_close(features, described)


def test_a_box_apart_depends_on_no_other_box_and_on_no_padding(network: Chex, picture: Picture) -> None:
    rows = boxes(4, 2)
    together = features_apart(network, picture, *fill_up(rows))

    alone = features_apart(network, one_film(picture, 1), *fill_up([rows[1][1:]]))

    torch.testing.assert_close(alone[0, 0], together[1, 1])


def test_boxes_together_depend_on_the_padding_as_published(network: Chex, picture: Picture) -> None:
    rows = boxes(4, 2)
    together = features_together(network, picture, *fill_up(rows))

    torch.testing.assert_close(features_together(network, one_film(picture, 0), *fill_up(rows[:1])), together[:1])
    alone = features_together(network, one_film(picture, 1), *fill_up(rows[1:]))
    assert (alone[0] - together[1, :2]).abs().max() > 1e-4
