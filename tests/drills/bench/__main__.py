"""Runnable: how fast this program is, part by part, beside its peers; for `docs/operate/speed.md` and `growth.md`.

    python -m tests.drills.bench [--quick] [--only report,receive] [--films 1,4,16] [--rounds 5] [--threads N]
                                 [--model DIR] [--runtimes torch-cuda:float16,onnx]

The parts, in their order:

    opening    seconds and memory of a process that opens a model and reads films
    generator  the sentences of some films at once, beside GPT-2 of transformers
    report     whole reports of some films at once and their stages, beside the plain way
    graphs     image encoder and detector in ONNX Runtime, beside eager PyTorch
    receive    films and small objects, beside dcmtk and Orthanc
    node       a node whose network takes no time: what a film costs, films a second
    cores      the same node on two processors beside one
    shipped    films a second of a node with the shipped model, and questions to it while it reads films
    runtimes   a node with --model and each of --runtimes, which another one must not answer for; only if it is named

The first four have random weights of the published size, made for this run. What is compared runs in one process and
takes turns, so that other work on the machine slows both: the ratios count, not the seconds. Every limit is a ratio
beside a peer, so two machines can be compared. A part that fails hides no other. The last line is one JSON object:
`passed` says that no part failed, and that every limit was kept. Needs the extra `bench`, 10 GB of disk and 14 GB of
memory.

`--quick` takes some five minutes on two cores: the parts report, receive and node, one film
at once, few rounds, and PyTorch instead of exported graphs.
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
from functools import partial
from importlib import metadata
from pathlib import Path

from models import progress
from models.network.products import int8_fault
from models.progress import ProgressReport
from tests.drills.bench import alone, around, node, receiving, reports, runtimes
from tests.drills.bench.networks import Networks, make_model
from tests.drills.bench.results import Found, Results
from tests.drills.bench.turns import apart
from tests.drills.parts import named_parts

Part = Callable[[], Found]
OF_NETWORK = ("generator", "report", "graphs")
BY_DEFAULT = ("opening", *OF_NETWORK, "receive", "node", "cores", "shipped")
PARTS = (*BY_DEFAULT, "runtimes")
QUICK: Mapping[str, object] = {
    "only": ["report", "receive", "node"],
    "films": [1],
    "rounds": 2,
    "engine": "torch",
    "received": 4,
    "sent": 10,
    "alone": 8,
    "waiting": 1000,
}
"""The options of a quick run; those that are given count."""
TOKENS = 24
LIMIT_SECONDS = 240.0
_MOST_NODE_ROUNDS = 3
QUIET_LOAD = 0.5
"""Above it something else ran on the machine before: then a kept limit proves little."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0 if no part failed and every limit was kept."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options = _parser().parse_args(arguments, namespace=argparse.Namespace(**QUICK))
    chosen = [part for part in PARTS if part in (options.only or BY_DEFAULT)]
    load, began = os.getloadavg(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress.on(sys.stdout) as say:
        found, errors = run(_parts(options, Path(folder), say), chosen, say=say)
    conditions = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "load_before_and_after": [round(load[0], 1), round(os.getloadavg()[0], 1)],
        "was_quiet": load[0] <= QUIET_LOAD,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "engine": options.engine,
        "plain_way": options.plain,
        "versions": {name: _version(name) for name in ("torch", "onnxruntime", "transformers")},
    }
    results = Results(
        conditions=conditions,
        chosen=chosen,
        found=found,
        errors=errors,
        films=options.films,
        int8_fault=int8_fault(),
    )
    print(json.dumps(results.document()))
    return 0 if results.passed else 1


def run(
    parts: Mapping[str, Part], chosen: Sequence[str], *, say: ProgressReport
) -> tuple[dict[str, Found], dict[str, str]]:
    """Measure parts one after another, each `apart`. Returns what they found, and the errors of those that failed."""
    found, errors = dict[str, Found](), dict[str, str]()
    for name in chosen:
        say(f"part {name}")
        try:
            found[name] = apart(parts[name])
            say(f"part {name}: {json.dumps(dict(found[name].figures))}")
        except (Exception, SystemExit) as error:  # of any library; the run has not passed
            errors[name] = f"{type(error).__name__}: {error}"
    return found, errors


def _parts(options: argparse.Namespace, folder: Path, say: ProgressReport) -> dict[str, Part]:
    opened: list[Networks] = []
    model: list[Path] = [options.model] if options.model else []
    times = {"rounds": options.rounds, "limit_seconds": options.limit_seconds}
    rounds = min(_MOST_NODE_ROUNDS, options.rounds)

    def published() -> Path:
        if not model:
            say("making the model")
            model.append(make_model(folder / "model", tokens=TOKENS, graphs=options.engine == "onnx", say=say))
        return model[0]

    def networks() -> Networks:
        if not opened:
            made = Networks(published(), engine=options.engine, threads=options.threads, plain=options.plain, say=say)
            opened.append(made)
        return opened[0]

    def without_networks(part: Callable[[Path], Found], name: str) -> Part:
        def measure() -> Found:
            while opened:
                opened.pop().close()
            (folder / name).mkdir()
            return part(folder / name)

        return measure

    return {
        "opening": lambda: alone.measure(published(), runtimes.SHIPPED, engine=options.engine, threads=options.threads),
        "generator": lambda: reports.generator(networks(), films=options.films, **times),
        "report": lambda: reports.report(networks(), films=options.films, **times),
        "graphs": lambda: reports.graphs(networks(), **times),
        "receive": without_networks(
            lambda place: receiving.measure(place, count=options.received, rounds=rounds), "receive"
        ),
        "node": without_networks(
            lambda place: around.around_network(
                place, sent=options.sent, alone=options.alone, waiting=options.waiting, rounds=rounds, say=say
            ),
            "node",
        ),
        "cores": without_networks(lambda _place: around.cores(sent=options.sent), "cores"),
        "shipped": without_networks(
            lambda place: runtimes.shipped(
                place,
                sent=2 * options.sent,
                questions=options.questions,
                pydicom_seconds=around.pydicom_seconds(),
            ),
            "shipped",
        ),
        "runtimes": without_networks(
            lambda place: runtimes.measure(
                place, published(), options.runtimes, sent=options.sent, questions=options.questions
            ),
            "runtimes",
        ),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.drills.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument("--only", type=partial(named_parts, PARTS), help="these parts, with commas between them")
    parser.add_argument("--films", type=_numbers, default=[1, 4, 16], help="that are read at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--limit-seconds", type=float, default=LIMIT_SECONDS, help="no new round of a comparison begins after them"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument(
        "--plain", choices=("transformers", "eager"), default="transformers", help="generator beside ours"
    )
    parser.add_argument("--model", type=Path, help="a model directory, instead of random weights")
    parser.add_argument("--received", type=int, default=8, help="films that each of four senders sends in a round")
    parser.add_argument("--alone", type=int, default=node.ALONE, help="films that a node gets one by one")
    parser.add_argument("--sent", type=int, default=30, help="films that a node gets at once")
    parser.add_argument("--waiting", type=int, default=10_000, help="studies that wait behind the films of part node")
    parser.add_argument("--questions", type=int, default=10, help="that are asked of each runtime, twice")
    parser.add_argument(
        "--runtimes",
        type=runtimes.runtimes_of,
        default=runtimes.DEFAULT,
        help=f"each ENGINE or ENGINE:PRECISION; default: {runtimes.DEFAULT}",
    )
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
