"""Losses of boxes and scores: films worked out by hand, and gradients where there is nothing to learn from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models.lab.losses.detection import FindingLoss, anatomy_detection, finding_detection, focal
from tests.support.tensors import LEFT, RIGHT, WHOLE, drawn, everything, gradients, learned, nothing


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


def test_films_without_labels_change_nothing() -> None:
    boxes, target, scores = drawn(2, 3, 2, 4).float(), drawn(2, 3, 1, 4, seed=1).float(), drawn(2, 3, 2, seed=2).float()
    labeled = torch.tensor([[True, False, True], [False, False, False]])

    both = findings(boxes, scores, target, everything(2, 3, 1), labeled)
    alone = findings(boxes[:1], scores[:1], target[:1], everything(1, 3, 1), labeled[:1])

    torch.testing.assert_close(both, alone)


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
