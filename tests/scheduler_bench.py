"""Runnable: how long a question waits behind running work, and what films cost that are read at the same time.

    python -m tests.scheduler_bench [--tokens N] [--threads N] [--precision float32|int8] [--model DIR]

Weights are random and of the published size. It generates the 29 sentences of one film, those of four films one after
another and of four films at once, in turns, and compares the token ids. Then people ask while four films are being
generated: `wait` is the time until their first call begins, `answer` that of a whole sentence. The last line is one
JSON object. It ends with 1 if ids differ, or if a person waited for more than 0.3 s. Needs 8 GB of disk and of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch

from models import progress, random_weights
from models.checkpoint.weights import load_generator
from models.engines import FloatArray
from models.engines.torch_engine import CpuWriter
from models.engines.turns import for_person
from models.network.packed_decoding import PackedWriter
from models.network.products import Choice

SENTENCES: Final = 29
FILMS: Final = 4
ROUNDS: Final = 3
QUESTIONS: Final = 40
LIMIT_SECONDS: Final = 0.3
"""The longest that a question may wait behind running work."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=12, help="of a sentence, the first mark included")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--model", type=Path, help="a model directory, instead of random weights")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    choice = Choice(form="int8", reason="int8 was asked for") if options.precision == "int8" else None
    with tempfile.TemporaryDirectory(prefix="scheduler-bench-") as folder, progress.on(sys.stdout) as say:
        model = options.model or Path(folder) / "model"
        if not options.model:
            say("random weights of the published size")
            random_weights.write_directory(model, size="full", seed=random_weights.DEFAULT_SEED)
        say("preparing the generator")
        generator = load_generator(model).generator
        began = time.perf_counter()
        packed = PackedWriter(generator, max_length=options.tokens, choice=choice)
        prepared = time.perf_counter() - began
        writer = CpuWriter(packed)
        films = [_drawn(SENTENCES, packed.dim, seed=seed) for seed in range(FILMS)]
        say("films")
        figures = {"prepare_seconds": round(prepared, 2), **_films(writer, films)}
        say("questions")
        figures |= _questions(writer, films, _drawn(1, packed.dim, seed=99))
    for name, value in figures.items():
        print(f"{name:28}{value:10.3f}")
    print(json.dumps({"threads": torch.get_num_threads(), "precision": options.precision, **figures}))
    return 0 if figures["same_ids"] == 1 and figures["wait_seconds_most"] <= LIMIT_SECONDS else 1


def _films(writer: CpuWriter, films: Sequence[FloatArray]) -> dict[str, float]:
    """Read one film, some one after another, and as many at once, in turns: median seconds."""
    writer.write(films[0])
    taken: dict[str, list[float]] = {"one": [], "in_turn": [], "at_once": []}
    same = True
    with ThreadPoolExecutor(len(films)) as pool:
        for _ in range(ROUNDS):
            taken["one"].append(_seconds(lambda: writer.write(films[0])))
            began = time.perf_counter()
            alone = [writer.write(features) for features in films]
            taken["in_turn"].append(time.perf_counter() - began)
            began = time.perf_counter()
            together = list(pool.map(writer.write, films))
            taken["at_once"].append(time.perf_counter() - began)
            same = same and all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))
    return {
        "one_film_seconds": round(median(taken["one"]), 3),
        "a_film_of_four_in_turn": round(median(taken["in_turn"]) / len(films), 3),
        "a_film_of_four_at_once": round(median(taken["at_once"]) / len(films), 3),
        "same_ids": float(same),
    }


def _questions(writer: CpuWriter, films: Sequence[FloatArray], asked: FloatArray) -> dict[str, float]:
    """Ask while films are being generated without end: seconds until a first call begins, and for a sentence."""
    is_over = False

    def read(features: FloatArray) -> None:
        while not is_over:
            writer.write(features)

    waits, answers = list[float](), list[float]()
    pauses = np.random.default_rng(7).uniform(0.1, 0.5, QUESTIONS)
    with ThreadPoolExecutor(len(films)) as pool:
        reading = [pool.submit(read, features) for features in films]
        time.sleep(2.0)
        for place, pause in enumerate(pauses):
            time.sleep(pause)
            with for_person():
                began = time.perf_counter()
                waits.append(writer.scheduler.call(time.perf_counter) - began)
                if place % 8 == 0:
                    answers.append(_seconds(lambda: writer.write(asked)))
        is_over = True
        for film in reading:
            film.result()
    alone = median(_seconds(lambda: writer.write(asked)) for _ in range(ROUNDS))
    return {
        "wait_seconds": round(median(waits), 3),
        "wait_seconds_most": round(max(waits), 3),
        "answer_seconds": round(median(answers), 3),
        "answer_seconds_alone": round(alone, 3),
    }


def _drawn(count: int, dim: int, *, seed: int) -> FloatArray:
    drawn: FloatArray = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).numpy()
    return drawn


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
