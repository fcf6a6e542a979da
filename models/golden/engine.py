"""What an engine offers, whatever its runtime: the stages that are exported, and sentences (DESIGN.md 4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.engines import Engine, Patches
from models.golden.subject import PHRASES, Computed, Subject


def engine_part(engine: Engine) -> Callable[[Subject], Computed]:
    """Give the part of a comparison that this engine computes; it must have been opened with the recorded weights."""

    def compute(subject: Subject) -> Computed:
        """Run every function of the engine on recorded inputs."""
        for kind in PHRASES:
            tokens = subject.recording.take(f"txt/{kind}/ids").numpy().astype(np.int64)
            yield f"txt/{kind}/emb", engine.encode_prompts(tokens)
        patches = engine.encode_image(_floats(subject, "x"))
        yield "img/patch_features", patches.features
        yield "img/pos_embeddings", patches.positions
        yield "img/cls_features", patches.cls
        yield from _report(engine, subject, patches)
        yield from _boxes(engine, subject, patches)

    return compute


def _report(engine: Engine, subject: Subject, patches: Patches) -> Computed:
    prompts = np.stack([_floats(subject, "rg/token_prompts")] * len(patches.cls))
    found = engine.find(patches, prompts)
    yield "rg/multiboxes", found.boxes
    yield "rg/multiboxes_weights", found.scores
    yield "rg/boxes_weights", found.aggregated_scores
    yield "rg/box_features_post", found.features
    for film, told in enumerate(subject.recording.take("rg/region_mask").numpy()):
        # The manifest may allow longer sentences than were recorded; greedily, their beginnings are the same.
        name = f"rg/gen{film}/token_ids"
        yield name, engine.write(found.features[film, told])[:, : subject.recording.extent(name, axis=1)]


def _boxes(engine: Engine, subject: Subject, patches: Patches) -> Computed:
    """Look into the recorded boxes of the first film, each on its own."""
    boxes = _floats(subject, "region/boxes")[:1]
    nothing = np.zeros((*boxes.shape[:2], subject.network.sizes.dim), dtype=np.float32)
    first = Patches(features=patches.features[:1], positions=patches.positions[:1], cls=patches.cls[:1])
    features = engine.describe(first, boxes=boxes, prompts=nothing, prompted=nothing[..., 0])
    yield "region/features_nomask0", features


def _floats(subject: Subject, name: str) -> NDArray[np.float32]:
    return subject.recording.take(name).numpy().astype(np.float32)
