"""The square that the network sees of a film, and boxes in it: laws that hold for all, and fusion as ensemble-boxes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import boxes as unit_boxes
from models.boxes import to_center_size, to_corners
from models.contract import Question
from models.manifest import InputRule
from models.reading.places import fuse
from models.reading.preprocess import prepare, square
from models.reading.reader import ChexReader
from tests.paths import FIXTURES
from tests.support.scripted_engine import EDEMA, PROMPTS, SENTENCES, ScriptedEngine, centers_of, reader_of, scores_of

FloatArray = NDArray[np.floating]

edges = st.floats(0, 1, width=32)
corner_boxes = st.tuples(edges, edges, edges, edges).map(
    lambda e: (min(e[0], e[1]), min(e[2], e[3]), max(e[0], e[1]), max(e[2], e[3]))
)
several = st.lists(corner_boxes, min_size=1, max_size=6).map(lambda boxes: np.array(boxes, dtype=np.float32))


@given(several, several)
def test_overlap_is_symmetric_within_its_bounds_and_the_same_in_numpy_and_torch(
    first: FloatArray, second: FloatArray
) -> None:
    tensor, other = torch.from_numpy(first), torch.from_numpy(second)
    iou, giou = unit_boxes.iou(first, second), unit_boxes.giou(first, second)

    np.testing.assert_allclose(iou, unit_boxes.iou(second, first).T, atol=1e-6)
    assert ((iou >= 0) & (iou <= 1 + 1e-6)).all()
    assert ((giou >= -1 - 1e-6) & (giou <= iou + 1e-6)).all()
    np.testing.assert_allclose(iou, unit_boxes.iou(tensor, other), atol=1e-6)
    np.testing.assert_allclose(giou, unit_boxes.giou(tensor, other), atol=1e-6)
    np.testing.assert_array_equal(unit_boxes.enclosing(first), unit_boxes.enclosing(tensor))
    np.testing.assert_array_equal(unit_boxes.clip(first), unit_boxes.clip(tensor))
    np.testing.assert_allclose(to_corners(to_center_size(first)), first, atol=1e-6)


def test_overlap_and_stretching_of_known_boxes() -> None:
    box = np.array([[0.0, 0.0, 0.5, 0.5]])
    others = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.0, 0.75, 0.5], [0.5, 0.5, 1.0, 1.0], [0.2, 0.2, 0.2, 0.2]])

    np.testing.assert_allclose(unit_boxes.iou(box, others), [[1, 1 / 3, 0, 0]])
    np.testing.assert_allclose(unit_boxes.giou(box, others), [[1, 1 / 3, -0.5, 0]])
    third = float(unit_boxes.iou(box, others)[0, 1])
    assert unit_boxes.suppress(others[:2], np.array([0.8, 0.9]), threshold=third) == [1, 0], "no more than that"
    assert unit_boxes.suppress(others[:2], np.array([0.8, 0.9]), threshold=third - 1e-6) == [1]
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


CASES = json.loads((FIXTURES / "fused_boxes.json").read_text())["cases"]


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


@given(several, st.integers(0, 2**32 - 1), st.floats(0, 0.9))
def test_merged_boxes_lie_within_what_was_found(corners: FloatArray, seed: int, overlap: float) -> None:
    scores = np.random.default_rng(seed).uniform(0.0625, 1, len(corners)).astype(np.float32)

    boxes, means = fuse(to_center_size(corners), scores, overlap=overlap)

    fused = to_corners(boxes)
    assert 1 <= len(boxes) == len(means) <= len(scores)
    assert (fused[:, :2] >= corners[:, :2].min(axis=0) - 1e-6).all()
    assert (fused[:, 2:] <= corners[:, 2:].max(axis=0) + 1e-6).all()
    assert scores.min() - 1e-6 <= means.min() and means.max() <= scores.max() + 1e-6
    assert (np.diff(means) <= 0).all()


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


@pytest.mark.parametrize(
    ("scores", "merge_overlap", "most", "reported"),
    [
        ([0.6, 0.9, 0.7], 1.0, None, [0, 1, 2]),
        ([0.6, 0.9, 0.7], 1.0, 2, [1, 2]),
        ([0.6, 0.9, 0.7], 1.0, 1, [1]),
        ([0.1, 0.4, 0.2], 1.0, None, [1]),  # none is above the threshold
        ([0.4, 0.1, 0.8], 0.4, None, [2]),  # the first is below the threshold, and merged into no other
    ],
)
def test_at_most_as_many_boxes_as_the_manifest_says_are_reported(
    scores: list[float], merge_overlap: float, most: int | None, reported: list[int]
) -> None:
    engine = ScriptedEngine([0.7], ["One"], array([scores]), boxes=OVERLAPPING)
    reader = _merging(engine, merge_overlap=merge_overlap, most_boxes=most)

    [found] = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA]).prompts

    assert scores_of(found.boxes) == pytest.approx([scores[place] for place in reported])
    assert centers_of(found.boxes) == pytest.approx(OVERLAPPING[0, reported])


# ---- the square

DIRECT = InputRule(size=224, mean=0.505, std=0.248, resize="direct")
VIA_256 = InputRule(size=224, mean=0.505, std=0.248, resize="via_256")

sides = st.integers(1, 5000)
rules = st.sampled_from([DIRECT, VIA_256])


@given(sides, sides, rules)
def test_square_lies_in_the_film_centrally_and_fills_its_short_side(columns: int, rows: int, rule: InputRule) -> None:
    seen = square(columns, rows, rule)

    assert seen.left >= 0 and seen.top >= 0
    assert seen.right <= columns + 1e-9 and seen.bottom <= rows + 1e-9
    width, height = seen.right - seen.left, seen.bottom - seen.top
    assert max(width, height) >= min(columns, rows) - 1e-9
    assert abs(width - height) <= max(columns, rows) / 256
    pixel = 1 if rule is DIRECT else max(1, min(columns, rows) / 255)  # of the resized film
    assert abs(seen.left - (columns - seen.right)) <= pixel + 1e-9
    assert abs(seen.top - (rows - seen.bottom)) <= pixel + 1e-9


@pytest.mark.parametrize(
    ("columns", "rows", "rule", "seen"),
    [
        (640, 512, DIRECT, (64, 0, 576, 512)),
        (513, 512, DIRECT, (0, 0, 512, 512)),
        (512, 640, VIA_256, (0, 64, 512, 576)),
        # 512.5 columns round to 512, 513.5 to 514: halves go to even.
        (1025, 512, VIA_256, (128 * 1025 / 512, 0, 384 * 1025 / 512, 512)),
        (1027, 512, VIA_256, (129 * 1027 / 514, 0, 385 * 1027 / 514, 512)),
        (100, 100, VIA_256, (0, 0, 100, 100)),
    ],
)
def test_square_of_known_films(
    columns: int, rows: int, rule: InputRule, seen: tuple[float, float, float, float]
) -> None:
    assert square(columns, rows, rule) == pytest.approx(seen)


@given(st.integers(300, 700), st.integers(300, 700), rules, st.floats(0.2, 0.8), st.floats(0.2, 0.8))
@example(701, 300, VIA_256, 0.5, 0.5)
def test_a_spot_on_the_film_appears_where_the_square_says(
    columns: int, rows: int, rule: InputRule, x: float, y: float
) -> None:
    seen = square(columns, rows, rule)
    column = int(seen.left + x * (seen.right - seen.left))
    row = int(seen.top + y * (seen.bottom - seen.top))
    film = np.zeros((rows, columns), dtype=np.float32)
    film[row - 4 : row + 5, column - 4 : column + 5] = 1

    light = prepare(film, rule) * rule.std + rule.mean

    centers = (np.arange(rule.size) + 0.5) / rule.size
    found_x = (light.sum(axis=0) * centers).sum() / light.sum()
    found_y = (light.sum(axis=1) * centers).sum() / light.sum()
    assert found_x == pytest.approx((column + 0.5 - seen.left) / (seen.right - seen.left), abs=1.5 / rule.size)
    assert found_y == pytest.approx((row + 0.5 - seen.top) / (seen.bottom - seen.top), abs=1.5 / rule.size)


@pytest.mark.parametrize("rule", [DIRECT, VIA_256])
def test_an_even_film_becomes_an_even_input(rule: InputRule) -> None:
    for shape in ((1, 1), (3, 900), (224, 224), (300, 260)):
        pixels = prepare(np.full(shape, 0.75, dtype=np.float32), rule)

        assert pixels.shape == (224, 224) and pixels.dtype == np.float32
        np.testing.assert_allclose(pixels, (0.75 - 0.505) / 0.248, atol=1e-5)
    with pytest.raises(ValueError, match="0 x 5"):
        square(0, 5, rule)
