"""Runnable: opens a model and encodes its prompts, as a node does, and reads two films; prints time and memory as JSON.

    python -m tests.drills.bench.opened_alone DIR [--engine onnx|torch] [--precision float32|int8] [--threads N]
        [--plain]

`own_gib` is the memory that only this process has at
the end; `peak_gib` is the most that it ever had, with the pages of mapped weights, which the system takes back when it
needs memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from models.lab.evaluation.evaluated_model import read_questions
from models.reading.reader import ChexReader, open_reader
from tests.paths import REPOSITORY

PROMPTS = REPOSITORY / "node" / "read" / "prompt_sets" / "chexpert14.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return round(kib / 2**20, 2)


if __name__ == "__main__":
    main()
