"""The node around the network: writing, and films through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final
from zoneinfo import ZoneInfo

from pydicom import Dataset, dcmwrite
from pydicom.filereader import read_dataset

from models.progress import ProgressReport
from node.domain import Film, Finding
from node.outputs import document, writers
from node.read import decoding, prompts
from node.read.film import answer_film
from tests.drills.bench import node
from tests.drills.bench.results import Found
from tests.drills.bench.turns import spread
from tests.support import films, samples
from tests.support.fakes import ScriptedReader

WRITES: Final = 21
_OFTEN: Final = 3
"""Part `cores` sends so many times the films of part `node`."""
_ITEMS: Final = 400
_TIMES: Final = 7


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


def around_network(folder: Path, *, sent: int, alone: int, waiting: int, rounds: int, say: ProgressReport) -> Found:
    """Send films to a node whose network takes no time, while no other study waits and while many do.

    waiting: how many do; 0 leaves that out
    """
    figures = node.measure(folder, sent, alone=alone, rounds=rounds, scripted=True, say=say)
    reference = pydicom_seconds()
    held = {
        "node_cost_pydicom_ratio": figures["core_seconds_a_film"] / reference,
        "node_share_of_cores": figures["share_of_cores"],
        "node_turnaround_cost_ratio": figures["turnaround_cost_ratio"],
    }
    figures["pydicom_core_seconds"] = round(reference, 4)
    if waiting:
        behind = node.measure_waiting(folder / "waiting", sent, waiting=waiting, rounds=rounds, say=say)
        figures["with_studies_waiting"] = behind
        held["node_cost_with_studies_waiting_ratio"] = behind["ratio"]
    return Found(figures=figures, held=held)


def cores(*, sent: int) -> Found:
    """Send films to a node on one processor, and on two; sender and archive share them. Two need two processors.

    It gets so many films at once that the first and the last ones, beside which cores are idle, count little.
    """
    own = sorted(os.sched_getaffinity(0))[:2]
    answered = []
    for processors in (own[:1], own):
        command = ["taskset", "-c", ",".join(map(str, processors)), sys.executable, "-m", "tests.drills.bench"]
        options = ["--only", "node", "--sent", str(_OFTEN * sent), "--rounds", "3", "--alone", "1", "--waiting", "0"]
        done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, timeout=900)
        answered.append(json.loads(done.stdout.splitlines()[-1])["node"])
    ratio = answered[1]["answered_per_second"] / answered[0]["answered_per_second"]
    figures = dict(zip(("one processor", "two processors"), answered, strict=True)) | {"ratio": ratio}
    return Found(figures=figures, held={"node_two_cores_ratio": ratio})


def shipped(folder: Path, *, sent: int, say: ProgressReport) -> Found:
    """Send films to a node with the shipped model."""
    figures = node.measure(folder, sent, scripted=False, say=say)
    reference = pydicom_seconds()
    return Found(
        figures=figures | {"pydicom_core_seconds": round(reference, 4)},
        held={
            "shipped_cost_pydicom_ratio": figures["core_seconds_a_film"] / reference,
            "shipped_share_of_cores": figures["share_of_cores"],
        },
    )


def pydicom_seconds() -> float:
    """Measure the core seconds in which pydicom writes a data set of 2,001 elements in items, and reads them all."""
    nested = Dataset()
    nested.ContentSequence = [_item(number) for number in range(_ITEMS)]
    taken = list[float]()
    for _ in range(_TIMES):
        began, encoded = time.process_time(), BytesIO()
        dcmwrite(encoded, nested, implicit_vr=False, little_endian=True)
        encoded.seek(0)
        for item in read_dataset(encoded, is_implicit_VR=False, is_little_endian=True).ContentSequence:
            _ = [element.value for element in item]
        taken.append(time.process_time() - began)
    return median(taken)


def _item(number: int) -> Dataset:
    item = Dataset()
    item.ValueType, item.RelationshipType, item.TextValue = "TEXT", "CONTAINS", f"sentence {number}"
    item.ObservationUID, item.NumericValue = f"1.2.{number}", f"{number}"
    return item
