"""Losses of training: the recorded ones, values worked out by hand, and batches with nothing to learn from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from models.lab.golden.recording import open_network
from models.lab.golden.tasks import losses as losses_of
from models.lab.losses.contrast import (
    anatomy_contrast,
    finding_contrast,
    global_contrast,
    sentence_contrast,
    squared_error,
)
from models.lab.losses.detection import mean_by_film, mean_of
from models.lab.losses.language import lesson, logits_of, sentence_loss
from models.manifest import GeneratorSizes
from models.network.sentence_generator import KeyValueCache, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END
from tests.paths import GOLDEN
from tests.support.tensors import drawn, everything, gradients, learned, nothing

FOLDER = Path(os.environ.get("CHEX_GOLDEN", GOLDEN))

with np.load(FOLDER / "golden.npz") as arrays:
    RECORDED = {name: arrays[name] for name in arrays.files if name.startswith(("loss/", "lm/"))}

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


@pytest.fixture(scope="module")
def computed() -> dict[str, np.ndarray]:
    with torch.inference_mode():
        return {name: np.asarray(value) for name, value in losses_of(open_network(FOLDER))}


INPUTS = {
    *(f"loss/{name}" for name in ("pred_boxes", "target_boxes", "target_mask", "probs", "z1", "z2", "z_sent", "z_reg")),
    *(f"loss/patho_{name}" for name in ("features", "pos", "neg", "targets")),
    *(f"loss/anat_{name}" for name in ("targets", "has")),
}


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in INPUTS])
def test_loss_of_the_published_training_is_the_recorded_one(computed: dict[str, np.ndarray], name: str) -> None:
    recorded = RECORDED[name]
    tolerance = 1e-5 if recorded.dtype.kind == "f" else 0

    np.testing.assert_allclose(computed[name].reshape(recorded.shape), recorded, rtol=0, atol=tolerance)


def test_mean_by_film_weighs_films_equally_and_skips_empty_films() -> None:
    losses = torch.tensor([[1.0, 3.0, torch.nan], [5.0, torch.inf, 9.0], [7.0, 7.0, 7.0]])
    counted = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])

    assert mean_by_film(losses, counted) == (2 + 5) / 2
    assert mean_of(losses, counted) == (1 + 3 + 5) / 3
    assert mean_by_film(losses, nothing(3, 3)) == mean_of(losses, nothing(3, 3)) == 0


def test_finding_contrast_chooses_among_prompts_of_all_classes() -> None:
    features = torch.tensor([[[2.0, 0.0], [0.0, 5.0]]])
    positive, negative = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0, 0.0], [0.0, -1.0]])

    loss = finding_contrast(features, positive, negative, present=torch.tensor([[True, False]]), temperature=0.5)

    total = math.exp(2) + math.exp(-2) + 2
    torch.testing.assert_close(loss, torch.tensor([[math.log(total) - 2, math.log(total) + 2]]))


def regions_judged(features: Tensor, present: Tensor, known: Tensor, taken: Tensor) -> Tensor:
    positive, negative = drawn(3, 6, seed=3).float(), drawn(3, 6, seed=4).float()
    return anatomy_contrast(features, positive, negative, present=present, known=known, drawn=taken, temperature=0.25)


@given(st.lists(st.booleans(), min_size=9, max_size=9))
def test_anatomy_contrast_is_that_of_the_specification(flags: list[bool]) -> None:
    present, known, taken = torch.tensor(flags).reshape(3, 3)
    feature = drawn(6).float()
    loss = regions_judged(feature.reshape(1, 1, 6), present[None, None], known[None, None], taken)

    near, far = [], []
    for label in range(3):
        to_prompts = [
            float(functional.cosine_similarity(feature, drawn(3, 6, seed=seed).float()[label], dim=0)) / 0.25
            for seed in (3, 4)
        ]
        if known[label] and present[label]:
            near.append(to_prompts[0])
            far.append(to_prompts[1])
        elif known[label] and taken[label]:
            near.append(to_prompts[1])
            far.append(to_prompts[0])
    expected = math.log(sum(map(math.exp, near + far))) - sum(near) / len(near) if near else 0.0
    torch.testing.assert_close(loss, torch.tensor([[expected]]))


@pytest.mark.parametrize(("known", "taken"), [(True, True), (True, False), (False, True)])
def test_anatomy_contrast_has_finite_gradients(known: bool, taken: bool) -> None:
    features = learned(2, 4, 6)

    loss = regions_judged(features, nothing(2, 4, 3), torch.full((2, 4, 3), known), torch.full((3,), taken))

    (moved,) = gradients(loss.sum(), features)
    assert bool(moved.any()) is (known and taken)


def test_sentence_contrast_chooses_among_the_whole_batch() -> None:
    regions, sentences = drawn(2, 3, 6), drawn(2, 3, 6, seed=1)
    valid = torch.tensor([[True, True, False], [False, True, False]])

    loss = sentence_contrast(regions, sentences, valid, temperature=0.25)

    similar = functional.cosine_similarity(regions[valid][:, None], sentences[valid][None], dim=-1) / 0.25
    first, second, third = -similar.log_softmax(dim=1).diagonal()
    torch.testing.assert_close(loss, ((first + second) / 2 + third) / 2)


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


def test_squared_error_sums_dims_and_averages_the_rest() -> None:
    features = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 0.0], [1.0, 1.0]]])
    valid = torch.tensor([[True, False], [True, True]])

    assert squared_error(features, torch.zeros_like(features), valid) == (5 + (9 + 2) / 2) / 2


def test_global_contrast_is_the_sum_of_both_directions() -> None:
    films, texts = drawn(4, 6), drawn(4, 6, seed=1)

    loss = global_contrast(films, texts, temperature=0.2)

    similar = functional.cosine_similarity(films[:, None], texts[None], dim=-1) / 0.2
    own = torch.arange(4)
    torch.testing.assert_close(loss, functional.cross_entropy(similar, own) + functional.cross_entropy(similar.T, own))
    torch.testing.assert_close(loss, global_contrast(texts, films, temperature=0.2))
    assert global_contrast(films[:0], texts[:0], temperature=0.2) == 0


@pytest.fixture(scope="module")
def generator() -> SentenceGenerator:
    torch.manual_seed(3)
    return SentenceGenerator(SIZES, dim=4)


def test_a_lesson_marks_and_pads_its_sentences() -> None:
    taught = lesson([[5, 6], [], [7, 8, 9, 10]], max_length=5)

    end = SENTENCE_END
    assert taught.ids.tolist() == [[end, 5, 6, end, end], [end] * 5, [end, 7, 8, 9, 10]]
    assert taught.attended.sum(dim=1).tolist() == [4, 2, 5]
    assert taught.positions.tolist() == [[0, 1, 2, 3, 1], [0, 1, 1, 1, 1], [0, 1, 2, 3, 4]]


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


def test_sentence_loss_counts_what_fills_up_a_row() -> None:
    taught = lesson([[5], [6, 7, 8]], max_length=9)
    logits = torch.zeros(2, 5, SIZES.vocabulary)
    logits[0, 2:, SENTENCE_END] = 100

    loss = sentence_loss(logits, taught.ids)

    # Six tokens are guessed, the two that fill up the first row are known.
    torch.testing.assert_close(loss, torch.tensor(6 / 8 * math.log(SIZES.vocabulary)))


@pytest.mark.parametrize("sentences", [[], [[]], [[5, 6], [7]]], ids=["none", "an-empty-one", "two"])
def test_sentence_loss_reaches_the_features(generator: SentenceGenerator, sentences: list[list[int]]) -> None:
    features, taught = learned(len(sentences), 4), lesson(sentences, max_length=9)

    loss = sentence_loss(logits_of(generator, features, taught), taught.ids)

    moved, _ = gradients(loss, features, generator.tokens.weight)
    assert bool(moved.any()) is bool(sentences)
