"""Opening a model and reading films in a process of its own: seconds, and the most memory that it ever had.

The pages of mapped weights count, which the system takes back when it needs memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from models.lab.evaluation.evaluated_model import read_questions
from models.reading.reader import open_reader
from tests.drills.bench.results import Found
from tests.paths import REPOSITORY
from tests.support import processes

PROMPTS = REPOSITORY / "node" / "read" / "prompt_sets" / "chexpert14.toml"
_LIMIT_SECONDS = 600


def measure(model: Path, *, engine: str, threads: int) -> Found:
    """Open a model in each precision; its files are in memory, for they were just read."""
    from tests.drills.bench.networks import precisions  # its memory is no part of what is measured

    figures, held = dict[str, object](), dict[str, float]()
    for precision in precisions():
        options = ("--engine", engine, "--threads", str(threads), "--precision", precision)
        command = [sys.executable, "-m", "tests.drills.bench.alone", str(model), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{model.name} was not opened: {done.stderr.strip().splitlines()[-1]}")
        figures[precision] = alone = json.loads(done.stdout)
        held[f"peak_gib_{precision}"] = alone["peak_gib"]
    return Found(figures=figures, held=held)


def read_alone() -> None:
    """Open a model and encode its prompts as a node does, read two films, and print time and memory as JSON."""
    parser = argparse.ArgumentParser(prog="tests.drills.bench.alone", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    prompts = read_questions(PROMPTS).prompts
    gray = np.random.default_rng(3).random((512, 512), dtype=np.float32)
    times = [time.perf_counter()]
    reader = open_reader(options.model, engine=options.engine, threads=options.threads, precision=options.precision)
    reader.prepare(prompts)
    times.append(time.perf_counter())
    for _ in range(2):
        reader.report(reader.look(gray), prompts)
        times.append(time.perf_counter())
    opened, first, second = (round(after - before, 2) for before, after in itertools.pairwise(times))
    peak = round(processes.status_of(os.getpid(), "VmHWM") / 2**20, 2)
    print(json.dumps({"open_seconds": opened, "first_film_seconds": first, "film_seconds": second, "peak_gib": peak}))


if __name__ == "__main__":
    read_alone()
