"""A recording of other sizes is compared by the same command: nothing of the recorded sizes stands in the code.

The recording is made of our own network, so this says nothing about its numbers; `test_golden.py` does.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from models import golden
from models.checkpoint import published
from models.errors import ModelError
from models.lab.golden.comparison import PARTS
from models.lab.golden.recording import Array, RecordedNetwork, Recording
from models.manifest import (
    DetectorSizes,
    GeneratorSizes,
    ImageEncoderSizes,
    NetworkSizes,
    PostDecoderSizes,
    PromptEncoderSizes,
)
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer
from tests.paths import GOLDEN

FILMS = ((100, 80), (64, 64), (90, 300))
SIZES = NetworkSizes(
    image_encoder=ImageEncoderSizes(patch_size=32, image_size=96, width=128, layers=2, heads=2, output=48),
    prompt_encoder=PromptEncoderSizes(vocabulary=49408, context=77, width=64, layers=1, heads=1, output=48),
    detector=DetectorSizes(dim=48, heads=3, layers=1, boxes_per_prompt=2, feedforward=96, beta=2.5),
    post_decoder=PostDecoderSizes(layers=1),
    generator=GeneratorSizes(
        vocabulary=50257, positions=40, width=40, layers=1, heads=5, prefix_length=3, prefix_hidden=16, max_length=9
    ),
)
PROMPTS = ["Edema", "Fracture", "Left lung"]
TEXTS: dict[str, object] = {
    "txt/rg_queries/texts": PROMPTS,
    "txt/rg_neg/texts": ["No edema", "No fracture"],
    "txt/odd/texts": ["", "odd"],
    "rg/prompt_texts": PROMPTS,
    "rg/prompt_types": ["pathology", "pathology", "anatomy"],
    **{f"rg/postprocess/{rule}": {"config": {}} for rule in ("official", "hi", "lo", "soft")},
    "rg/postprocess/soft_positiveness": {
        "config": {"synonym_removal_thres": 0.9, "sentence_preference": "positiveness"}
    },
    "od/od_vindrcxr/class_names": ["vindrcxr/ILD", "vindrcxr/Other lesion"],
    "od/od_nih8/class_names": ["nih/Mass"],
    "od/od_mscxr/class_names": ["mscxr/Edema", "mscxr/Pneumonia", "mscxr/Pneumothorax"],
    "sg/sentences": [["Edema."], ["Fracture.", "No edema.", "Normal.", "Left."], ["Normal."]],
    "lm/train_targets": ["Lungs are clear.", "No edema.", "Clear.", "Normal heart size.", "Tube.", "Line.", "Normal."],
}


@pytest.mark.drill(part="laboratory")
def test_a_recording_of_other_sizes_runs_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path)

    status = golden.main([str(tmp_path), "--json"])

    answer = json.loads(capsys.readouterr().out)
    assert (answer["missing"], answer["ids_equal"], answer["texts_equal"]) == ([], True, True)
    assert (status, answer["passed"]) == (0, True)
    assert {"rg/gen2/token_ids", "sg/scaled/pred_boxes1_3", "od/od_nih8/official/pred_boxes2"} <= set(answer["arrays"])
    assert "img/block1" in answer["arrays"] and "img/block2" not in answer["arrays"]


def record(folder: Path) -> None:
    """Write a recording of a random network, in which everything that can be compared is there."""
    torch.manual_seed(5)
    network = Chex(SIZES).eval().requires_grad_(False)
    network.post_decoder.gate.fill_(0.5)
    arrays, texts = inputs(np.random.default_rng(5)), dict(TEXTS)
    for number, (rows, columns) in enumerate(FILMS):
        film = np.random.default_rng(number).integers(0, 256, (rows, columns)).astype(np.uint8)
        assert cv2.imwrite(str(folder / f"image{number}.png"), film)
        arrays[f"image{number}/raw_uint8"] = film
    ours = RecordedNetwork(
        recording=Recording(folder=folder, arrays=arrays, texts=texts, config={}),
        network=network,
        phrases=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
    )
    fill_in(ours, arrays, texts)
    np.savez(folder / "golden.npz", **arrays)  # type: ignore[arg-type]  # it takes the names of the arrays
    (folder / "golden_text.json").write_text(json.dumps(texts), encoding="utf-8")
    config = {
        "chex": {"n_head": 3, "detector": {"soft_roi_beta": 2.5}},
        "gpt2": {"n_head": 5},
        "max_length_used": 9,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    np.savez(folder / "state_dict.npz", **published_state(network))  # type: ignore[arg-type]  # as above


def inputs(random: np.random.Generator) -> dict[str, Array]:
    """Draw what a recording starts from; arrays of zeros say how much of a stage is recorded."""

    def numbers(*shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32)

    def boxes(*shape: int) -> Array:
        return random.uniform(0.1, 0.5, (*shape, 4)).astype(np.float32)

    def choices(*shape: int) -> Array:
        return random.random(shape) > 0.4

    films, valid = len(FILMS), np.array([[True] * 4, [True] + [False] * 3, [True, True, False, False]])
    return {
        **{f"rg/{draw}/keep_tokens": choices(films, 3, 2) for draw in ("drop10", "drop50")},
        "txt/rg_queries/ln_final": np.zeros(2, dtype=np.float32),
        "rg/det/roi_maps": np.zeros((1, 4), dtype=np.float32),
        "rg/gen0/prefix_flat": np.zeros(1, dtype=np.float32),
        "rg/gen0/first_step_logits": np.zeros(2, dtype=np.float32),
        "region/boxes": boxes(films, 4) * valid[..., np.newaxis].astype(np.float32),
        "region/mask": valid,
        "loss/pred_boxes": boxes(4, 2, 2),
        "loss/target_boxes": boxes(4, 2, 2),
        "loss/target_mask": choices(4, 2, 2),
        "loss/probs": random.random((4, 2, 2)).astype(np.float32),
        "loss/z1": numbers(5, 48),
        "loss/z2": numbers(5, 48),
        "loss/z_sent": numbers(films, 4, 48),
        "loss/z_reg": numbers(films, 4, 48),
        "loss/patho_features": numbers(4, 5, 48),
        "loss/patho_pos": numbers(5, 48),
        "loss/patho_neg": numbers(5, 48),
        "loss/patho_targets": choices(4, 5).astype(np.int64),
        "loss/anat_targets": choices(4, 5, 5),
        "loss/anat_has": choices(4, 5, 5),
    }


def fill_in(ours: RecordedNetwork, arrays: dict[str, Array], texts: dict[str, object]) -> None:
    """Compute every part until none lacks what another computes."""
    for _ in range(4):
        lacking = []
        for compute in PARTS.values():
            try:
                with torch.inference_mode():
                    for name, value in compute(ours):
                        if isinstance(value, Tensor | np.ndarray):
                            arrays[name] = np.asarray(value)
                        else:
                            texts[name] = value
            except ModelError as error:
                lacking.append(str(error))
        if not lacking:
            return
    raise AssertionError(lacking)


def published_state(network: Chex) -> dict[str, Array]:
    """Give the weights their published names and layouts; there are no layers here that the golden network lacks."""
    with np.load(GOLDEN / "state_dict.npz") as arrays:
        names = [name for name in arrays.files if not name.endswith("lm_head.weight")]
    ours = network.state_dict()
    theirs = {name: ours[published.our_name(name)] for name in names if published.our_name(name) in ours}
    assert len(theirs) == len(ours)
    turned = re.compile(r"language_model\..*\.c_(attn|proj|fc)\.weight$")
    return {name: (tensor.T if turned.search(name) else tensor).numpy() for name, tensor in theirs.items()}
