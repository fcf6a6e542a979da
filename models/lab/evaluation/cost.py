"""Runnable: says how large a model directory is and how much processor time a film costs, and refuses too much.

    python -m models.lab.evaluation.cost --model DIR

The size is that of the files that the manifest lists, and of the manifest: what is published; exported graphs are built
from them. The time is that of all threads, of the network alone (the image encoded, all prompts found in it) and of a
whole report, on phantoms; the first film, for which prompts are encoded, does not count. Exit 0: within the limits; 1:
beyond one; 2: wrong input.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from models.command import command_parser, exit_status, run
from models.engines import ENGINES
from models.lab.evaluation.prompt_set import DEFAULT, read_questions
from models.manifest import MANIFEST, read_manifest

if TYPE_CHECKING:
    from models.lab.evaluation.cases import Phantoms
    from models.lab.evaluation.evaluated_model import EvaluatedModel

MOST_MIB: Final = 40.0
MOST_SECONDS: Final = 0.15
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The size of the published files, and the median processor seconds of a film: of the network, and of a report."""

    mib: float
    network_seconds: float
    report_seconds: float

    def excess(self) -> list[str]:
        """Name what exceeds its limit."""
        return [
            f"{name} exceeds {most:g} {unit}"
            for name, value, most, unit in (
                ("the size of the files", self.mib, MOST_MIB, "MiB"),
                ("the network on a film", self.network_seconds, MOST_SECONDS, "CPU-seconds"),
            )
            if value > most
        ]


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.cost", description="Measure size and processor time of a model.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--films", type=int, default=20, help="how many phantoms are read; default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _measure(options.model, engine=options.engine, films=options.films))


def _measure(directory: Path, *, engine: str, films: int) -> int:
    cost = cost_of(directory, engine=engine, films=films)
    print(f"files: {cost.mib:.1f} MiB")
    print(f"network, a film: {cost.network_seconds:.3f} CPU-seconds, engine {engine}")
    print(f"whole report, a film: {cost.report_seconds:.3f} CPU-seconds")
    for text in cost.excess():
        print(text, file=sys.stderr)
    return 1 if cost.excess() else 0


def cost_of(directory: Path, *, engine: str, films: int) -> Cost:
    """Measure a model directory. Raises ModelError as `open_model`."""
    from models.lab.evaluation.cases import Phantoms
    from models.lab.evaluation.evaluated_model import open_model
    from models.lab.phantoms import PhantomSet

    model = open_model(directory, engine=engine, questions=read_questions(DEFAULT))
    cases = Phantoms(PhantomSet(first=1_000_000, count=films + 1), model.manifest)
    times = [_times(model, cases, index) for index in range(len(cases))][1:]
    return Cost(
        mib=size_of(directory) / _MIB,
        network_seconds=median(network for network, _ in times),
        report_seconds=median(report for _, report in times),
    )


def size_of(directory: Path) -> int:
    """Return the bytes of the published files."""
    return sum((directory / name).stat().st_size for name in (MANIFEST, *read_manifest(directory).files))


def _times(model: EvaluatedModel, cases: Phantoms, index: int) -> tuple[float, float]:
    """Return the processor seconds of the network, and of a whole report."""
    gray = cases.load(index).gray
    began = time.process_time()
    model.probabilities(model.reader.look(gray))
    found = time.process_time()
    model.reader.report(model.reader.look(gray), model.questions.prompts)
    return found - began, time.process_time() - found


if __name__ == "__main__":
    run(main)
