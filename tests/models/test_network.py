"""The network: shapes, laws, and what each answer may depend on. That it computes ChEX is shown by test_golden.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.manifest import (
    DetectorSizes,
    GeneratorSizes,
    ImageEncoderSizes,
    NetworkSizes,
    PostDecoderSizes,
    PromptEncoderSizes,
)
from models.network.chex import Chex
from models.network.detector import pool, soft_boxes
from models.network.image_encoder import Residual, convolutions

DIM, PER_PROMPT = 16, 2

SIZES = NetworkSizes(
    image_encoder=ImageEncoderSizes(patch_size=16, image_size=48, width=24, layers=2, heads=2, output=DIM),
    prompt_encoder=PromptEncoderSizes(vocabulary=49408, context=77, width=8, layers=1, heads=1, output=DIM),
    detector=DetectorSizes(dim=DIM, heads=2, layers=2, boxes_per_prompt=PER_PROMPT, feedforward=32, beta=2.0),
    post_decoder=PostDecoderSizes(layers=2),
    generator=GeneratorSizes(
        vocabulary=50257, positions=16, width=8, layers=1, heads=2, prefix_length=2, prefix_hidden=8, max_length=6
    ),
)

Picture = tuple[Tensor, Tensor, Tensor]


def small_network(*, seed: int) -> Chex:
    """A network with random weights whose post-decoder is switched on."""
    torch.manual_seed(seed)
    network = Chex(SIZES).eval().requires_grad_(False)
    network.post_decoder.gate.fill_(1.0)
    return network


def picture_of(network: Chex, *, seed: int) -> Picture:
    """Two random films as the network sees them."""
    return network.encode_image(torch.randn(2, 48, 48, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture(scope="module")
def network() -> Chex:
    return small_network(seed=5)


@pytest.fixture(scope="module")
def picture(network: Chex) -> Picture:
    return picture_of(network, seed=1)


PROMPTS = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(2))
BOXES = 0.2 + 0.6 * torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(3))


def test_a_film_is_answered_as_if_it_were_alone_and_so_are_boxes_of_a_prompt(network: Chex, picture: Picture) -> None:
    together = network.find(*picture, PROMPTS)

    patches, positions, cls = (part[1:] for part in picture)
    for got, wanted in zip(network.find(patches, positions, cls, PROMPTS[1:]), together, strict=True):
        torch.testing.assert_close(got, wanted[1:])
    *alone, feature = network.find(*picture, PROMPTS[:, 3:4])
    *located, features = together
    for got, wanted in zip(alone, located, strict=True):
        torch.testing.assert_close(got, wanted[:, 3:4])
    # Features do depend on other prompts: in the post decoder every token of a film sees every other (spec §6, BUG-5).
    assert (feature - features[:, 3:4]).abs().max() > 1e-3


def test_boxes_lie_in_the_square_and_scores_in_their_range(network: Chex, picture: Picture) -> None:
    boxes, scores, aggregated_scores, _ = network.find(*picture, PROMPTS)

    assert boxes.shape == (2, 5, PER_PROMPT, 4) and scores.shape == (2, 5, PER_PROMPT)
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    assert (low >= -1e-6).all() and (high <= 1 + 1e-6).all()
    assert ((scores >= 0) & (scores <= 1)).all() and ((aggregated_scores >= 0) & (aggregated_scores <= 1)).all()


def test_a_described_box_does_not_depend_on_other_boxes_and_its_prompt_counts_where_it_is_asked(
    network: Chex, picture: Picture
) -> None:
    prompted = torch.tensor([[1.0, 0, 1, 0, 0], [0, 1, 0, 0, 1]])

    mixed = network.describe(*picture, BOXES, PROMPTS, prompted)

    third = network.describe(*picture, BOXES[:, 2:3], PROMPTS[:, 2:3], prompted[:, 2:3])
    torch.testing.assert_close(third, mixed[:, 2:3])
    alone = network.describe(*picture, BOXES, torch.zeros_like(PROMPTS), torch.zeros(2, 5))
    both = network.describe(*picture, BOXES, PROMPTS, torch.ones(2, 5))
    torch.testing.assert_close(mixed[prompted == 0], alone[prompted == 0])
    torch.testing.assert_close(mixed[prompted == 1], both[prompted == 1])
    assert (both - alone).abs().amax(dim=-1).min() > 1e-3


def test_combined_question_averages_what_prompt_and_box_say(network: Chex, picture: Picture) -> None:
    patches, positions, cls = picture

    features = network.describe(*picture, BOXES, PROMPTS, torch.ones(2, 5))

    # spec §5: the mean of the prompt's decoder tokens takes the place that a box's own token has in 4.5.
    decoded = network.detector.decode(patches, positions, PROMPTS, group=PER_PROMPT)
    asked = decoded.reshape(2, 5, PER_PROMPT, DIM).mean(dim=2)
    regions = network.detector.gather((asked + network.detector.pool(patches, BOXES)) / 2)
    memory = torch.cat([patches + positions, cls.unsqueeze(1)], dim=1)
    torch.testing.assert_close(features, network.post_decoder(regions, memory, group=1))


GRID = 7


@pytest.mark.parametrize("center", [0.0, 0.3, 0.5 / GRID])
def test_empty_box_gives_numbers(center: float) -> None:
    weights = soft_boxes(torch.tensor([[[center, center, 0.0, 0.0]]]), grid=GRID, beta=2.0)

    assert weights.isfinite().all()


def test_a_finer_grid_can_give_sums_of_the_same_size() -> None:
    coarse, fine = (
        pool(torch.ones(1, grid**2, 1), torch.tensor([[[0.5, 0.5, 0.4, 0.4]]]), grid=grid, beta=2.0, scaled=True)
        for grid in (GRID, 2 * GRID)
    )
    published = pool(torch.ones(1, GRID**2, 1), torch.tensor([[[0.5, 0.5, 0.4, 0.4]]]), grid=GRID, beta=2.0)

    assert torch.equal(coarse, published)
    assert fine.item() == pytest.approx(coarse.item(), rel=0.05)


@pytest.mark.parametrize(("patch", "layers"), [(2, 1), (16, 4)])
def test_a_stem_halves_the_picture_and_its_residual_blocks_change_nothing_before_they_learned(
    patch: int, layers: int
) -> None:
    torch.manual_seed(0)
    stem = convolutions(32, patch=patch, residual=True)
    pixels = torch.randn(3, 1, 64, 64)
    blocks = [layer for layer in stem if isinstance(layer, Residual)]
    plain = torch.nn.Sequential(*(layer for layer in stem if not isinstance(layer, Residual)))

    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in convolutions(32, patch=patch)) == layers
    assert len(blocks) == layers - 1
    assert plain(pixels).shape == (3, 32, 64 // patch, 64 // patch)
    assert torch.equal(stem(pixels), plain(pixels))
    assert 0.3 < plain(pixels).std() < 3, "the picture stays in sight"
    for block in blocks:
        torch.nn.init.constant_(block.gain, 0.5)
    assert torch.allclose(stem(pixels), plain(pixels)) == (not blocks)
