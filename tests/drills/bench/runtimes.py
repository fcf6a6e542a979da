"""A node with a model, runtime by runtime: until it is ready, films a second, answers: parts `shipped`, `runtimes`.

A node is started twice with each runtime: the second start may use what the first one built. It gets films of 7.2 MB
over one association, each a study of its own, which are counted until their outputs are stored. Questions are asked
about a film over the interface, one after the other, by a prompt, by a box, by both: first alone, then while the node
reads as many films again. Of each runtime: `engine`, which answered; `reason`, why it is another one than was asked
for, or none; `differences`, the largest from the network on the CPU, by stage; `allowed`, the tolerance;
`step_seconds`, means over all films.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast, get_args

from models.engines import ENGINES, GPU_ENGINES
from models.engines.proof import Precision
from node.config import ModelSettings, ReportSettings
from tests.drills.bench.node import STEPS, Sender, pydicom_seconds, step_seconds
from tests.drills.bench.results import Found
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.processes import core_seconds_below
from tests.support.service import Service, settings_for

SHIPPED: Final = REPOSITORY / "models" / "weights" / "phantom"
DEFAULT: Final = "torch-cuda:float16,torch-cuda,onnx"
READY_SECONDS: Final = 1800.0
"""TensorRT may build its engines for minutes."""
STARTS: Final = 2
PAUSE_SECONDS: Final = 0.37
"""Between two questions, so that each meets another moment of another film."""
PROMPTS: Final = (
    "opacity in the left lower zone",
    "Is the heart enlarged?",
    "pleural effusion",
    "right lung",
    "fracture",
)
_SECONDS_A_FILM: Final = 60.0


class Runtime(NamedTuple):
    """What a node is asked to read with, as in its settings."""

    engine: str
    precision: Precision = "float32"


def runtimes_of(text: str) -> list[Runtime]:
    """Take ENGINE or ENGINE:PRECISION, with commas between them. Raises ArgumentTypeError for what does not exist."""
    found = [Runtime(*cast(tuple[str, Precision], part.split(":"))) for part in text.split(",")]
    for engine, precision in found:
        if engine not in (*ENGINES, *GPU_ENGINES) or precision not in get_args(Precision):
            raise argparse.ArgumentTypeError(f"there is no runtime {engine}:{precision}")
    return found


def shipped(folder: Path, *, sent: int, questions: int) -> Found:
    """Start a node with the shipped model on the processor."""
    reference = pydicom_seconds()
    row = _measured(folder, SHIPPED, Runtime("onnx"), count=sent, questions=questions)
    alone, beside = (row[f"answers_{name}_seconds"]["longest"] for name in ("alone", "beside_films"))
    held = {
        "shipped_cost_pydicom_ratio": row["core_seconds_a_film"] / reference,
        "shipped_share_of_cores": row["share_of_cores"],
        "shipped_answer_beside_films_ratio": beside / alone,
        "shipped_films_read_a_question": row["films_read_a_question"],
    }
    return Found(figures={**row, "pydicom_core_seconds": round(reference, 4)}, held=held)


def measure(folder: Path, model: Path, runtimes: Sequence[Runtime], *, sent: int, questions: int) -> Found:
    """Start a node with a model and each runtime, and measure it."""
    figures = dict[str, object]()
    wrong = 0
    for runtime in runtimes:
        name = f"{runtime.engine}:{runtime.precision}"
        figures[name] = row = _measured(folder / name, model.resolve(), runtime, count=sent, questions=questions)
        wrong += not row["as_asked"]
    return Found(figures=figures, held={"runtimes_that_did_not_answer_or_differ": float(wrong)})


def _measured(folder: Path, model: Path, runtime: Runtime, *, count: int, questions: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    asked = ModelSettings(directory=model, engine=runtime.engine, precision=runtime.precision)
    ready, figures = list[float](), dict[str, Any]()
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, model=asked)
        settings = replace(settings, report=ReportSettings(cardiothoracic_ratio=False))  # two objects of every film
        while not figures:
            began = time.monotonic()
            with Service(settings, is_fresh=True, ready_seconds=READY_SECONDS) as node:
                ready.append(round(time.monotonic() - began, 1))
                if len(ready) == STARTS:
                    figures = _figures(node, count, questions)
                else:
                    node.stop()
    return {"ready_after_seconds": ready, **figures}


def _figures(node: Service, count: int, questions: int) -> dict[str, Any]:
    source = films.rg1()
    source.StudyInstanceUID, source.SOPInstanceUID = "2.25.7", "2.25.8"
    node.read(source)
    film = str(source.SOPInstanceUID)
    first = ask(node, film, 0)
    alone = [ask(node, film, number) for number in range(1, questions + 1)]
    sender = Sender(node.dicom_port)  # the film that it records is the second
    node.wait_for("study.finished", count=2, limit_seconds=_SECONDS_A_FILM)
    before, own, began = core_seconds_below(os.getpid()), time.process_time(), time.monotonic()
    sender.send(count)
    node.wait_for("study.finished", count=2 + count, limit_seconds=_SECONDS_A_FILM * count)
    seconds, cost = time.monotonic() - began, core_seconds_below(os.getpid()) - before
    spent = cost + time.process_time() - own
    sender.send(count)
    node.wait_for("study.finished", count=3 + count, limit_seconds=_SECONDS_A_FILM)
    asked, read = list[float](), len(node.logged("study.finished"))
    for number in range(questions + 1, 2 * questions + 1):
        time.sleep(PAUSE_SECONDS)
        asked.append(ask(node, film, number))
    read = len(node.logged("study.finished")) - read
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
        "share_of_cores": round(spent / seconds / len(os.sched_getaffinity(0)), 3),
        "step_seconds": {step: round(steps[step], 4) for step in STEPS},
        "first_answer_seconds": round(first, 3),
        "answers_alone_seconds": _spread(alone),
        "answers_beside_films_seconds": _spread(asked),
        "films_read_a_question": round(read / questions, 2),
        "differences": differences,
        "allowed": allowed,
    }


def _by_stage(text: str, metric: str) -> dict[str, float]:
    return {stage: float(value) for stage, value in re.findall(rf'{metric}\{{stage="(.*?)"\}} (\S+)', text)}


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 3), "longest": round(max(seconds), 3)}


def ask(node: Service, film: str, number: int) -> float:
    """Ask a question that was not asked before; the seconds until its answer. Raises RuntimeError without one."""
    left, top = 300 + 17 * number, 500 + 23 * number
    box = [left, top, left + 400, top + 500]
    question: dict[str, object] = {"prompt": PROMPTS[number % len(PROMPTS)], "box": box}
    if number % 3:
        question.pop("box" if number % 3 == 1 else "prompt")
    begun = time.perf_counter()
    status, _ = node.ask("POST", f"/api/v1/films/{film}/questions", {"questions": [question]})
    seconds = time.perf_counter() - begun
    if status != 201:
        raise RuntimeError(f"a question was answered with {status}")
    return seconds
