"""Runnable: a checkpoint of the published layout and size, 12 GB, with random weights.

    python -m tests.drills.full_size LAYOUT.json FILE.pth

The weights are those of `models.random_weights` under their published names; the optimizer's state is zeros, which
take place in the file and none in memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.checkpoint import published
from models.manifest import PUBLISHED_SIZES
from models.random_weights import draw, shapes_of
from tests.support import official

SEED = 11
STEP = 62_300
TRAINED = 928_544_262
"""Parameters with two moments each in the state of the optimizer (param_counts.json)."""


def main(layout: Path, path: Path) -> None:
    wanted = {
        key: tuple(shape)
        for key, (shape, _) in json.loads(layout.read_text(encoding="utf-8")).items()
        if key != official.LM_HEAD
    }
    shapes = shapes_of(PUBLISHED_SIZES)
    assert published.their_shapes(shapes) == wanted
    weights = {published.their_name(name): drawn(name, shape) for name, shape in shapes.items()}
    for key in wanted:
        if published.is_turned(key):
            weights[key] = weights[key].T.contiguous()
    weights[official.LM_HEAD] = weights["txt_decoder.language_model.transformer.wte.weight"]
    content = official.checkpoint(weights)
    config = content["config_dict"]
    assert isinstance(config, dict)
    sizes = PUBLISHED_SIZES
    config |= {"d_model": sizes.dim, "n_head": sizes.detector.heads, "n_post_decoder_layers": sizes.post_decoder.layers}
    config["detector"] |= {"n_decoder_layers": sizes.detector.layers}
    config["txt_decoder"]["generation_kwargs"]["max_length"] = sizes.generator.max_length
    moments = {"exp_avg": torch.zeros(TRAINED), "exp_avg_sq": torch.zeros(TRAINED)}
    official.save(path, content | {"step": STEP, "optimizer": {"state": {0: moments}, "param_groups": []}})


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(draw(name, shape, seed=SEED))).reshape(shape))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
