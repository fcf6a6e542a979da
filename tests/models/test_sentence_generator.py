"""Greedy decoding: with kept keys and values it must say what it would say without them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.manifest import GeneratorSizes
from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

SIZES = GeneratorSizes(
    vocabulary=50257, positions=40, width=32, layers=3, heads=4, prefix_length=5, prefix_hidden=48, max_length=30
)


@pytest.fixture(scope="module")
def generator() -> SentenceGenerator:
    """A random network whose sentences end, each at its own time."""
    torch.manual_seed(1)
    generator = SentenceGenerator(SIZES, dim=16).eval().requires_grad_(False)
    # The longer a sentence, the more every hidden state points to the end token.
    direction = torch.randn(SIZES.width)
    generator.tokens.weight[SENTENCE_END] = 1.3 * direction
    generator.positions.weight[0] -= 1.3 * direction
    generator.positions.weight.add_(torch.arange(SIZES.positions).unsqueeze(1) * direction * 0.15)
    return generator


@pytest.fixture(scope="module")
def features() -> Tensor:
    return 3 * torch.randn(4, 16, generator=torch.Generator().manual_seed(11))


def written_without_cache(generator: SentenceGenerator, feature: Tensor, max_length: int) -> list[int]:
    """Decode one sentence by computing the whole of it again for every token."""
    ids = [SENTENCE_END]
    while len(ids) < max_length and (len(ids) == 1 or ids[-1] != SENTENCE_END):
        length = len(ids)
        visible = torch.ones(length, SIZES.prefix_length + length, dtype=torch.bool).tril(SIZES.prefix_length)
        caches = generator.remember(feature.unsqueeze(0), room=length)
        logits = generator(torch.tensor([ids]), torch.arange(length).unsqueeze(0), caches, visible)
        ids.append(int(logits[0, -1].argmax()))
    return ids


def test_sentences_are_those_of_a_decoder_without_cache(generator: SentenceGenerator, features: Tensor) -> None:
    ids = generator.write(features, max_length=30)

    alone = [written_without_cache(generator, feature, 30) for feature in features]
    assert len({len(sentence) for sentence in alone}) > 1, "the sentences of this test must end at different times"
    longest = max(len(sentence) for sentence in alone)
    assert longest < 30, "the sentences of this test must end before their limit"
    assert ids.tolist() == [sentence + [SENTENCE_END] * (longest - len(sentence)) for sentence in alone]


def test_a_sentence_does_not_depend_on_its_neighbors(generator: SentenceGenerator, features: Tensor) -> None:
    together = generator.write(features, max_length=30)

    for feature, expected in zip(features, together, strict=True):
        alone = generator.write(feature.unsqueeze(0), max_length=30)[0]
        assert alone.tolist() == expected[: len(alone)].tolist()


@pytest.mark.parametrize("max_length", [0, 41])
def test_a_length_the_network_has_no_positions_for_is_refused(
    generator: SentenceGenerator, features: Tensor, max_length: int
) -> None:
    with pytest.raises(ValueError, match=r"1\.\.40"):
        generator.write(features, max_length=max_length)


def test_prefix_is_read_position_slowest(generator: SentenceGenerator, features: Tensor) -> None:
    flat = generator.prefix(features).reshape(4, 5, 3, 2, 4, 8)

    prefix = generator.prefix_key_values(features)

    assert prefix.shape == (3, 2, 4, 4, 5, 8)
    assert torch.equal(prefix[2, 1, 3, 0, 4], flat[3, 4, 2, 1, 0])
