"""What every engine offers: the exported stages, and sentences (design §4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.engines import Engine, Patches
from models.lab.golden.recording import PHRASES, Computed, RecordedNetwork


def engine_part(engine: Engine) -> Callable[[RecordedNetwork], Computed]:
    """Return the part of a comparison that this engine computes; it must have the recorded weights."""

    def compute(ours: RecordedNetwork) -> Computed:
        """Run every function of the engine on recorded inputs."""
        for kind in PHRASES:
            tokens = ours.recording.take(f"txt/{kind}/ids").numpy().astype(np.int64)
            yield f"txt/{kind}/emb", engine.encode_prompts(tokens)
        patches = engine.encode_image(_floats(ours, "x"))
        yield "img/patch_features", patches.features
        yield "img/pos_embeddings", patches.positions
        yield "img/cls_features", patches.cls
        yield from _report(engine, ours, patches)
        yield from _boxes(engine, ours, patches)

    return compute


def _report(engine: Engine, ours: RecordedNetwork, patches: Patches) -> Computed:
    prompts = np.stack([_floats(ours, "rg/token_prompts")] * len(patches.cls))
    found = engine.find(patches, prompts)
    yield "rg/multiboxes", found.boxes
    yield "rg/multiboxes_weights", found.scores
    yield "rg/boxes_weights", found.aggregated_scores
    yield "rg/box_features_post", found.features
    for film, told in enumerate(ours.recording.take("rg/region_mask").numpy()):
        # The manifest may allow longer sentences than recorded; with greedy decoding their beginnings are equal.
        name = f"rg/gen{film}/token_ids"
        yield name, engine.write(found.features[film, told])[:, : ours.recording.extent(name, axis=1)]


def _boxes(engine: Engine, ours: RecordedNetwork, patches: Patches) -> Computed:
    """Describe the recorded boxes of the first film, each independently."""
    boxes = _floats(ours, "region/boxes")[:1]
    nothing = np.zeros((*boxes.shape[:2], ours.network.sizes.dim), dtype=np.float32)
    first = Patches(features=patches.features[:1], positions=patches.positions[:1], cls=patches.cls[:1])
    features = engine.describe(first, boxes=boxes, prompts=nothing, prompted=nothing[..., 0])
    yield "region/features_nomask0", features


def _floats(ours: RecordedNetwork, name: str) -> NDArray[np.float32]:
    return ours.recording.take(name).numpy().astype(np.float32)
