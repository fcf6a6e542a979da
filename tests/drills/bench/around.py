"""The node around the network: films through it, on one processor and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final

from pydicom import Dataset, dcmwrite
from pydicom.filereader import read_dataset

from models.progress import ProgressReport
from tests.drills.bench import node
from tests.drills.bench.results import Found

_OFTEN: Final = 3
"""Part `cores` sends so many times the films of part `node`."""
_ITEMS: Final = 400
_TIMES: Final = 7


def around_network(folder: Path, *, sent: int, alone: int, waiting: int, rounds: int, say: ProgressReport) -> Found:
    """Send films to a node whose network takes no time, while no other study waits and while many do.

    waiting: how many do; 0 leaves that out
    """
    figures = node.measure(folder, sent, alone=alone, rounds=rounds, say=say)
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
