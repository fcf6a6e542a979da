"""Assigns proposed boxes to targets: the costs of all pairs, and their balanced matching (spec §10)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from models import boxes as unit_boxes
from models.lab.losses import Answerer

L1_WEIGHT = 5.0
GIOU_WEIGHT = 2.0

Costs = NDArray[np.floating]


class Matching(NamedTuple):
    """Pairs of proposals and targets.

    assigned: [..., R, T], the pairs. Every proposal has one target, unless there are more targets than proposals: then
    every proposal has its own target and the most expensive targets have none.
    matched: [..., R], the one proposal of each target whose score is to rise
    """

    assigned: Tensor
    matched: Tensor


def l1_cost(proposed: Tensor, target: Tensor) -> Tensor:
    """Return the L1 distance of every pair of center-size boxes [..., R, 4] and [..., T, 4], as [..., R, T]."""
    return torch.cdist(_precise(proposed), _precise(target), p=1)


def giou_cost(proposed: Tensor, target: Tensor) -> Tensor:
    """Return 1 - gIoU, 0..2, of every pair of center-size boxes [..., R, 4] and [..., T, 4], as [..., R, T]."""
    return 1 - unit_boxes.giou(*(unit_boxes.to_corners(_precise(boxes)) for boxes in (proposed, target)))


def box_cost(proposed: Tensor, target: Tensor) -> Tensor:
    """Return the published weighting of both costs, also used as a loss: 5 L1 + 2 (1 - gIoU), [..., R, T]."""
    return L1_WEIGHT * l1_cost(proposed, target) + GIOU_WEIGHT * giou_cost(proposed, target)


@torch.no_grad()
def match_evenly(cost: Tensor, valid: Tensor, *, answerer: Answerer = "first") -> Matching:
    """Share out the proposals evenly among the targets, at the least cost (spec §10, DEP-17).

    cost: [..., R, T]; valid: [..., T], False for targets that only fill up a row; those get nothing
    With n targets each gets floor(R / n) or ceil(R / n) proposals, by one solve for all. As published, `matched` is the
    proposal that took a target's first copy. All proposals of one target tie for that, whatever they cost: the solver
    and the last digit decide, so the arithmetic here has the cost's own precision. Raises ValueError where a cost is
    not a number.
    """
    pairs = _precise(cost).numpy(force=True)
    given = valid.numpy(force=True)
    assigned = np.zeros(pairs.shape, dtype=bool)
    matched = np.zeros(pairs.shape[:-1], dtype=bool)
    for place in np.ndindex(given.shape[:-1]):
        targets = np.flatnonzero(given[place])
        if targets.size:
            costs = pairs[place][:, targets]
            proposals, copies = linear_sum_assignment(_with_copies(costs))
            taken = copies % targets.size
            assigned[place][proposals, targets[taken]] = True
            if answerer == "cheapest":
                # The proposals are sorted by cost, and the first of each target is kept.
                order = np.argsort(costs[proposals, taken], kind="stable")
                proposals = proposals[order[np.unique(taken[order], return_index=True)[1]]]
                matched[place][proposals] = True
            else:
                matched[place][proposals[copies < targets.size]] = True
    return Matching(*(torch.from_numpy(mask).to(cost.device) for mask in (assigned, matched)))


def mean_over_assigned(cost: Tensor, assigned: Tensor) -> Tensor:
    """Average a cost [..., R, T] over the assigned pairs of each prompt, as [...]; 0 if there are none."""
    total = cost.masked_fill(~assigned, 0).sum(dim=(-2, -1))
    return total / assigned.sum(dim=(-2, -1)).clamp(min=1)


def _with_copies(cost: Costs) -> Costs:
    """Repeat the targets of a cost [R, T] until there is one for each proposal.

    Each copy costs so much more than the one before it that no proposal takes one while an earlier copy of any other
    target is free; that is what makes the shares even.
    """
    proposals, targets = cost.shape
    copies = -(-proposals // targets)
    surcharge = np.arange(copies, dtype=cost.dtype) * (cost.max() - cost.min() + 1)
    tiled: Costs = np.tile(cost, copies) + surcharge.repeat(targets)
    return tiled


def _precise(numbers: Tensor) -> Tensor:
    """Convert float16 to float32, because the areas of small boxes underflow in float16."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))
