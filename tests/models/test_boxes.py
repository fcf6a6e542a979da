"""Boxes: laws that hold for every box, and the recorded numbers of the published code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import boxes as unit_boxes
from tests.paths import GOLDEN

RECORDED = GOLDEN / "golden.npz"

FloatArray = NDArray[np.floating]

edges = st.floats(0, 1, width=32)
corner_boxes = st.tuples(edges, edges, edges, edges).map(
    lambda e: (min(e[0], e[1]), min(e[2], e[3]), max(e[0], e[1]), max(e[2], e[3]))
)
several = st.lists(corner_boxes, min_size=1, max_size=6).map(lambda boxes: np.array(boxes, dtype=np.float32))


@given(several)
def test_center_size_and_corners_are_inverse(corners: FloatArray) -> None:
    back = unit_boxes.to_corners(unit_boxes.to_center_size(corners))

    np.testing.assert_allclose(back, corners, atol=1e-6)


@given(several, several)
def test_numpy_and_torch_agree(first: FloatArray, second: FloatArray) -> None:
    tensor, other = torch.from_numpy(first), torch.from_numpy(second)

    np.testing.assert_allclose(unit_boxes.iou(first, second), unit_boxes.iou(tensor, other), atol=1e-6)
    np.testing.assert_allclose(unit_boxes.giou(first, second), unit_boxes.giou(tensor, other), atol=1e-6)
    np.testing.assert_array_equal(unit_boxes.enclosing(first), unit_boxes.enclosing(tensor))
    np.testing.assert_array_equal(unit_boxes.clip(first), unit_boxes.clip(tensor))


@given(several, several)
def test_overlap_is_symmetric_and_within_its_bounds(first: FloatArray, second: FloatArray) -> None:
    iou, giou = unit_boxes.iou(first, second), unit_boxes.giou(first, second)

    np.testing.assert_allclose(iou, unit_boxes.iou(second, first).T, atol=1e-6)
    assert ((iou >= 0) & (iou <= 1 + 1e-6)).all()
    assert ((giou >= -1 - 1e-6) & (giou <= iou + 1e-6)).all()


def test_overlap_of_known_boxes() -> None:
    box = np.array([[0.0, 0.0, 0.5, 0.5]])
    others = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.0, 0.75, 0.5], [0.5, 0.5, 1.0, 1.0], [0.2, 0.2, 0.2, 0.2]])

    np.testing.assert_allclose(unit_boxes.iou(box, others), [[1, 1 / 3, 0, 0]])
    np.testing.assert_allclose(unit_boxes.giou(box, others), [[1, 1 / 3, -0.5, 0]])


def test_boxes_stretch_about_their_center_by_one_or_own_factors() -> None:
    boxes = np.array([[0.5, 0.4, 0.2, 0.1], [0.1, 0.9, 0.4, 0.2]])

    np.testing.assert_allclose(unit_boxes.scale(boxes, 2.0), [[0.5, 0.4, 0.4, 0.2], [0.1, 0.9, 0.8, 0.4]])
    each = unit_boxes.scale(torch.from_numpy(boxes), torch.tensor([[1.0], [0.5]]))
    np.testing.assert_allclose(each, [[0.5, 0.4, 0.2, 0.1], [0.1, 0.9, 0.2, 0.1]])


@given(several, st.integers(0, 2**32 - 1), st.floats(0.05, 0.95))
def test_suppression_keeps_the_best_and_leaves_no_overlap(corners: FloatArray, seed: int, threshold: float) -> None:
    scores = np.random.default_rng(seed).random(len(corners)).astype(np.float32)

    kept = unit_boxes.suppress(corners, scores, threshold=threshold)

    overlap = unit_boxes.iou(corners, corners)
    assert kept[0] == scores.argmax()
    assert all(overlap[a, b] <= threshold for a in kept for b in kept if a != b)
    for dropped in set(range(len(corners))) - set(kept):
        assert any(overlap[dropped, better] > threshold and scores[better] >= scores[dropped] for better in kept)


@pytest.mark.parametrize("film", [0, 1])
def test_suppression_and_costs_are_the_recorded_ones(film: int) -> None:
    with np.load(RECORDED) as golden:
        grounded = {
            key: golden[key] for key in golden.files if key.startswith(("sg/multi", f"sg/official/pred_boxes{film}"))
        }
        predicted, target = golden["loss/pred_boxes"], golden["loss/target_boxes"]
        costs = golden["loss/giou_cost"]

    giou = unit_boxes.giou(unit_boxes.to_corners(predicted), unit_boxes.to_corners(target))
    np.testing.assert_allclose(1 - giou, costs, atol=1e-5)
    sentences = [key for key in grounded if "official" in key]
    assert sentences
    for sentence, key in enumerate(sentences):
        boxes = grounded["sg/multiboxes"][film, sentence]
        scores = grounded["sg/multiboxes_weights"][film, sentence]
        kept = unit_boxes.suppress(unit_boxes.to_corners(boxes), scores, threshold=0.25)
        np.testing.assert_allclose(np.c_[boxes, scores][kept], grounded[key], atol=1e-6)
