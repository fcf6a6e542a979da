"""The node around the network: receiving beside dcmtk and Orthanc, writing, films through it, questions meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast
from zoneinfo import ZoneInfo

from models.progress import ProgressReport
from node.domain import Film, Finding
from node.outputs import document, writers
from node.read import decoding, prompts
from node.read.film import answer_film
from tests.drills import ask_bench, node_bench, receive_bench
from tests.drills.bench.machine import pydicom_seconds
from tests.drills.bench.results import Found
from tests.drills.bench.turns import spread
from tests.support import films, samples
from tests.support.fakes import ScriptedReader

WRITES: Final = 21
_ASKED_FILMS: Final = 60
_OFTEN: Final = 3
"""Part `cores` sends so many times the films of part `node`."""


def receive(folder: Path, *, count: int, rounds: int) -> Found:
    """Receive films and smaller objects, beside dcmtk and Orthanc; count: films that each sender sends in a round."""
    figures = receive_bench.measure(folder, count=count, rounds=rounds)
    ratios = cast("Mapping[str, float]", figures["ratios"])
    return Found(figures=figures, held={f"receive_{name}_ratio": ratio for name, ratio in ratios.items()})


def writing(folder: Path) -> Found:
    """Write report and presentation state of a film with two and with ten boxes, to bytes: seconds of a core.

    The film is decoded before, because that takes longer for some transfer syntaxes than for others.
    """
    path, prompt_set, reader = folder / "film.dcm", prompts.load("chexpert14"), ScriptedReader()
    path.write_bytes(films.file_bytes(films.rg1()))
    answered = answer_film(path, reader, prompt_set)
    film, header = answered.film, answered.dataset
    if film is None:
        raise RuntimeError("the film was not read")
    picture = decoding.picture_of(path)
    sources = {film.source: samples.source(header, lambda: picture)}
    figures = dict[str, object]()
    for count in (2, 10):
        report = writers.make_report(
            header.StudyInstanceUID,
            [_with_boxes(film, count)],
            model=reader.identity,
            prompts=prompt_set,
            created_at=datetime.now(UTC),
        )
        for kind in ("sr", "gsps"):
            seconds = []
            for _ in range(WRITES):
                began = time.process_time()
                for made in writers.write_objects(report, sources, zone=ZoneInfo("UTC"), kinds=(kind,)):
                    document.save_bytes(made.dataset)
                seconds.append(time.process_time() - began)
            figures[f"{kind}, {count} boxes"] = spread(seconds, "core_seconds")
    return Found(figures=figures, held={})


def _with_boxes(film: Film, count: int) -> Film:
    """Return a film with its first findings that have that many boxes together, and those that have none."""
    kept, left = list[Finding](), count
    for finding in film.findings:
        if len(finding.boxes) <= left:
            kept.append(finding)
            left -= len(finding.boxes)
    return replace(film, findings=tuple(kept))


def node(folder: Path, *, sent: int, alone: int, waiting: int, rounds: int, say: ProgressReport) -> Found:
    """Send films to a node whose network takes no time, while no other study waits and while many do."""
    figures = node_bench.measure(folder, sent, alone=alone, rounds=rounds, scripted=True, say=say)
    behind = node_bench.measure_waiting(folder / "waiting", sent, waiting=waiting, rounds=rounds, say=say)
    reference = pydicom_seconds()
    return Found(
        figures=figures | {"pydicom_core_seconds": round(reference, 4), "with_studies_waiting": behind},
        held={
            "node_cost_pydicom_ratio": _number(figures["core_seconds_a_film"]) / reference,
            "node_share_of_cores": _number(figures["share_of_cores"]),
            "node_turnaround_cost_ratio": _number(figures["turnaround_cost_ratio"]),
            "node_cost_with_studies_waiting_ratio": _number(behind["ratio"]),
        },
    )


def cores(*, sent: int) -> Found:
    """Send films to a node on one processor, and on two; sender and archive share them. Two need two processors.

    It gets so many films at once that the first and the last ones, beside which cores are idle, count little.
    """
    own = sorted(os.sched_getaffinity(0))[:2]
    answered = []
    for processors in (own[:1], own):
        command = ["taskset", "-c", ",".join(map(str, processors)), sys.executable, "-m", "tests.drills.node_bench"]
        options = ["--films", str(_OFTEN * sent), "--rounds", "3", "--alone", "1"]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=900)
        answered.append(json.loads(done.stdout.splitlines()[-1]))
    ratio = _number(answered[1]["answered_per_second"]) / _number(answered[0]["answered_per_second"])
    figures = dict(zip(("one processor", "two processors"), answered, strict=True)) | {"ratio": ratio}
    return Found(figures=figures, held={"node_two_cores_ratio": ratio})


def asking(folder: Path) -> Found:
    """Ask a node about a film while it reads others with the shipped model, and while it reads none."""
    figures = ask_bench.measure(folder, _ASKED_FILMS, rounds=10)
    asked = len(cast("list[float]", figures["seconds_of_each_answer"]))
    held = {
        "asking_longest_ratio": _number(figures["ratio"]),
        "asking_films_read_a_question": _number(figures["films_read_meanwhile"]) / asked,
    }
    return Found(figures=figures, held=held)


def shipped(folder: Path, *, sent: int, say: ProgressReport) -> Found:
    """Send films to a node with the shipped model."""
    figures = node_bench.measure(folder, sent, scripted=False, say=say)
    reference = pydicom_seconds()
    return Found(
        figures=figures | {"pydicom_core_seconds": round(reference, 4)},
        held={
            "shipped_cost_pydicom_ratio": _number(figures["core_seconds_a_film"]) / reference,
            "shipped_share_of_cores": _number(figures["share_of_cores"]),
        },
    )


def _number(figure: object) -> float:
    return float(cast(float, figure))
