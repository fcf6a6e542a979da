"""Losses of training: values worked out by hand, matching of boxes, and batches with nothing to learn from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from models.lab.losses.contrast import (
    anatomy_contrast,
    sentence_contrast,
    squared_error,
)
from models.lab.losses.detection import (
    anatomy_detection,
    box_cost,
    finding_detection,
    focal,
    giou_cost,
    match_evenly,
    mean_by_film,
    mean_of,
)
from models.lab.losses.language import lesson, logits_of, sentence_loss
from models.manifest import GeneratorSizes
from models.network.sentence_generator import KeyValueCache, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

LEFT, RIGHT, WHOLE = [0.25, 0.5, 0.5, 1.0], [0.75, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers 0..1, exact enough that no two sums of them are equal."""
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def everything(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def nothing(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def gradients(loss: Tensor, *learned: Tensor) -> list[Tensor]:
    """Return the gradients, which must be finite."""
    found = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in found)
    return list(found)


def learned(*shape: int) -> Tensor:
    return drawn(*shape).float().requires_grad_()


def test_small_and_empty_boxes_have_a_cost_and_a_gradient() -> None:
    small, target = torch.tensor([[0.5, 0.5, 2**-12, 2**-12]]), torch.tensor([[0.5, 0.5, 2**-13, 2**-12]])
    for dtype in (torch.float16, torch.bfloat16):
        torch.testing.assert_close(giou_cost(small.to(dtype), target), torch.tensor([[0.5]]))

    proposed = torch.zeros(1, 2, 4, requires_grad=True)
    cost = box_cost(proposed, torch.zeros(1, 3, 4)).sum()
    assert torch.isfinite(cost)
    gradients(cost, proposed)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4))
def test_proposals_are_shared_out_evenly_at_the_least_cost(seed: int, proposals: int, targets: int) -> None:
    cost = drawn(proposals, targets, seed=seed)
    even = {proposals // targets, math.ceil(proposals / targets)}

    assigned, matched = match_evenly(cost, everything(targets))

    shares = assigned.sum(dim=0)
    assert (assigned.sum(dim=1) == 1).all() and set(shares.tolist()) <= even
    ways = (
        sum(cost[row, column] for row, column in enumerate(way))
        for way in itertools.product(range(targets), repeat=proposals)
        if {way.count(target) for target in range(targets)} <= even
    )
    torch.testing.assert_close(cost[assigned].sum(), torch.as_tensor(min(ways)))
    # One proposal of each target is to be believed, if it has any: that of the least cost, if that is asked for.
    assert torch.equal((assigned & matched.unsqueeze(1)).sum(dim=0), shares.clamp(max=1))
    answers = match_evenly(cost, everything(targets), answerer="cheapest")
    assert torch.equal(answers.assigned, assigned)
    for target in torch.nonzero(shares).flatten():
        own = assigned[:, target]
        cheapest = int(cost[:, target].masked_fill(~own, torch.inf).argmin())
        assert (own & answers.matched).nonzero().flatten().tolist() == [cheapest]


def test_padding_targets_get_nothing_and_change_nothing() -> None:
    cost = drawn(2, 3, 4, 5)
    valid = torch.tensor([True, False, True, False, False]).expand(2, 3, -1)
    cost[..., 1] = -100

    assigned, matched = match_evenly(cost, valid)

    alone = match_evenly(cost[..., [0, 2]], everything(2, 3, 2))
    assert torch.equal(assigned[..., [0, 2]], alone.assigned) and not assigned[..., [1, 3, 4]].any()
    assert torch.equal(matched, alone.matched)


def test_surplus_targets_are_left_alone_those_that_cost_most() -> None:
    cost = torch.tensor([[9.0, 1.0, 2.0], [9.0, 2.0, 4.0]])

    assigned, matched = match_evenly(cost, everything(3))

    assert assigned.tolist() == [[False, False, True], [False, True, False]]
    assert matched.all()


@pytest.mark.parametrize("believed", [True, False])
def test_focal_is_finite_for_certain_scores(believed: bool) -> None:
    scores = torch.tensor([0.0, 1e-9, 0.5, 1 - 1e-7, 1.0], requires_grad=True)

    loss = focal(scores, torch.full((5,), believed)).sum()

    assert torch.isfinite(loss)
    gradients(loss, scores)


def test_finding_loss_of_a_known_film() -> None:
    """One film, three classes: a target that both boxes answer for, labeled as absent, not labeled."""
    boxes = torch.tensor([[[LEFT, RIGHT], [LEFT, RIGHT], [WHOLE, WHOLE]]])
    scores = torch.full((1, 3, 2), 0.5)
    target = torch.tensor([LEFT]).expand(1, 3, 1, 4)
    valid, labeled = torch.tensor([[[True], [False], [False]]]), torch.tensor([[True, True, False]])

    loss = finding_detection(boxes, scores, likely=torch.ones_like(scores), target=target, valid=valid, labeled=labeled)

    # Both boxes of the first class regress to its target: (0 + 4.5) / 2, over two labeled classes.
    torch.testing.assert_close(loss.box, torch.tensor(2.25 / 2))
    # One believed box of six: alpha 6/8.
    rare, common = 0.75 * math.log(2) / 4, 0.25 * math.log(2) / 4
    torch.testing.assert_close(loss.score, torch.tensor(((rare + common) / 2 + common) / 2))
    torch.testing.assert_close(loss.total, loss.box + 3 * loss.score)


@pytest.mark.parametrize(
    ("targets", "valid", "labeled"),
    [(0, False, True), (2, False, True), (2, False, False), (2, True, True), (5, True, True)],
    ids=["no-room", "no-targets", "no-labels", "some", "more-targets-than-boxes"],
)
def test_finding_loss_has_finite_gradients(targets: int, valid: bool, labeled: bool) -> None:
    boxes, scores, likely = learned(2, 3, 3, 4), learned(2, 3, 3), learned(2, 3, 3)
    target, mask = torch.rand(2, 3, targets, 4), torch.full((2, 3, targets), valid)

    loss = finding_detection(
        boxes, scores, likely=likely, target=target, valid=mask, labeled=torch.full((2, 3), labeled)
    )

    moved, judged, chosen = gradients(loss.total, boxes, scores, likely)
    assert bool(moved.any()) is (valid and labeled)
    assert bool(judged.any()) is labeled
    assert not chosen.any()


def test_anatomy_loss_counts_single_boxes_and_a_pair_once() -> None:
    """Two regions with one box, of which one is absent; a pair, of which both, one and none of the boxes are there."""
    boxes = torch.tensor([LEFT, RIGHT]).expand(1, 5, 2, 4)
    target, present = torch.tensor([[LEFT, WHOLE]]), torch.tensor([[True, False]])
    pairs = torch.tensor([RIGHT, LEFT]).expand(1, 3, 2, 4)
    pairs_present = torch.tensor([[[True, True], [True, False], [False, False]]])

    loss = anatomy_detection(
        boxes, torch.ones(1, 5, 2), target=target, present=present, pairs=pairs, pairs_present=pairs_present
    )
    # Entries: 2 boxes of the first region, 2 pairs. Losses: 0 + 4.5, then 0, then (4.5 + 0) / 2.
    torch.testing.assert_close(loss, torch.tensor((4.5 + 2.25) / 4))


def test_scores_are_not_learned_from_anatomy() -> None:
    boxes = torch.tensor([LEFT, WHOLE, WHOLE]).reshape(1, 1, 3, 4)
    scores = torch.tensor([[[0.1, 0.2, 0.3]]], requires_grad=True)

    pairs, none = torch.tensor([[[LEFT, RIGHT]]]), torch.zeros(1, 0, 4)
    loss = anatomy_detection(
        boxes, scores, target=none, present=nothing(1, 0), pairs=pairs, pairs_present=everything(1, 1, 2)
    )

    assert not loss.requires_grad
    torch.testing.assert_close(loss, torch.tensor((0 + 4.75 + 4.75) / 3))


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("singles", "pairs", "targets"), [(2, 0, 2), (0, 2, 2), (2, 2, 5), (0, 0, 2)])
def test_anatomy_loss_has_finite_gradients(singles: int, pairs: int, targets: int, there: bool) -> None:
    boxes = learned(2, singles + pairs, 3, 4)

    loss = anatomy_detection(
        boxes,
        torch.ones(boxes.shape[:3]),
        target=torch.rand(2, singles, 4),
        present=torch.full((2, singles), there),
        pairs=torch.rand(2, pairs, targets, 4),
        pairs_present=torch.full((2, pairs, targets), there),
    )

    (moved,) = gradients(loss, boxes)
    assert bool(moved.any()) is (there and singles + pairs > 0)


def test_mean_by_film_weighs_films_equally_and_skips_empty_films() -> None:
    losses = torch.tensor([[1.0, 3.0, torch.nan], [5.0, torch.inf, 9.0], [7.0, 7.0, 7.0]])
    counted = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])

    assert mean_by_film(losses, counted) == (2 + 5) / 2
    assert mean_of(losses, counted) == (1 + 3 + 5) / 3
    assert mean_by_film(losses, nothing(3, 3)) == mean_of(losses, nothing(3, 3)) == 0


@pytest.mark.parametrize(("known", "taken"), [(True, True), (True, False), (False, True)])
def test_anatomy_contrast_has_finite_gradients(known: bool, taken: bool) -> None:
    features = learned(2, 4, 6)

    loss = anatomy_contrast(
        features,
        drawn(3, 6, seed=3).float(),
        drawn(3, 6, seed=4).float(),
        present=nothing(2, 4, 3),
        known=torch.full((2, 4, 3), known),
        drawn=torch.full((3,), taken),
    )
    (moved,) = gradients(loss.sum(), features)
    assert bool(moved.any()) is (known and taken)


@pytest.mark.parametrize("loss", [sentence_contrast, squared_error])
def test_padding_of_sentences_changes_nothing_and_without_sentences_there_is_no_loss(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    regions, sentences, valid = drawn(2, 3, 6), drawn(2, 3, 6, seed=1), everything(2, 3)

    padded = loss(
        functional.pad(regions, (0, 0, 0, 2), value=7),
        functional.pad(sentences, (0, 0, 0, 2), value=7),
        functional.pad(valid, (0, 2)),
    )

    torch.testing.assert_close(padded, loss(regions, sentences, valid))
    for films in (0, 2):
        regions = learned(films, 3, 6)
        value = loss(regions, torch.zeros(films, 3, 6), nothing(films, 3))
        assert value == 0 and not gradients(value, regions)[0].any()


@pytest.fixture(scope="module")
def generator() -> SentenceGenerator:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "prefix_length": 3, "prefix_hidden": 8}
    sizes |= {"positions": 20, "max_length": 9}
    return SentenceGenerator(GeneratorSizes(vocabulary=SENTENCE_END + 1, **sizes), dim=4)


def test_logits_in_one_pass_are_those_of_one_token_at_a_time(generator: SentenceGenerator) -> None:
    features, taught = drawn(2, 4).float(), lesson([[5, 6, 7], [8]], max_length=9)

    with torch.no_grad():
        together = logits_of(generator, features, taught)
        caches = generator.remember(features, room=5)
        steps = [generator(taught.ids[:, i : i + 1], torch.full((2, 1), i), caches) for i in range(5)]
    alone = torch.cat(steps, dim=1)

    torch.testing.assert_close(together[0], alone[0])
    torch.testing.assert_close(together[1, :3], alone[1, :3])


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
