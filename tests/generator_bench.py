"""Runnable: how fast sentences are generated on a CPU at the published size, beside GPT-2 of Hugging Face.

    python -m tests.generator_bench [--rounds N] [--tokens N] [--films 1,4] [--threads N] [--model DIR]

Weights are random. Ours and the plain way (`tests.plain_generator`) run in one process and take turns, so that other
work on the machine slows both; the ratio of each round is taken before the median. A sentence of the random weights
seldom ends before the limit. Beside them stand the products of this machine, and what a process needs to open the
model. The last line is one JSON object. Needs the extra `bench`, 8 GB of disk and 10 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import Tensor

from models import progress, random_weights
from models.checkpoint.weights import load_generator
from models.network.packed_decoding import PackedWriter, product
from models.network.sentence_generator import SentenceGenerator
from models.progress import ProgressReport
from tests.plain_generator import PlainGenerator

SENTENCES: Final = 29
"""The prompts of the published report: as many sentences are generated for a film."""
TOKENS: Final = 24
ROUNDS: Final = 5
LIMIT_SECONDS: Final = 240.0
"""No new round begins after this time, so that a loaded machine ends as well."""

Row = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured.

    products: 10^9 operations a second, by the rows
    opened_alone: of a process that opens the model with engine `torch` and generates the sentences of one film
    stages, generator: ours and the plain way, by what was computed
    """

    threads: int
    torch: str
    form: str
    reason: str
    prepare_seconds: float
    opened_alone: Row
    products: Mapping[str, Row]
    stages: dict[str, Row]
    generator: dict[str, Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a sentence, the first mark included")
    parser.add_argument("--films", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4])
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--model", type=Path, help="a model directory of the published size, instead of random weights")
    parser.add_argument("--open", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.open:
        print(json.dumps(open_alone(options.model, threads=options.threads)))
        return 0
    with tempfile.TemporaryDirectory(prefix="generator-bench-") as folder, progress.on(sys.stdout) as say:
        model = options.model or _random_model(Path(folder) / "model", say)
        figures = measure(
            model, films=options.films, rounds=options.rounds, tokens=options.tokens, threads=options.threads, say=say
        )
    print(table(figures))
    print(json.dumps(asdict(figures)))
    return 0 if all(row["same_ids"] for row in figures.generator.values()) else 1


def measure(
    model: Path, *, films: Sequence[int], rounds: int, tokens: int, threads: int, say: ProgressReport
) -> Figures:
    """Measure opening in a process of its own, then the machine, the prefix, and the sentences of some films."""
    say("opening the model in a process of its own")
    opening = _opened(model, threads=threads)
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    say("preparing both generators")
    generator = load_generator(model).generator
    began = time.perf_counter()
    writer = PackedWriter(generator, max_length=tokens)
    prepare_seconds = round(time.perf_counter() - began, 2)
    plain = PlainGenerator(generator)
    with torch.inference_mode():
        say("products and the prefix")
        products = {f"{rows} x 1024 x 4096": machine(rows, rounds=4 * rounds) for rows in (1, 8, SENTENCES, 116)}
        stages = {"prefix, 1 film": prefix(generator, writer, rounds=rounds)}
        written = {}
        for count in films:
            say(f"sentences, films: {count}")
            features = _drawn(count * SENTENCES, generator)
            ours, theirs = partial(writer.write, features), partial(plain.write, features, max_length=tokens)
            written[f"sentences, films: {count}"] = beside(ours, theirs, rounds=rounds)
    return Figures(
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        form=writer.choice.form,
        reason=writer.choice.reason,
        prepare_seconds=prepare_seconds,
        opened_alone=opening,
        products=products,
        stages=stages,
        generator=written,
    )


def beside(ours: Callable[[], Tensor], plain: Callable[[], Tensor], *, rounds: int) -> Row:
    """Run both in turns, the first time unmeasured: median seconds, and the ratio of each round, with its spread."""
    same = torch.equal(ours(), plain())
    taken: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(taken) < rounds and (not taken or time.perf_counter() - began < LIMIT_SECONDS):
        # Whoever is first alternates, for the load of a machine rises and falls.
        order = (ours, plain) if len(taken) % 2 else (plain, ours)
        seconds = {run: _seconds(run) for run in order}
        taken.append((seconds[ours], seconds[plain]))
    ratios = sorted(their / our for our, their in taken)
    return {
        "ours_seconds": round(median(our for our, _ in taken), 4),
        "plain_seconds": round(median(their for _, their in taken), 4),
        "ratio": round(median(ratios), 2),
        "least_ratio": round(ratios[0], 2),
        "greatest_ratio": round(ratios[-1], 2),
        "rounds": len(taken),
        "same_ids": same,
    }


def machine(rows: int, *, rounds: int) -> Row:
    """Measure the product of a layer, in 10^9 operations a second: eager and prepacked."""
    weight, given = torch.randn(4096, 1024), torch.randn(rows, 1024)
    operations = 2e-9 * rows * weight.numel()
    forms = {form: product(weight, None, form=form) for form in ("eager", "prepacked")}
    seconds: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, multiply in forms.items():
            seconds[form].append(_seconds(partial(multiply, given)))
    return {form: round(operations / median(taken), 1) for form, taken in seconds.items()}


def prefix(generator: SentenceGenerator, writer: PackedWriter, *, rounds: int) -> Row:
    """Measure the keys and values of the prefixes of a film's sentences."""
    features = _drawn(SENTENCES, generator)
    ours, theirs = partial(writer.prefix_key_values, features), partial(generator.prefix_key_values, features)
    figures = beside(ours, theirs, rounds=rounds)
    return {name: value for name, value in figures.items() if name != "same_ids"}


def open_alone(model: Path, *, threads: int) -> dict[str, float]:
    """Open a model with engine torch, generate the sentences of a film, and tell time and memory of this process."""
    from models.engines.torch_engine import open_torch

    began = time.perf_counter()
    engine = open_torch(model, threads=threads)
    opened = time.perf_counter()
    features = torch.randn(SENTENCES, 512, generator=torch.Generator().manual_seed(3)).numpy()
    engine.write(features)
    return {
        "open_seconds": round(opened - began, 2),
        "first_sentences_seconds": round(time.perf_counter() - opened, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "compiler_imported": float("torch._dynamo" in sys.modules),
    }


def table(figures: Figures) -> str:
    """Show the figures that have a peer, one to a line."""
    lines = [f"{'':24}{'ours s':>10}{'plain s':>10}{'ratio':>7}   least to greatest"]
    for name, row in (figures.stages | figures.generator).items():
        spread = f"{row['least_ratio']} to {row['greatest_ratio']} of {row['rounds']}"
        lines.append(f"{name:24}{row['ours_seconds']:10.3f}{row['plain_seconds']:10.3f}{row['ratio']:7.2f}   {spread}")
    lines.append(f"{'10^9 operations a second':24}{'prepacked':>10}{'eager':>10}")
    for name, row in figures.products.items():
        lines.append(f"{name:24}{row['prepacked']:10.1f}{row['eager']:10.1f}{row['prepacked'] / row['eager']:7.2f}")
    lines.append(", ".join(f"{name} {value}" for name, value in figures.opened_alone.items()))
    return "\n".join(lines)


def _random_model(directory: Path, say: ProgressReport) -> Path:
    say("random weights of the published size")
    random_weights.write_directory(directory, size="full", seed=random_weights.DEFAULT_SEED)
    return directory


def _opened(model: Path, *, threads: int) -> Row:
    command = [sys.executable, "-m", "tests.generator_bench", "--open", "--model", str(model)]
    done = subprocess.run(
        [*command, "--threads", str(threads)], capture_output=True, text=True, timeout=600, check=True
    )
    opened: dict[str, float] = json.loads(done.stdout)
    return opened


def _drawn(count: int, generator: SentenceGenerator) -> Tensor:
    """Draw features [S, dim] of the size that the network's have."""
    dim = generator.prefix.expand.in_features
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(11))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
