"""Weighted boxes fusion: equal to the recorded ensemble-boxes library, a mean, and applied where boxes are reported."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.boxes import to_center_size, to_corners
from models.contract import Question
from models.reading.places import fuse
from models.reading.reader import ChexReader
from tests.paths import FIXTURES
from tests.support.scripted_engine import EDEMA, PROMPTS, SENTENCES, ScriptedEngine, centers_of, reader_of, scores_of

CASES = json.loads((FIXTURES / "fused_boxes.json").read_text())["cases"]

edges = st.floats(0, 1, width=32)
corner_boxes = st.tuples(edges, edges, edges, edges).map(
    lambda e: (min(e[0], e[1]), min(e[2], e[3]), max(e[0], e[1]), max(e[2], e[3]))
)
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
