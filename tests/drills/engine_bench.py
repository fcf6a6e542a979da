"""Runnable: a node with a model, runtime by runtime: seconds until it is ready, films a second, answers to questions.

    python -m tests.drills.engine_bench DIR [--engines torch-cuda:float16,torch-cuda,onnx]
                                         [--films 200] [--questions 10]

It starts a node twice with the model directory DIR and each runtime: the second start may use what the first one built.
It then sends `--films` films of 7.2 MB over one association, each a study of its own, and counts them until their
outputs are stored. It asks questions about a film, first alone and then while the node reads as many films again.

Each runtime has a line, one JSON object. `engine`: the runtime that answered; `reason`: why it is another one than was
asked for, or none. `differences`: the largest difference from the network on the CPU, by stage; `allowed`: the
tolerance. `step_seconds`: means over all films. Ends with 1 if another runtime answered, or a difference is larger than
what is allowed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, cast, get_args

from models.engines import ENGINES, GPU_ENGINES
from models.engines.proof import Precision
from node.config import ModelSettings
from tests.drills.ask_bench import ask
from tests.drills.node_bench import STEPS, Sender, step_seconds
from tests.drills.receive_bench import core_seconds
from tests.support import films, peers
from tests.support.service import Service, settings_for

DEFAULT: Final = "torch-cuda:float16,torch-cuda,onnx"
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
READY_SECONDS: Final = 1800.0
"""TensorRT may build its engines for minutes."""
STARTS: Final = 2
_SECONDS_A_FILM: Final = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.engine_bench", description=__doc__)
    parser.add_argument("model", type=Path, metavar="DIR", help="model directory")
    parser.add_argument("--engines", type=_runtimes, default=_runtimes(DEFAULT), help="each ENGINE or ENGINE:PRECISION")
    parser.add_argument("--films", type=_count, default=200, help="that come at once")
    parser.add_argument("--questions", type=_count, default=10)
    options = parser.parse_args()
    passed = True
    for runtime in options.engines:
        with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
            figures = measure(
                Path(folder), options.model.resolve(), runtime, count=options.films, questions=options.questions
            )
        print(json.dumps(figures), flush=True)
        passed &= bool(figures["passed"])
    return 0 if passed else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a node is asked to read with, as in its settings."""

    engine: str
    precision: Precision

    @classmethod
    def named(cls, text: str) -> Self:
        """Take ENGINE or ENGINE:PRECISION."""
        engine, _, precision = text.partition(":")
        return cls(engine=engine, precision=cast("Precision", precision or PRECISIONS[0]))


def _runtimes(text: str) -> list[Runtime]:
    found = [Runtime.named(part) for part in text.split(",")]
    for runtime in found:
        if runtime.engine not in (*ENGINES, *GPU_ENGINES) or runtime.precision not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"there is no runtime {runtime.engine}:{runtime.precision}")
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def measure(folder: Path, model: Path, runtime: Runtime, *, count: int, questions: int) -> dict[str, object]:
    """Start a node with a model and a runtime, and measure it."""
    asked = ModelSettings(directory=model, engine=runtime.engine, precision=runtime.precision)
    ready, figures = list[float](), dict[str, object]()
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, model=asked)
        while not figures:
            began = time.monotonic()
            with Service(settings, is_fresh=True, ready_seconds=READY_SECONDS) as node:
                ready.append(round(time.monotonic() - began, 1))
                if len(ready) == STARTS:
                    figures = _figures(node, count, questions)
                else:
                    node.stop()
    return {"asked": f"{runtime.engine}:{runtime.precision}", "ready_after_seconds": ready, **figures}


def _figures(node: Service, count: int, questions: int) -> dict[str, object]:
    film = films.rg1()
    film.StudyInstanceUID, film.SOPInstanceUID = "2.25.7", "2.25.8"
    if peers.send(film, port=node.dicom_port) != 0:
        sys.exit("failed: the node did not take the first film")
    node.wait_for("study.finished", limit_seconds=_SECONDS_A_FILM)
    first = ask(node.http_port, film.SOPInstanceUID, 0)
    alone = [ask(node.http_port, film.SOPInstanceUID, number) for number in range(1, questions + 1)]
    sender = Sender(node.dicom_port)  # the film that it records is the second
    node.wait_for("study.finished", count=2, limit_seconds=_SECONDS_A_FILM)
    before, began = core_seconds(node.pid), time.monotonic()
    sender.send(count)
    node.wait_for("study.finished", count=2 + count, limit_seconds=_SECONDS_A_FILM * count)
    seconds, cost = time.monotonic() - began, core_seconds(node.pid) - before
    sender.send(count)
    beside = [ask(node.http_port, film.SOPInstanceUID, questions + number) for number in range(1, questions + 1)]
    if len(node.logged("study.finished")) == 2 + 2 * count:
        sys.exit("failed: all films were read before the last question; give more --films")
    text = node.metrics()
    engine, reason = re.findall(r'cxr_engine_info\{engine="(.*?)",fallback="(.*?)"\} 1', text)[0]
    differences, allowed = (_by_stage(text, f"cxr_parity_{what}") for what in ("max_difference", "tolerance"))
    steps = step_seconds(node)
    return {
        "engine": engine,
        "reason": reason,
        "passed": reason == "none" and all(found <= allowed[stage] for stage, found in differences.items()),
        "films_a_second": round(count / seconds, 2),
        "core_seconds_a_film": round(cost / count, 3),
        "step_seconds": {step: round(steps[step], 4) for step in STEPS},
        "first_answer_seconds": round(first, 3),
        "answers_alone_seconds": _spread(alone),
        "answers_beside_films_seconds": _spread(beside),
        "differences": differences,
        "allowed": allowed,
    }


def _by_stage(text: str, metric: str) -> dict[str, float]:
    return {stage: float(value) for stage, value in re.findall(rf'{metric}\{{stage="(.*?)"\}} (\S+)', text)}


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 3), "longest": round(max(seconds), 3)}


if __name__ == "__main__":
    sys.exit(main())
