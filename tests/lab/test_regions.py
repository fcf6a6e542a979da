"""Given boxes: how those of a batch are brought to one length, what is said of one, and what that may depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.regions import classify_each, classify_one, explain, features_apart, features_together, tokens_of
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES, SentenceTokenizer
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


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_lists_of_different_lengths_come_back_from_one_tensor(counts: list[int]) -> None:
    rows = boxes(*counts)

    joined, padding = fill_up(rows)

    assert joined.shape == (len(counts), max(counts), 4) and padding.shape == joined.shape[:2]
    assert joined[padding].count_nonzero() == 0
    for film, filled, row in zip(joined, padding, rows, strict=True):
        torch.testing.assert_close(film[~filled], row)


def test_a_filled_up_batch_by_hand() -> None:
    joined, padding = fill_up([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])])

    assert joined.tolist() == [[[1.0], [2.0]], [[3.0], [0.0]]]
    assert padding.tolist() == [[False, False], [False, True]]


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


def test_padding_holds_nothing_before_the_post_decoder(network: Chex, picture: Picture) -> None:
    given_boxes, padding = fill_up(boxes(3, 1))

    tokens = tokens_of(network, picture, given_boxes, padding)

    assert tokens[padding].count_nonzero() == 0 and (tokens[~padding].abs().amax(dim=-1) > 0).all()


def test_one_class_is_chosen_against_what_all_have_in_common() -> None:
    positive = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    probabilities, chosen = classify_one(torch.tensor([[[3.0, 0.0], [0.0, 0.2]]]), positive)

    # The common direction lies halfway: cosine 0.7071 to both.
    near, far = 1 / (1 + np.exp(-(1 - np.sqrt(0.5)))), 1 / (1 + np.exp(np.sqrt(0.5)))
    np.testing.assert_allclose(probabilities, [[[near, far], [far, near]]], atol=1e-6)
    assert chosen.tolist() == [[0, 1]]


def test_of_equally_likely_classes_the_first_is_chosen() -> None:
    positive = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])

    _, chosen = classify_one(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), positive)

    assert chosen.tolist() == [1, 0]


def test_every_class_is_judged_alone_and_undecided_is_absent() -> None:
    positive, negative = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])

    probabilities, present = classify_each(torch.tensor([[[2.0, 0.0], [1.0, 1.0]]]), positive, negative)

    likely = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(probabilities, [[[likely, 1 - likely], [0.5, 0.5]]], atol=1e-6)
    assert present.tolist() == [[[True, False], [False, False]]]


def test_every_box_gets_its_own_words_and_padding_gets_none(network: Chex, picture: Picture) -> None:
    tokenizer = SentenceTokenizer(VOCABULARIES)
    given_boxes, padding = fill_up(boxes(3, 0))
    features = features_apart(network, picture, given_boxes, padding)

    texts = explain(network, tokenizer, features, padding)

    assert [len(film) for film in texts] == [3, 0]
    assert texts[0] == [tokenizer.decode(network.write(feature[None])[0].tolist()) for feature in features[0]]
