"""Losses of boxes and scores (paper 3.2, D.2; spec §10), for findings and for anatomy.

The prompt of a finding has several boxes or none.

Boxes are center x, center y, width, height as the detector's sigmoid proposes them; like the published training, they
are not clipped. The matching uses more than boxes, but no gradient flows through it.
"""

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
SCORE_WEIGHT = 3.0
"""The weight of the score in the costs of a match and in the loss of findings; 1 - likelihood has weight 1."""

_FOCUS = 2
_SMALLEST = 1e-7


def mean_of(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [...] over the entries marked in counted [...], into a scalar."""
    return losses.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def mean_by_film(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [F, n] over counted [F, n] within each film, then over the films, into a scalar.

    Films without a counted entry are ignored, as the published training removes them from its batch (spec §10).
    """
    within = losses.masked_fill(~counted, 0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    return mean_of(within, counted.any(dim=1))


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
    """Assign the proposals evenly to the targets, at the least cost (spec §10, DEP-17).

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


class FindingLoss(NamedTuple):
    """The two parts of the loss of findings, unweighted scalars."""

    box: Tensor
    score: Tensor

    @property
    def total(self) -> Tensor:
        """Weigh the parts as the published training does."""
        return self.box + SCORE_WEIGHT * self.score


def likelihood(tokens: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Return the probability that a box shows its class, by its token: softmax of dot products, not cosines (spec §10).

    tokens: [F, C, R, dim]; positive, negative: prompts [C, dim]
    Returns [F, C, R], 0..1.
    """
    return torch.sigmoid((tokens @ (positive - negative).unsqueeze(-1)).squeeze(-1))


def focal(scores: Tensor, believed: Tensor) -> Tensor:
    """Return the focal loss of scores, 0..1, against their targets (spec §10, DEP-18).

    scores, believed: any shape, float and bool; returns the same shape
    The rarer of the two answers weighs more: alpha is the other one's share, counted over the whole tensor and not per
    class. One is added to both counts, so a batch without any positive is a batch like any other.
    """
    share = (believed.sum() + 1) / (believed.numel() + 2)
    right = torch.where(believed, scores, 1 - scores).to(torch.promote_types(scores.dtype, torch.float32))
    entropy = -right.clamp(min=_SMALLEST, max=1 - _SMALLEST).log()
    return torch.where(believed, 1 - share, share) * entropy * (1 - right) ** _FOCUS


def finding_detection(
    boxes: Tensor,
    scores: Tensor,
    *,
    likely: Tensor,
    target: Tensor,
    valid: Tensor,
    labeled: Tensor,
    answerer: Answerer = "first",
) -> FindingLoss:
    """Loss "patho-detect" (spec §10): box loss against the findings' targets, and score loss by which boxes matched.

    boxes: [F, C, R, 4]; scores, likely: [F, C, R], see `likelihood`
    target: [F, C, T, 4]; valid: [F, C, T], False for padding; labeled: [F, C], True where a film's boxes of a class are
    known, possibly none
    A pair costs 5 L1 + 2 (1 - gIoU) + (1 - likely) + 3 (1 - score). The box loss is the mean of the first two over the
    assigned pairs of a class, 0 for a class without targets; the score loss is the mean of `focal` over its R boxes;
    both are averaged over the labeled classes of a film, then over the films that have such. Targets beyond R in number
    are left alone, those that would cost most. Films without labels are dropped first, so `focal` does not count them.
    """
    known = labeled.any(dim=1)
    boxes, scores, likely = boxes[known], scores[known], likely[known]
    target, valid, labeled = target[known], valid[known], labeled[known]
    costs = box_cost(boxes, target)
    doubts = (1 - likely) + SCORE_WEIGHT * (1 - scores)
    # This cost is the same for all targets of a box, and every box gets one: as published, it only decides ties.
    assigned, matched = match_evenly(costs + doubts.unsqueeze(-1), valid, answerer=answerer)
    return FindingLoss(
        box=mean_by_film(mean_over_assigned(costs, assigned), labeled),
        score=mean_by_film(focal(scores, matched).mean(dim=-1), labeled),
    )


def anatomy_detection(
    boxes: Tensor, scores: Tensor, *, target: Tensor, present: Tensor, pairs: Tensor, pairs_present: Tensor
) -> Tensor:
    """Loss "anat-detect" (spec §10): box loss of the regions of the anatomy, without a loss of scores (DEP-19).

    boxes: [F, A + B, R, 4] and scores: [F, A + B, R], of A regions with one box and then B with two, as both lungs have
    target: [F, A, 4]; present: [F, A]; pairs: [F, B, T, 4]; pairs_present: [F, B, T]
    All R boxes of a region with one box regress to it. Those of the others are matched by 5 L1 + 2 (1 - gIoU) +
    3 (1 - score) and averaged over the assigned pairs. The loss, a scalar, is the sum of all divided by the number of
    entries in the batch: R for a present region with one box, 1 for any other present one.
    """
    singles = target.shape[1]
    costs = box_cost(boxes[:, :singles], target.unsqueeze(2)).squeeze(-1)
    pair_costs = box_cost(boxes[:, singles:], pairs)
    doubts = SCORE_WEIGHT * (1 - scores[:, singles:])
    assigned, _ = match_evenly(pair_costs + doubts.unsqueeze(-1), pairs_present)
    total = costs.masked_fill(~present.unsqueeze(-1), 0).sum() + mean_over_assigned(pair_costs, assigned).sum()
    entries = present.sum() * boxes.shape[2] + pairs_present.any(dim=-1).sum()
    return total / entries.clamp(min=1)
