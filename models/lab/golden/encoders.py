"""Films into the network's input, films and phrases into features (spec §1 to 3)."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from models.errors import ModelError
from models.lab.golden.recording import PHRASES, Computed, RecordedNetwork, watched
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, InputRule
from models.reading.preprocess import prepare

_STAGE_SIDE = 256


def pictures(ours: RecordedNetwork) -> Computed:
    """Prepare every recorded film on both paths, and the batch of them all."""
    side = ours.network.sizes.image_encoder.image_size
    ready = InputRule(size=side, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="via_256")
    # The published training stored the cropped film, before it was resized and normalized.
    stage = InputRule(size=_STAGE_SIDE, mean=0, std=1, resize="via_256")
    direct = InputRule(size=side, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="direct")
    batch = []
    count = sum(name.endswith("/raw_uint8") for name in ours.recording.arrays)
    for name in (f"image{number}" for number in range(count)):
        path = ours.recording.folder / f"{name}.png"
        raw = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if raw is None:
            raise ModelError(f"{path} cannot be read; restore the folder")
        gray = (raw / 255).astype(np.float32)
        batch.append(prepare(gray, ready))
        yield f"{name}/raw_uint8", raw
        yield f"{name}/stage1_256", prepare(gray, stage)
        yield f"{name}/x", batch[-1]
        yield f"{name}/x_direct", prepare(gray, direct)
    yield "x", np.stack(batch)


def image_encoder(ours: RecordedNetwork) -> Computed:
    """Encode the films; every layer on the way."""
    with watched(ours.network) as seen:
        patches, positions, cls = ours.look()
    after = seen["image_encoder.norm_after"]
    yield "img/ln_pre", seen["image_encoder.norm_before"]
    for layer in range(ours.network.sizes.image_encoder.layers):
        yield f"img/block{layer}", seen[f"image_encoder.layers.{layer}"]
    yield "img/cls_ln_post", after[:, 0]
    yield "img/patch_ln_post", after[:, 1:]
    yield "img/patch_features", patches
    yield "img/pos_embeddings", positions
    yield "img/cls_features", cls


def prompt_encoder(ours: RecordedNetwork) -> Computed:
    """Split phrases into tokens and encode them; the last layer on the way for the first few."""
    for kind in PHRASES:
        tokens = ours.phrases.encode(ours.recording.sentences(f"txt/{kind}/texts"))
        yield f"txt/{kind}/ids", tokens
        with watched(ours.network) as seen:
            yield f"txt/{kind}/emb", ours.network.encode_prompts(torch.from_numpy(tokens))
        if kind == "rg_queries":
            few = ours.recording.extent("txt/rg_queries/ln_final")
            last = ours.network.sizes.prompt_encoder.layers - 1
            yield "txt/rg_queries/transformer_out", seen[f"prompt_encoder.layers.{last}"][:few]
            yield "txt/rg_queries/ln_final", seen["prompt_encoder.norm_after"][:few]
