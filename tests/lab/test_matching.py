"""Matching: even shares at the least cost, whatever the order, and nothing for what is not there."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.lab.losses.detection import box_cost, giou_cost, match_evenly, mean_over_assigned
from tests.support.tensors import drawn, everything, gradients

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


def test_mean_over_assigned_pairs() -> None:
    cost = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, torch.inf], [7.0, 8.0]]])
    assigned = torch.tensor([[[True, False], [False, True]], [[False, False], [False, False]]])

    assert mean_over_assigned(cost, assigned).tolist() == [2.5, 0]
