"""Runnable: how fast this program is, part by part, beside its peers; for `docs/operate/speed.md` and `growth.md`.

    python -m tests.drills.bench [--only report,receive] [--films 1,4] [--rounds 3] [--threads N] [--sent 30]
                                 [--engine onnx|torch] [--model DIR] [--runtimes torch-cuda:float16,onnx]

The parts, in their order:

    opening    seconds and memory of a process that opens a model and reads films
    report     whole reports of some films at once and their stages, beside the plain way
    receive    films and small objects, beside dcmtk and Orthanc
    node       a node whose network takes no time: what a film costs, films a second
    shipped    films a second of a node with the shipped model, and questions to it while it reads films
    runtimes   a node with --model and each of --runtimes, which another one must not answer for; only if it is named

The first two have random weights of the published size, made for this run. What is compared runs in one process and
takes turns, so that other work on the machine slows both: the ratios count, not the seconds. Every limit but those of
memory is a ratio beside a peer, so two machines can be compared. A part that fails hides no other. The last line is one
JSON object: `passed` says that no part failed, and that every limit was kept. Needs the extra `bench`, 10 GB of disk
and 14 GB of memory.

Five minutes on two cores: --only report,receive,node --films 1 --rounds 2 --sent 10 --engine torch
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Final

from models import progress
from models.network.products import int8_fault
from models.progress import ProgressReport
from tests.drills.bench import alone, node, receiving, reports, runtimes
from tests.drills.bench.networks import make_model
from tests.drills.bench.results import Found, Results
from tests.drills.bench.turns import apart
from tests.drills.parts import named_parts

QUIET_LOAD = 0.5
"""Above it something else ran on the machine before: then a kept limit proves little."""


class Run:
    """A run: its options, its folder, and the model of the published size, which is made when it is first needed."""

    def __init__(self, options: argparse.Namespace, folder: Path, say: ProgressReport) -> None:
        self.asked, self.folder, self.say = options, folder, say

    @cached_property
    def model(self) -> Path:
        """The model directory."""
        given: Path | None = self.asked.model
        return given or make_model(self.folder / "model", graphs=self.asked.engine == "onnx", say=self.say)

    def place(self, name: str) -> Path:
        """Make a folder."""
        (self.folder / name).mkdir()
        return self.folder / name


Part = Callable[[Run], Found]
PARTS: Final[Mapping[str, Part]] = {
    "opening": lambda run: alone.measure(run.model, engine=run.asked.engine, threads=run.asked.threads),
    "report": lambda run: reports.measure(
        run.model,
        engine=run.asked.engine,
        threads=run.asked.threads,
        films=run.asked.films,
        rounds=run.asked.rounds,
        say=run.say,
    ),
    "receive": lambda run: receiving.measure(run.place("receive"), count=run.asked.sent // 3, rounds=run.asked.rounds),
    "node": lambda run: node.measure(run.place("node"), count=run.asked.sent, rounds=run.asked.rounds, say=run.say),
    "shipped": lambda run: runtimes.shipped(
        run.place("shipped"), sent=2 * run.asked.sent, questions=run.asked.questions
    ),
    "runtimes": lambda run: runtimes.measure(
        run.place("runtimes"), run.model, run.asked.runtimes, sent=run.asked.sent, questions=run.asked.questions
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0 if no part failed and every limit was kept."""
    options = _parser().parse_args(arguments)
    chosen = options.only or [name for name in PARTS if name != "runtimes"]
    load, began = os.getloadavg(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress.on(sys.stdout) as say:
        found, errors = measure({name: PARTS[name] for name in chosen}, Run(options, Path(folder), say))
    fault = int8_fault()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    processors = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    conditions = {
        "processor": next(processors, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "load_before_and_after": [round(load[0], 1), round(os.getloadavg()[0], 1)],
        "was_quiet": load[0] <= QUIET_LOAD,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "engine": options.engine,
        "int8_not_measured": fault,
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }
    has = {f"{count} films" for count in options.films}
    has |= ({"graphs"} if options.engine == "onnx" else set()) | (set() if fault else {"int8"})
    results = Results(conditions=conditions, chosen=chosen, found=found, errors=errors, has=has)
    print(json.dumps(results.document()))
    return 0 if results.passed else 1


def measure(parts: Mapping[str, Part], run: Run) -> tuple[dict[str, Found], dict[str, str]]:
    """Measure parts one after another, each `apart`. Returns what they found, and the errors of those that failed."""
    found, errors = dict[str, Found](), dict[str, str]()
    for name, part in parts.items():
        run.say(f"part {name}")
        try:
            found[name] = apart(partial(part, run))
            run.say(f"part {name}: {json.dumps(dict(found[name].figures))}")
        except (Exception, SystemExit) as error:  # of any library; the run has not passed
            errors[name] = f"{type(error).__name__}: {error}"
    return found, errors


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.drills.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=partial(named_parts, PARTS), help="these parts, with commas between them")
    parser.add_argument(
        "--films", type=lambda text: [*map(int, text.split(","))], default=[1, 4], help="that are read at once"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--model", type=Path, help="a model directory, instead of random weights")
    parser.add_argument("--sent", type=int, default=30, help="films that a node gets at once")
    parser.add_argument("--questions", type=int, default=10, help="that are asked of each runtime, twice")
    parser.add_argument(
        "--runtimes",
        type=runtimes.runtimes_of,
        default=runtimes.DEFAULT,
        help=f"each ENGINE or ENGINE:PRECISION; default: {runtimes.DEFAULT}",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
