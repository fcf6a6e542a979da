"""Losses of training: the recorded ones, values worked out by hand, and batches with nothing to learn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.lab.losses.contrast import (
    anatomy_contrast,
    sentence_contrast,
    squared_error,
)
from models.lab.losses.detection import mean_by_film, mean_of
from models.lab.losses.language import lesson, logits_of, sentence_loss
from models.manifest import GeneratorSizes
from models.network.sentence_generator import KeyValueCache, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END
from tests.support.tensors import drawn, everything, gradients, learned, nothing

SIZES = GeneratorSizes(
    vocabulary=SENTENCE_END + 1,
    positions=20,
    width=8,
    layers=2,
    heads=2,
    prefix_length=3,
    prefix_hidden=8,
    max_length=9,
)


def test_mean_by_film_weighs_films_equally_and_skips_empty_films() -> None:
    losses = torch.tensor([[1.0, 3.0, torch.nan], [5.0, torch.inf, 9.0], [7.0, 7.0, 7.0]])
    counted = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])

    assert mean_by_film(losses, counted) == (2 + 5) / 2
    assert mean_of(losses, counted) == (1 + 3 + 5) / 3
    assert mean_by_film(losses, nothing(3, 3)) == mean_of(losses, nothing(3, 3)) == 0


def regions_judged(features: Tensor, present: Tensor, known: Tensor, taken: Tensor) -> Tensor:
    positive, negative = drawn(3, 6, seed=3).float(), drawn(3, 6, seed=4).float()
    return anatomy_contrast(features, positive, negative, present=present, known=known, drawn=taken, temperature=0.25)


@pytest.mark.parametrize(("known", "taken"), [(True, True), (True, False), (False, True)])
def test_anatomy_contrast_has_finite_gradients(known: bool, taken: bool) -> None:
    features = learned(2, 4, 6)

    loss = regions_judged(features, nothing(2, 4, 3), torch.full((2, 4, 3), known), torch.full((3,), taken))

    (moved,) = gradients(loss.sum(), features)
    assert bool(moved.any()) is (known and taken)


@pytest.mark.parametrize("loss", [partial(sentence_contrast, temperature=0.25), squared_error])
def test_padding_of_sentences_changes_nothing(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    regions, sentences, valid = drawn(2, 3, 6), drawn(2, 3, 6, seed=1), everything(2, 3)

    padded = loss(
        functional.pad(regions, (0, 0, 0, 2), value=7),
        functional.pad(sentences, (0, 0, 0, 2), value=7),
        functional.pad(valid, (0, 2)),
    )

    torch.testing.assert_close(padded, loss(regions, sentences, valid))


@pytest.mark.parametrize("films", [0, 2])
def test_losses_of_sentences_are_zero_where_there_are_none(films: int) -> None:
    regions, sentences = learned(films, 3, 6), torch.zeros(films, 3, 6)

    for loss in (
        sentence_contrast(regions, sentences, nothing(films, 3), temperature=0.25),
        squared_error(regions, sentences, nothing(films, 3)),
    ):
        assert loss == 0
        assert not gradients(loss, regions)[0].any()


@pytest.fixture(scope="module")
def generator() -> SentenceGenerator:
    torch.manual_seed(3)
    return SentenceGenerator(SIZES, dim=4)


def test_logits_in_one_pass_are_those_of_one_token_at_a_time(generator: SentenceGenerator) -> None:
    features, taught = drawn(2, 4).float(), lesson([[5, 6, 7], [8]], max_length=9)

    with torch.no_grad():
        together = logits_of(generator, features, taught)
        caches = generator.remember(features, room=5)
        steps = [generator(taught.ids[:, i : i + 1], torch.full((2, 1), i), caches) for i in range(5)]
    alone = torch.cat(steps, dim=1)

    torch.testing.assert_close(together[0], alone[0])
    torch.testing.assert_close(together[1, :3], alone[1, :3])


def test_a_longer_neighbor_leaves_the_logits_of_a_sentence(generator: SentenceGenerator) -> None:
    features = drawn(2, 4).float()

    with torch.no_grad():
        both = logits_of(generator, features, lesson([[5], [6, 7, 8, 9]], max_length=9))
        alone = logits_of(generator, features[:1], lesson([[5]], max_length=9))

    torch.testing.assert_close(both[:1, :3], alone)


def test_several_features_stand_in_order_before_a_sentence(generator: SentenceGenerator) -> None:
    first, second, taught = drawn(2, 4).float(), drawn(2, 4, seed=1).float(), lesson([[5, 6], [7, 8]], max_length=9)

    with torch.no_grad():
        both = logits_of(generator, torch.stack([first, second], dim=1), taught)
        single = logits_of(generator, first.unsqueeze(1), taught)
        prefixes = [generator.prefix_key_values(features) for features in (first, second)]
        caches = [
            KeyValueCache(key, value, room=4) for key, value in zip(*torch.cat(prefixes, dim=4).unbind(1), strict=True)
        ]
        steps = [generator(taught.ids[:, i : i + 1], torch.full((2, 1), i), caches) for i in range(4)]

    torch.testing.assert_close(both, torch.cat(steps, dim=1))
    torch.testing.assert_close(single, logits_of(generator, first, taught))


@pytest.mark.parametrize("sentences", [[], [[]], [[5, 6], [7]]], ids=["none", "an-empty-one", "two"])
def test_sentence_loss_reaches_the_features(generator: SentenceGenerator, sentences: list[list[int]]) -> None:
    features, taught = learned(len(sentences), 4), lesson(sentences, max_length=9)

    loss = sentence_loss(logits_of(generator, features, taught), taught.ids)

    moved, _ = gradients(loss, features, generator.tokens.weight)
    assert bool(moved.any()) is bool(sentences)
