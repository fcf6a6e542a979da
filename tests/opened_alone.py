"""Runnable: opens a model with engine torch and generates the sentences of a film; prints time and memory as JSON.

    python -m tests.opened_alone DIR [--precision float32|int8] [--threads N]

`own_gib` is the memory that only this process has at the end; `peak_gib` is the most that it ever had, with the pages
of the weights' file, which the system takes back when it needs memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch

from models.engines.torch_engine import open_torch
from models.manifest import read_manifest

SENTENCES = 29


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    dim = read_manifest(options.model).sizes.dim
    began = time.perf_counter()
    engine = open_torch(options.model, threads=options.threads, sentences=options.precision)
    opened = time.perf_counter()
    engine.write(torch.randn(SENTENCES, dim, generator=torch.Generator().manual_seed(3)).numpy())
    figures = {
        "open_seconds": round(opened - began, 2),
        "sentences_seconds": round(time.perf_counter() - opened, 2),
        "own_gib": own_gib(),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "compiler_imported": float("torch._dynamo" in sys.modules),
    }
    print(json.dumps(figures))


def own_gib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return round(kib / 2**20, 2)


if __name__ == "__main__":
    main()
