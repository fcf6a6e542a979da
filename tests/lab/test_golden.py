"""The network against numbers recorded from the published one (spec §14): the proof that it is ChEX."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from models import golden
from models.engines.opening import open_engine
from models.lab.golden.comparison import compare, difference, tolerance_of
from models.lab.golden.recording import RecordedNetwork, open_network
from tests.paths import GOLDEN

RECORDED = Path(os.environ.get("CHEX_GOLDEN", GOLDEN))

with np.load(RECORDED / "golden.npz") as recorded:
    ARRAYS = tuple(recorded.files)

# What our network is fed with and makes nothing of by itself: random draws and random numbers, and what was asked.
GIVEN = {
    *(f"rg/{draw}/keep_tokens" for draw in ("drop10", "drop50")),
    *(f"loss/{name}" for name in ("pred_boxes", "target_boxes", "target_mask", "probs", "z1", "z2", "z_sent", "z_reg")),
    *(f"loss/patho_{name}" for name in ("features", "pos", "neg", "targets")),
    *(f"loss/anat_{name}" for name in ("targets", "has")),
    *(f"txt/{kind}/texts" for kind in ("rg_queries", "rg_neg", "odd")),
    *(f"rg/prompt_{name}" for name in ("texts", "types")),
    "sg/sentences",
    "lm/train_targets",
}


@pytest.fixture(scope="module")
def ours() -> RecordedNetwork:
    return open_network(RECORDED)


def test_the_network_computes_what_is_recorded_and_takes_over_its_inputs_only(ours: RecordedNetwork) -> None:
    comparison = compare(ours)

    far = {name: found for name, found in comparison.arrays.items() if not found.max_abs <= found.tolerance}
    wrong = {name for name, is_equal in comparison.texts.items() if not is_equal and not name.startswith("stats/")}
    assert (far, wrong - comparison.given, comparison.missing) == ({}, set(), ())
    assert comparison.arrays.keys() == {*ARRAYS} and comparison.given <= GIVEN
    assert comparison.passed


def test_tolerances_are_those_of_the_recording() -> None:
    tolerances = {
        "image0/x": 1e-4,
        "rg/det/roi_pooled": 1e-3,
        "region/roi_pooled": 1e-3,
        "rg/multiboxes_features_post": 1e-4,
        "rg/box_features_aggregated": 1e-4,
        "rg/gen0/first_step_logits": 1e-4,
    }
    narrow = "rg/multiboxes rg/multiboxes_weights rg/boxes_weights od/od_nih8/scaled/pred_boxes1 lm/train_loss"
    narrow += " sg/official/pred_boxes0_1 rg/sentence_similarity01"
    tolerances |= dict.fromkeys(narrow.split(), 1e-5)

    assert {name: tolerance_of(name) for name in tolerances} == tolerances


def test_ids_and_masks_must_be_equal_and_shapes_must_fit() -> None:
    ids = np.array([1, 2], dtype=np.int32)

    assert not difference("rg/gen0/token_ids", np.array([1, 3]), ids).passed
    assert difference("rg/gen0/token_ids", np.array([1, 2]), ids).passed
    assert not difference("rg/multiboxes", torch.zeros(3), np.zeros(2, dtype=np.float32)).passed
    assert not difference("rg/multiboxes", torch.zeros(2, 3, 4), np.zeros((6, 4), dtype=np.float32)).passed
    assert not difference("rg/multiboxes", torch.zeros(2, 3, 4), np.zeros((2, 4, 3), dtype=np.float32)).passed
    assert difference("img/patch_features", torch.zeros(2, 9, 4), np.zeros((2, 3, 3, 4), dtype=np.float32)).passed
    assert not difference("rg/multiboxes", torch.full((2,), float("nan")), np.zeros(2, dtype=np.float32)).passed


@pytest.mark.drill(part="runtimes")
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_an_engine_computes_what_is_recorded(ours: RecordedNetwork, imported_model: Path, engine: str) -> None:
    found = compare(ours, engine=open_engine(imported_model, engine=engine, threads=1))

    assert {name for name, value in found.arrays.items() if not value.passed} == set()
    assert found.passed
    assert {"img/patch_features", "txt/odd/emb", "rg/multiboxes", "rg/box_features_post"} <= found.arrays.keys()
    assert {"rg/gen0/token_ids", "region/features_nomask0"} <= found.arrays.keys() - found.given


def test_the_command_answers_with_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main([str(RECORDED), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert set(answer["arrays"]) == set(ARRAYS)
    said = {key: answer[key] for key in ("missing", "ids_equal", "texts_equal", "passed")}
    assert said == {"missing": [], "ids_equal": True, "texts_equal": True, "passed": True}


@pytest.mark.drill(part="laboratory")
@pytest.mark.parametrize("name", ["golden.npz", "golden_text.json", "config.json", "state_dict.npz"])
def test_a_damaged_recording_is_wrong_input(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(RECORDED, tmp_path / "recording")
    (folder / name).write_bytes((folder / name).read_bytes()[:100])

    assert golden.main([str(folder)]) == 2
    assert name in capsys.readouterr().err
    shutil.rmtree(folder)
