"""Checkpoints as their publishers wrote them, made of the recorded weights, and the command that imports them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.paths import GOLDEN, REPOSITORY

HEADS = 4
"""Of the recorded GPT-2: no file says so (spec §12)."""

RUN = "chex_test/run_2024-01-01_00-00-00"
STEP = 7
_SAID = "said.json"
LM_HEAD = "txt_decoder.language_model.lm_head.weight"

State = dict[str, Tensor]
Content = dict[str, object]


def state() -> State:
    """The recorded weights under their published names, the tied matrix twice, as one storage."""
    with np.load(GOLDEN / "state_dict.npz") as arrays:
        weights = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    return weights | {LM_HEAD: weights["txt_decoder.language_model.transformer.wte.weight"]}


def config() -> Content:
    """A configuration with everything that shapes do not tell, and some of what they do."""
    sizes = json.loads((GOLDEN / "config.json").read_text(encoding="utf-8"))["chex"]
    generation = {"do_sample": False, "max_length": 24, "num_beams": 1, "use_cache": True}
    return {
        "model_class": "ChEX",
        "act": "gelu",
        "layer_scale": True,
        "MODIFYABLE_ATTRIBUTES": (),
        "d_model": sizes["d_model"],
        "n_head": sizes["n_head"],
        "n_post_decoder_layers": sizes["n_post_decoder_layers"],
        "detector": {**sizes["detector"], "clip_pos": False},
        "txt_decoder": {
            "language_model_url": "healx/gpt-2-pubmed-medium",
            "prefix_length_factor": sizes["txt_decoder"]["prefix_length_factor"],
            "position_offset": None,
            "max_length": 128,
            "generation_kwargs": generation,
        },
    }


def checkpoint(weights: State) -> Content:
    """What the published code saves: weights, configuration, and the state of training, numpy's numbers included."""
    return {
        "config_dict": config(),
        "state_dict": weights,
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(1000)}}, "param_groups": [{"lr": 3e-4}]},
        "lr_scheduler": {"base_values": [3e-4]},
        "amp": {"scale": 65536.0},
        "step": STEP,
        "results": {"loss": torch.tensor(1.5), "metric": np.float64(0.5), "count": np.int64(3)},
        "best_results": {"metric": np.float32(0.5)},
        "experiment_config": {"name": "chex_test"},
    }


def save(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def packed(path: Path, *files: tuple[str, Path]) -> Path:
    """Write a zip of files under the names they have in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, file in files:
            archive.write(file, name)
    return path


def chexzero(weights: State) -> State:
    """The two encoders as CheXzero has them: a plain CLIP state dict."""
    image, text = "img_encoder.backbone.", "txt_encoder."
    return (
        {f"visual.{key.removeprefix(image)}": value for key, value in weights.items() if key.startswith(image)}
        | {key.removeprefix(text): value for key, value in weights.items() if key.startswith(text)}
        | {"logit_scale": torch.tensor(4.6)}
    )


def gpt2(weights: State, *, below: str = "txt_decoder.language_model.") -> State:
    """The GPT-2 as Hugging Face has it, or, below its `transformer.`, the bare model."""
    return {key.removeprefix(below): value for key, value in weights.items() if key.startswith(below)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How the command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def published_folder(root: Path) -> Path:
    """Write a published model folder, unpacked; returns the folder."""
    save(root / RUN / "checkpoints" / f"checkpoint_{STEP:09d}.pth", checkpoint(state()))
    return root / RUN.split("/")[0]


def import_command(source: Path, model: Path, *more: str) -> list[str]:
    """Give the command that imports a published folder and exports its graphs."""
    return [sys.executable, "-m", "models.checkpoint", str(source), str(model), "--gpt2-heads", str(HEADS), *more]


def import_recorded(folder: Path) -> None:
    """Import the recorded weights into `folder/model`, and keep what the command said."""
    done = subprocess.run(
        import_command(published_folder(folder), folder / "model"), cwd=REPOSITORY, capture_output=True, text=True
    )
    said = Said(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
    (folder / _SAID).write_text(json.dumps(asdict(said)), encoding="utf-8")


def said_of(model: Path) -> Said:
    """Give what the command said that made an imported model."""
    return Said(**json.loads((model.parent / _SAID).read_text(encoding="utf-8")))
