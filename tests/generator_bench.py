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
from models.network.packed_decoding import PackedWriter
from models.network.products import Choice, Form, product
from models.network.sentence_generator import SentenceGenerator
from models.progress import ProgressReport
from tests.plain_generator import PlainGenerator

SENTENCES: Final = 29
"""The prompts of the published report: as many sentences are generated for a film."""
TOKENS: Final = 24
ROUNDS: Final = 5
FORMS: Final[tuple[Form, ...]] = ("eager", "prepacked", "int8")
LIMIT_SECONDS: Final = 240.0
"""No new round begins after this time, so that a loaded machine ends as well."""

Row = Mapping[str, float]
Run = Callable[[], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured.

    products: 10^9 operations a second, by the rows
    opened_alone: of a process that opens the model with engine `torch`, by precision; see `tests.opened_alone`
    stages, generator: ours and the plain way, by what was computed
    """

    threads: int
    torch: str
    form: str
    reason: str
    prepare_seconds: float
    opened_alone: dict[str, Row]
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
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="generator-bench-") as folder, progress.on(sys.stdout) as say:
        model = options.model or _random_model(Path(folder) / "model", say)
        figures = measure(
            model, films=options.films, rounds=options.rounds, tokens=options.tokens, threads=options.threads, say=say
        )
    print(table(figures))
    print(json.dumps(asdict(figures)))
    is_same = all(row["same_tokens"] == 1 for name, row in figures.generator.items() if "int8" not in name)
    return 0 if is_same and all(row["peak_gib"] <= row["most_gib"] for row in figures.opened_alone.values()) else 1


def measure(
    model: Path, *, films: Sequence[int], rounds: int, tokens: int, threads: int, say: ProgressReport
) -> Figures:
    """Measure opening in a process of its own, then the machine, the prefix, and the sentences of some films."""
    say("opening the model in a process of its own")
    opening: dict[str, Row] = {name: _opened(model, name, threads=threads) for name in ("float32", "int8")}
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    say("preparing both generators")
    generator = load_generator(model).generator
    began = time.perf_counter()
    writer = PackedWriter(generator, max_length=tokens)
    prepare_seconds = round(time.perf_counter() - began, 2)
    small = PackedWriter(generator, max_length=tokens, choice=Choice(form="int8", reason="measured beside float32"))
    plain = PlainGenerator(generator)
    with torch.inference_mode():
        say("products and the prefix")
        products = {f"{rows} x 1024 x 4096": machine(rows, rounds=4 * rounds) for rows in (1, 8, SENTENCES, 116)}
        stages = {"prefix, 1 film": prefix(generator, writer, rounds=rounds)}
        written: dict[str, Row] = {}
        for count in films:
            say(f"sentences, films: {count}")
            features = _drawn(count * SENTENCES, generator)
            ours = {"float32": partial(writer.write, features), "int8": partial(small.write, features)}
            rows = beside(ours, partial(plain.write, features, max_length=tokens), rounds=rounds)
            written |= {f"{form}, films: {count}": row for form, row in rows.items()}
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


def beside(ours: Mapping[str, Run], plain: Run, *, rounds: int) -> dict[str, Row]:
    """Run all in turns, the first time unmeasured: median seconds, and the ratio of each round, with its spread.

    same_tokens: the share of the plain way's values that ours has at the same place
    """
    runs = [plain, *ours.values()]
    expected = plain()
    same = [shared(expected, run()) for run in ours.values()]
    taken: list[list[float]] = []
    began = time.perf_counter()
    while len(taken) < rounds and (not taken or time.perf_counter() - began < LIMIT_SECONDS):
        # The order alternates, for the load of a machine rises and falls.
        order = runs if len(taken) % 2 else runs[::-1]
        seconds = {run: _seconds(run) for run in order}
        taken.append([seconds[run] for run in runs])
    rows: dict[str, Row] = {}
    for place, name in enumerate(ours, start=1):
        ratios = sorted(seconds[0] / seconds[place] for seconds in taken)
        rows[name] = {
            "ours_seconds": round(median(seconds[place] for seconds in taken), 4),
            "plain_seconds": round(median(seconds[0] for seconds in taken), 4),
            "ratio": round(median(ratios), 2),
            "least_ratio": round(ratios[0], 2),
            "greatest_ratio": round(ratios[-1], 2),
            "rounds": len(taken),
            "same_tokens": round(same[place - 1], 4),
        }
    return rows


def machine(rows: int, *, rounds: int) -> Row:
    """Measure the product of a layer, in 10^9 operations a second: eager and prepacked."""
    weight, given = torch.randn(4096, 1024), torch.randn(rows, 1024)
    operations = 2e-9 * rows * weight.numel()
    forms = {form: product(weight, None, form=form) for form in FORMS}
    seconds: dict[Form, list[float]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, multiply in forms.items():
            seconds[form].append(_seconds(partial(multiply, given)))
    return {form: round(operations / median(taken), 1) for form, taken in seconds.items()}


def prefix(generator: SentenceGenerator, writer: PackedWriter, *, rounds: int) -> Row:
    """Measure the keys and values of the prefixes of a film's sentences."""
    features = _drawn(SENTENCES, generator)
    ours, theirs = partial(writer.prefix_key_values, features), partial(generator.prefix_key_values, features)
    (row,) = beside({"float32": ours}, theirs, rounds=rounds).values()
    return {name: value for name, value in row.items() if name != "same_tokens"}


def shared(expected: Tensor, found: Tensor) -> float:
    """Return the share of the expected tokens [S, T] that stand at the same place of the same sentence."""
    length = min(expected.shape[1], found.shape[1])
    return int((expected[:, :length] == found[:, :length]).sum()) / expected.numel()


def table(figures: Figures) -> str:
    """Show the figures that have a peer, one to a line."""
    lines = [f"{'':24}{'ours s':>10}{'plain s':>10}{'ratio':>7}   least to greatest"]
    for name, row in (figures.stages | figures.generator).items():
        spread = f"{row['least_ratio']} to {row['greatest_ratio']} of {row['rounds']}"
        spread += f", same tokens {row['same_tokens']:.1%}" if "same_tokens" in row else ""
        lines.append(f"{name:24}{row['ours_seconds']:10.3f}{row['plain_seconds']:10.3f}{row['ratio']:7.2f}   {spread}")
    lines.append(f"{'10^9 operations a second':24}{'prepacked':>10}{'eager':>10}{'ratio':>7}{'int8':>10}")
    for name, row in figures.products.items():
        ratio = row["prepacked"] / row["eager"]
        lines.append(f"{name:24}{row['prepacked']:10.1f}{row['eager']:10.1f}{ratio:7.2f}{row['int8']:10.1f}")
    for precision, opened in figures.opened_alone.items():
        lines.append(f"opened alone, {precision}: " + ", ".join(f"{name} {value}" for name, value in opened.items()))
    return "\n".join(lines)


def _random_model(directory: Path, say: ProgressReport) -> Path:
    say("random weights of the published size")
    random_weights.write_directory(directory, size="full", seed=random_weights.DEFAULT_SEED)
    return directory


def _opened(model: Path, precision: str, *, threads: int) -> Row:
    command = [sys.executable, "-m", "tests.opened_alone", str(model), "--threads", str(threads)]
    command += ["--precision", precision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
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
