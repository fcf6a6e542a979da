"""Opening a model and reading films in a process of its own, anew and from what was kept: seconds and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.drills.bench.networks import precisions
from tests.drills.bench.results import Found

_LIMIT_SECONDS = 600


def measure(published: Path, shipped: Path, *, engine: str, threads: int) -> Found:
    """Open the shipped model and that of the published size; the files are in memory, for they were just read.

    Each is opened anew, then so that it is kept, then with what was kept; the published size the plain way too.
    """
    options = ("--engine", engine, "--threads", str(threads))
    plain = opened(published, (*options, "--plain"))
    figures, held = dict[str, object]({"published size, plain way": plain}), dict[str, float]()
    sizes = [(shipped, "shipped", "float32"), *((published, "published size", each) for each in precisions())]
    for model, size, precision in sizes:
        anew, kept = _openings(model, (*options, "--precision", precision))
        figures |= {f"{size}, {precision}": anew, f"{size}, {precision}, kept": kept}
        if model is published:
            held |= {
                f"opening_{precision}_kept_plain_ratio": kept["open_seconds"] / plain["open_seconds"],
                f"opening_{precision}_kept_ratio": kept["open_seconds"] / anew["open_seconds"],
                f"peak_gib_{precision}": max(anew["peak_gib"], kept["peak_gib"]),
            }
    return Found(figures=figures, held=held)


def _openings(model: Path, options: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="opened-") as store:
        anew = opened(model, options)
        first = opened(model, (*options, "--store", store))
        kept = opened(model, (*options, "--store", store))
    return anew, kept | {"keeping_seconds": first["open_seconds"]}


def opened(model: Path, options: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.drills.opened_alone", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{model.name} was not opened: {done.stderr.strip().splitlines()[-1]}")
    opened: dict[str, float] = json.loads(done.stdout)
    return opened
