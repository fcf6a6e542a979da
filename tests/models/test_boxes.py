"""Boxes: laws that hold for every box, the recorded numbers of the published code, and fusion as ensemble-boxes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.boxes import to_center_size, to_corners
from models.contract import Question
from models.reading.places import fuse
from models.reading.reader import ChexReader
from tests.paths import FIXTURES, GOLDEN
from tests.support.scripted_engine import EDEMA, PROMPTS, SENTENCES, ScriptedEngine, centers_of, reader_of, scores_of

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
    third = float(unit_boxes.iou(box, others)[0, 1])
    assert unit_boxes.suppress(others[:2], np.array([0.8, 0.9]), threshold=third) == [1, 0], "no more than that"
    assert unit_boxes.suppress(others[:2], np.array([0.8, 0.9]), threshold=third - 1e-6) == [1]


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


CASES = json.loads((FIXTURES / "fused_boxes.json").read_text())["cases"]

scored = st.lists(st.tuples(corner_boxes, st.floats(0.0625, 1, width=32)), min_size=1, max_size=6)


def array(values: object) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def test_fusion_is_that_of_the_ensemble_boxes_library() -> None:
    merged = 0
    for case in CASES:
        boxes, scores = fuse(array(case["boxes"]), array(case["scores"]), overlap=case["overlap"])

        np.testing.assert_allclose(boxes, case["fused_boxes"], atol=3e-6)
        np.testing.assert_allclose(scores, case["fused_scores"], atol=3e-6)
        merged += len(case["scores"]) - len(scores)
    assert len(CASES) == 40 and merged > 40


@given(scored, st.floats(0, 0.9))
def test_merged_boxes_lie_within_what_was_found(found: list[tuple[tuple[float, ...], float]], overlap: float) -> None:
    corners, scores = array([box for box, _ in found]), array([score for _, score in found])

    boxes, means = fuse(to_center_size(corners), scores, overlap=overlap)

    fused = to_corners(boxes)
    assert 1 <= len(boxes) == len(means) <= len(scores)
    assert (fused[:, :2] >= corners[:, :2].min(axis=0) - 1e-6).all()
    assert (fused[:, 2:] <= corners[:, 2:].max(axis=0) + 1e-6).all()
    assert scores.min() - 1e-6 <= means.min() and means.max() <= scores.max() + 1e-6
    assert (np.diff(means) <= 0).all()


@given(scored)
def test_with_an_overlap_of_one_no_box_is_merged(
    found: list[tuple[tuple[float, ...], float]],
) -> None:
    corners, scores = array([box for box, _ in found]), array([score for _, score in found])
    boxes = to_center_size(corners)

    kept, means = fuse(boxes, scores, overlap=1.0)

    order = np.argsort(-scores, kind="stable")
    np.testing.assert_array_equal(kept, boxes[order])
    np.testing.assert_array_equal(means, scores[order])


OVERLAPPING = array([[[0.5, 0.5, 0.4, 0.4], [0.1, 0.1, 0.1, 0.1], [0.52, 0.5, 0.4, 0.4]]])


def _merging(engine: ScriptedEngine, *, merge_overlap: float = 1.0, most_boxes: int | None = None) -> ChexReader:
    manifest = reader_of(engine).manifest
    decisions = replace(manifest.decisions, merge_overlap=merge_overlap, most_boxes=most_boxes)
    return ChexReader(replace(manifest, decisions=decisions), engine, PROMPTS, SENTENCES, trusted="any")


def test_reports_and_answers_have_the_same_merged_boxes() -> None:
    engine = ScriptedEngine([0.7], ["One"], array([[0.6, 0.7, 0.8]]), boxes=OVERLAPPING)
    reader = _merging(engine, merge_overlap=0.4)
    look = reader.look(np.zeros((300, 300), dtype=np.float32))

    reading = reader.report(look, [EDEMA])
    of_set, of_other_words = reader.ask(look, [Question(prompt="Edema"), Question(prompt="Cloud")], reference=[EDEMA])

    found = np.array([[0.5 + 0.02 * 0.8 / 1.4, 0.5, 0.4, 0.4], [0.1, 0.1, 0.1, 0.1]])
    for said in (reading.prompts[0], reading.sentences[0], of_set):
        assert centers_of(said.boxes) == pytest.approx(found, abs=1e-6)
        assert scores_of(said.boxes) == pytest.approx([0.7, 0.7])
    assert centers_of(of_other_words.boxes) == pytest.approx(found, abs=1e-6)


def test_boxes_below_the_threshold_are_not_merged_into_others() -> None:
    engine = ScriptedEngine([0.7], ["One"], array([[0.4, 0.1, 0.8]]), boxes=OVERLAPPING)
    reader = _merging(engine, merge_overlap=0.4)

    [found] = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA]).prompts

    assert centers_of(found.boxes) == pytest.approx(OVERLAPPING[0, 2:])


@pytest.mark.parametrize(("most", "scores"), [(None, [0.6, 0.9, 0.7]), (2, [0.9, 0.7]), (1, [0.9])])
def test_at_most_as_many_boxes_as_the_manifest_says_are_reported(most: int | None, scores: list[float]) -> None:
    engine = ScriptedEngine([0.7], ["One"], array([[0.6, 0.9, 0.7]]))
    reader = _merging(engine, most_boxes=most)

    [found] = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA]).prompts

    assert scores_of(found.boxes) == pytest.approx(scores)
