"""Runnable: opens a model with engine torch and generates the sentences of a film; prints time and memory as JSON.

    python -m tests.opened_alone DIR [--precision float32|int8] [--threads N]

`own_gib` is the memory that only this process has after that; `peak_gib` is the most that it had until then, with the
pages of the weights' file, which the system takes back when it needs memory, and `most_gib` what it may be at the
published size; `film_gib` is the most after a drawn film was read with all parts of the network. Exit 1: the peak is
higher than it may be.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from models.engines import samples
from models.engines.torch_engine import open_torch
from models.manifest import read_manifest

SENTENCES = 29
MOST_GIB = {"float32": 5.0, "int8": 2.2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    sizes = read_manifest(options.model).sizes
    began = time.perf_counter()
    engine = open_torch(options.model, threads=options.threads, sentences=options.precision)
    opened = time.perf_counter()
    random = np.random.default_rng(3)
    features = random.normal(size=(SENTENCES, sizes.dim)).astype(np.float32)
    engine.write(features)
    figures = {
        "open_seconds": round(opened - began, 2),
        "sentences_seconds": round(time.perf_counter() - opened, 2),
        "own_gib": own_gib(),
        "peak_gib": peak_gib(),
        "most_gib": MOST_GIB[options.precision],
        "compiler_imported": float("torch._dynamo" in sys.modules),
    }
    patches = engine.encode_image(samples.films(random, 1, side=sizes.image_encoder.image_size))
    prompts = engine.encode_prompts(samples.phrases(random, SENTENCES, sizes, length=20))
    engine.find(patches, prompts[np.newaxis])
    engine.write(features)
    figures["film_gib"] = peak_gib()
    print(json.dumps(figures))
    return 0 if figures["peak_gib"] <= figures["most_gib"] else 1


def peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def own_gib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return round(kib / 2**20, 2)


if __name__ == "__main__":
    sys.exit(main())
