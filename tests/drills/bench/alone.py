"""Opening a model and reading films in a process of its own: seconds and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.drills.bench.networks import precisions
from tests.drills.bench.results import Found

_LIMIT_SECONDS = 600


def measure(published: Path, shipped: Path, *, engine: str, threads: int) -> Found:
    """Open the shipped model and that of the published size; the files are in memory, for they were just read.

    The published size is opened the plain way too.
    """
    options = ("--engine", engine, "--threads", str(threads))
    plain = opened(published, (*options, "--plain"))
    figures, held = dict[str, object]({"published size, plain way": plain}), dict[str, float]()
    sizes = [(shipped, "shipped", "float32"), *((published, "published size", each) for each in precisions())]
    for model, size, precision in sizes:
        figures[f"{size}, {precision}"] = alone = opened(model, (*options, "--precision", precision))
        if model is published:
            held[f"peak_gib_{precision}"] = alone["peak_gib"]
    return Found(figures=figures, held=held)


def opened(model: Path, options: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.drills.bench.opened_alone", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{model.name} was not opened: {done.stderr.strip().splitlines()[-1]}")
    opened: dict[str, float] = json.loads(done.stdout)
    return opened
