"""Losses of training: values worked out by hand, matching of boxes, and batches with nothing to learn from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

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
    FindingLoss,
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
    found = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in found)
    return list(found)


def learned(*shape: int) -> Tensor:
    return drawn(*shape).float().requires_grad_()


seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_boxes_in_half_precision_have_a_size(dtype: torch.dtype) -> None:
    proposed, target = torch.tensor([[0.5, 0.5, 2**-12, 2**-12]]), torch.tensor([[0.5, 0.5, 2**-13, 2**-12]])

    torch.testing.assert_close(giou_cost(proposed.to(dtype), target), torch.tensor([[0.5]]))


def test_empty_boxes_have_a_cost_and_a_gradient() -> None:
    proposed = torch.zeros(1, 2, 4, requires_grad=True)

    cost = box_cost(proposed, torch.zeros(1, 3, 4)).sum()

    assert torch.isfinite(cost)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(cost, proposed))


@given(seeds, few, few)
def test_proposals_are_shared_out_evenly(seed: int, proposals: int, targets: int) -> None:
    assigned, matched = match_evenly(drawn(proposals, targets, seed=seed), everything(targets))

    shares = assigned.sum(dim=0)
    assert shares.sum() == proposals
    assert (assigned.sum(dim=1) == 1).all()
    assert set(shares.tolist()) <= {proposals // targets, math.ceil(proposals / targets)}
    # One proposal of each target is to be believed, if it has any.
    assert torch.equal((assigned & matched.unsqueeze(1)).sum(dim=0), shares.clamp(max=1))


@given(seeds, few, few)
def test_the_cheapest_of_a_targets_proposals_can_answer_for_it(seed: int, proposals: int, targets: int) -> None:
    cost = drawn(proposals, targets, seed=seed)

    assigned, matched = match_evenly(cost, everything(targets), answerer="cheapest")

    assert torch.equal(assigned, match_evenly(cost, everything(targets)).assigned)
    for target in range(targets):
        own = assigned[:, target]
        if own.any():
            cheapest = int(cost[:, target].masked_fill(~own, torch.inf).argmin())
            assert (own & matched).nonzero().flatten().tolist() == [cheapest]


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_no_even_share_costs_less(seed: int, proposals: int, targets: int) -> None:
    cost = drawn(proposals, targets, seed=seed)
    assigned, _ = match_evenly(cost, everything(targets))

    ways = (
        sum(cost[row, column] for row, column in enumerate(way))
        for way in itertools.product(range(targets), repeat=proposals)
        if {way.count(target) for target in range(targets)} <= {proposals // targets, math.ceil(proposals / targets)}
    )
    torch.testing.assert_close(cost[assigned].sum(), torch.as_tensor(min(ways)))


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
    assert all(torch.isfinite(gradient).all() for gradient in gradients(loss, scores))


def findings(
    boxes: Tensor, scores: Tensor, target: Tensor, valid: Tensor, labeled: Tensor, likely: Tensor | None = None
) -> FindingLoss:
    certain = torch.ones_like(scores) if likely is None else likely
    return finding_detection(boxes, scores, likely=certain, target=target, valid=valid, labeled=labeled)


def test_finding_loss_of_a_known_film() -> None:
    """One film, three classes: a target that both boxes answer for, labeled as absent, not labeled."""
    boxes = torch.tensor([[[LEFT, RIGHT], [LEFT, RIGHT], [WHOLE, WHOLE]]])
    scores = torch.full((1, 3, 2), 0.5)
    target = torch.tensor([LEFT]).expand(1, 3, 1, 4)
    valid, labeled = torch.tensor([[[True], [False], [False]]]), torch.tensor([[True, True, False]])

    loss = findings(boxes, scores, target, valid, labeled)

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

    loss = findings(boxes, scores, target, mask, torch.full((2, 3), labeled), likely)

    moved, judged, chosen = gradients(loss.total, boxes, scores, likely)
    assert bool(moved.any()) is (valid and labeled)
    assert bool(judged.any()) is labeled
    assert not chosen.any()


def anatomy(
    boxes: Tensor, target: Tensor, present: Tensor, pairs: Tensor, pairs_present: Tensor, scores: Tensor | None = None
) -> Tensor:
    judged = torch.ones(boxes.shape[:3]) if scores is None else scores
    return anatomy_detection(boxes, judged, target=target, present=present, pairs=pairs, pairs_present=pairs_present)


def test_anatomy_loss_counts_single_boxes_and_a_pair_once() -> None:
    """Two regions with one box, of which one is absent; a pair, of which both, one and none of the boxes are there."""
    boxes = torch.tensor([LEFT, RIGHT]).expand(1, 5, 2, 4)
    target, present = torch.tensor([[LEFT, WHOLE]]), torch.tensor([[True, False]])
    pairs = torch.tensor([RIGHT, LEFT]).expand(1, 3, 2, 4)
    pairs_present = torch.tensor([[[True, True], [True, False], [False, False]]])

    loss = anatomy(boxes, target, present, pairs, pairs_present)

    # Entries: 2 boxes of the first region, 2 pairs. Losses: 0 + 4.5, then 0, then (4.5 + 0) / 2.
    torch.testing.assert_close(loss, torch.tensor((4.5 + 2.25) / 4))


def test_scores_are_not_learned_from_anatomy() -> None:
    boxes = torch.tensor([LEFT, WHOLE, WHOLE]).reshape(1, 1, 3, 4)
    scores = torch.tensor([[[0.1, 0.2, 0.3]]], requires_grad=True)

    loss = anatomy(
        boxes, torch.zeros(1, 0, 4), nothing(1, 0), torch.tensor([[[LEFT, RIGHT]]]), everything(1, 1, 2), scores
    )

    assert not loss.requires_grad
    torch.testing.assert_close(loss, torch.tensor((0 + 4.75 + 4.75) / 3))


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("singles", "pairs", "targets"), [(2, 0, 2), (0, 2, 2), (2, 2, 5), (0, 0, 2)])
def test_anatomy_loss_has_finite_gradients(singles: int, pairs: int, targets: int, there: bool) -> None:
    boxes = learned(2, singles + pairs, 3, 4)

    loss = anatomy(
        boxes,
        torch.rand(2, singles, 4),
        torch.full((2, singles), there),
        torch.rand(2, pairs, targets, 4),
        torch.full((2, pairs, targets), there),
    )

    (moved,) = gradients(loss, boxes)
    assert bool(moved.any()) is (there and singles + pairs > 0)


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
    return anatomy_contrast(features, positive, negative, present=present, known=known, drawn=taken)


@pytest.mark.parametrize(("known", "taken"), [(True, True), (True, False), (False, True)])
def test_anatomy_contrast_has_finite_gradients(known: bool, taken: bool) -> None:
    features = learned(2, 4, 6)

    loss = regions_judged(features, nothing(2, 4, 3), torch.full((2, 4, 3), known), torch.full((3,), taken))

    (moved,) = gradients(loss.sum(), features)
    assert bool(moved.any()) is (known and taken)


@pytest.mark.parametrize("loss", [sentence_contrast, squared_error])
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
        sentence_contrast(regions, sentences, nothing(films, 3)),
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
