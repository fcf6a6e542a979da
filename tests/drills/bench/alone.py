"""Opening a model and reading films in a process of its own: seconds and memory.

`own_gib` is the memory that only this process has at the end; `peak_gib` is the most that it ever had, with the pages
of mapped weights, which the system takes back when it needs memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.lab.evaluation.evaluated_model import read_questions
from models.reading.reader import ChexReader, open_reader
from tests.drills.bench.results import Found
from tests.paths import REPOSITORY
from tests.support import processes

PROMPTS = REPOSITORY / "node" / "read" / "prompt_sets" / "chexpert14.toml"
_LIMIT_SECONDS = 600


def measure(published: Path, shipped: Path, *, engine: str, threads: int) -> Found:
    """Open the shipped model and that of the published size; the files are in memory, for they were just read.

    The published size is opened the plain way too.
    """
    from tests.drills.bench.networks import precisions  # its memory is no part of what is measured

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
    command = [sys.executable, "-m", "tests.drills.bench.alone", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{model.name} was not opened: {done.stderr.strip().splitlines()[-1]}")
    opened: dict[str, float] = json.loads(done.stdout)
    return opened


def read_alone() -> None:
    """Open a model and encode its prompts as a node does, read two films, and print time and memory as JSON."""
    parser = argparse.ArgumentParser(prog="tests.drills.bench.alone", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="open it the plain way, as eager PyTorch")
    options = parser.parse_args()
    prompts = read_questions(PROMPTS).prompts
    gray = np.random.default_rng(3).random((512, 512), dtype=np.float32)
    times = [clocks()]
    reader = plain_reader(options.model, options.threads) if options.plain else program_reader(options)
    reader.prepare(prompts)
    times.append(clocks())
    for _ in range(2):
        reader.report(reader.look(gray), prompts)
        times.append(clocks())
    figures = {
        **spent("open", *times[:2]),
        **spent("first_film", *times[1:3]),
        **spent("film", *times[2:]),
        "own_gib": gib_of("RssAnon"),
        "peak_gib": gib_of("VmHWM"),
        "compiler_imported": float("torch._dynamo" in sys.modules),
    }
    print(json.dumps(figures))


def program_reader(options: argparse.Namespace) -> ChexReader:
    return open_reader(options.model, engine=options.engine, threads=options.threads, precision=options.precision)


def plain_reader(directory: Path, threads: int) -> ChexReader:
    from tests.drills.bench.plain import open_plain, reader_of  # its memory is no part of the other openings

    engine, _ = open_plain(directory, way="eager", threads=threads)
    return reader_of(directory, engine)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def spent(name: str, began: tuple[float, float], ended: tuple[float, float]) -> dict[str, float]:
    """The seconds, and those of processor time, which other work on the machine changes less."""
    seconds, core_seconds = (round(after - before, 2) for before, after in zip(began, ended, strict=True))
    return {f"{name}_seconds": seconds, f"{name}_core_seconds": core_seconds}


def gib_of(key: str) -> float:
    """A figure of memory of this process; the `ru_maxrss` of a child may be that of the process that started it."""
    return round(processes.status_of(os.getpid(), key) / 2**20, 2)


if __name__ == "__main__":
    read_alone()
