"""Image encoder and detector through ONNX Runtime beside eager PyTorch, one film at a time."""

from __future__ import annotations

from functools import partial

import numpy as np

from models.engines import Patches
from models.errors import ModelError
from models.manifest import read_manifest
from models.reading.preprocess import prepare
from tests.drills.bench.networks import Networks, drawn_film
from tests.drills.bench.results import Found
from tests.drills.bench.turns import PLAIN, beside_plain, in_turns


def measure(networks: Networks, *, rounds: int, limit_seconds: float) -> Found:
    """Measure both stages in turns. Raises ModelError if the engine runs no graphs."""
    ours, plain = networks.network("float32").engine.engine, networks.network(PLAIN).engine.engine
    if not ours.name.startswith("onnx"):
        raise ModelError("graphs are measured with engine onnx")
    networks.say("graphs")
    pixels = prepare(drawn_film(0), read_manifest(networks.directory).input)[np.newaxis]
    patches: Patches = plain.encode_image(pixels)
    prompts = np.random.default_rng(3).standard_normal((1, len(networks.prompts), networks.sizes.dim), dtype=np.float32)
    figures, held = dict[str, object](), dict[str, float]()
    for stage, inputs in {"encode_image": (pixels,), "find": (patches, prompts)}.items():
        runs = {name: partial(getattr(engine, stage), *inputs) for name, engine in {"ours": ours, PLAIN: plain}.items()}
        in_turns(runs, rounds=2, limit_seconds=limit_seconds)
        figures[stage] = row = beside_plain(in_turns(runs, rounds=4 * rounds, limit_seconds=limit_seconds), "ours")
        held[f"graph_{stage}_ratio"] = row["ratio"]
    return Found(figures=figures, held=held)
