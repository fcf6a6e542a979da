"""A node with a model, runtime by runtime: seconds until it is ready, films a second, answers: part `runtimes`.

A node is started twice with each runtime: the second start may use what the first one built. It gets films of 7.2 MB
over one association, each a study of its own, which are counted until their outputs are stored. Questions are asked
about a film, first alone and then while the node reads as many films again. Of each runtime: `engine`, which answered;
`reason`, why it is another one than was asked for, or none; `differences`, the largest from the network on the CPU, by
stage; `allowed`, the tolerance; `step_seconds`, means over all films.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, cast, get_args

from models.engines import ENGINES, GPU_ENGINES
from models.engines.proof import Precision
from node.config import ModelSettings
from tests.drills.bench.asking import ask, send_first
from tests.drills.bench.node import STEPS, Sender, step_seconds
from tests.drills.bench.results import Found
from tests.support import peers
from tests.support.processes import core_seconds
from tests.support.service import Service, settings_for

DEFAULT: Final = "torch-cuda:float16,torch-cuda,onnx"
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
READY_SECONDS: Final = 1800.0
"""TensorRT may build its engines for minutes."""
STARTS: Final = 2
_SECONDS_A_FILM: Final = 60.0


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


def runtimes_of(text: str) -> list[Runtime]:
    """Take names with commas between them. Raises argparse.ArgumentTypeError for one that does not exist."""
    found = [Runtime.named(part) for part in text.split(",")]
    for runtime in found:
        if runtime.engine not in (*ENGINES, *GPU_ENGINES) or runtime.precision not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"there is no runtime {runtime.engine}:{runtime.precision}")
    return found


def measure(folder: Path, model: Path, runtimes: Sequence[Runtime], *, sent: int, questions: int) -> Found:
    """Start a node with a model and each runtime, and measure it."""
    figures = dict[str, object]()
    wrong = 0
    for runtime in runtimes:
        name = f"{runtime.engine}:{runtime.precision}"
        figures[name] = row = _measured(folder / name, model.resolve(), runtime, count=sent, questions=questions)
        wrong += not row["as_asked"]
    return Found(figures=figures, held={"runtimes_that_did_not_answer_or_differ": float(wrong)})


def _measured(folder: Path, model: Path, runtime: Runtime, *, count: int, questions: int) -> dict[str, object]:
    folder.mkdir(parents=True)
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
    return {"ready_after_seconds": ready, **figures}


def _figures(node: Service, count: int, questions: int) -> dict[str, object]:
    film = send_first(node)
    first = ask(node, film, 0)
    alone = [ask(node, film, number) for number in range(1, questions + 1)]
    sender = Sender(node.dicom_port)  # the film that it records is the second
    node.wait_for("study.finished", count=2, limit_seconds=_SECONDS_A_FILM)
    before, began = core_seconds(node.pid), time.monotonic()
    sender.send(count)
    node.wait_for("study.finished", count=2 + count, limit_seconds=_SECONDS_A_FILM * count)
    seconds, cost = time.monotonic() - began, core_seconds(node.pid) - before
    sender.send(count)
    beside = [ask(node, film, questions + number) for number in range(1, questions + 1)]
    if len(node.logged("study.finished")) == 2 + 2 * count:
        raise RuntimeError("all films were read before the last question; give more by --sent")
    text = node.metrics()
    engine, reason = re.findall(r'cxr_engine_info\{engine="(.*?)",fallback="(.*?)"\} 1', text)[0]
    differences, allowed = (_by_stage(text, f"cxr_parity_{what}") for what in ("max_difference", "tolerance"))
    steps = step_seconds(node)
    return {
        "engine": engine,
        "reason": reason,
        "as_asked": reason == "none" and all(found <= allowed[stage] for stage, found in differences.items()),
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
