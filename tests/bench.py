"""Runnable: how fast this machine takes, reads, answers and delivers films; figures for `docs/operate/growth.md`.

    python -m tests.bench [--films 30]

Receiving is measured beside dcmtk (`tests.receive_bench`); writing alone, in seconds of a core; all else by a node and
an archive on this machine (`tests.node_bench`), once with a scripted reader, which shows what the node costs, and once
with the shipped model. Questions are asked while films are read (`tests.ask_bench`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from models import progress
from node.outputs import document, writers
from node.outputs.source import Source
from node.read import decoding, prompts
from node.read.film import answer_film
from tests import ask_bench, films, node_bench, receive_bench
from tests.fakes import ScriptedReader

WRITES = 21
MOST_WRITE_SECONDS = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--films", type=int, default=30, help="that are sent at once")
    count = parser.parse_args().films
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress.on(sys.stdout) as say:
        say("receiving, beside dcmtk")
        receiving = receive_bench.measure(Path(folder), count=8, rounds=3)
        say("writing")
        writing = write_seconds(Path(folder))
        scripted = node_bench.measure(Path(folder) / "scripted", count, scripted=True, say=say)
        say("asking while films are read")
        asking = ask_bench.measure(Path(folder) / "asking", 60, rounds=10)
        shipped = node_bench.measure(Path(folder) / "shipped", count, scripted=False, say=say)
        figures = {
            # Whatever else is not answered in time ends the run.
            "passed": bool(receiving["passed"] and scripted["passed"] and asking["passed"])
            and writing <= MOST_WRITE_SECONDS,
            "receiving": receiving,
            "write": {"sr_and_gsps_cpu_seconds": round(writing, 4), "limit": MOST_WRITE_SECONDS},
            "asking": asking,
            "scripted": scripted,
            "shipped_model": shipped,
        }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


def write_seconds(folder: Path) -> float:
    """Seconds of a core for report and presentation state of a film with ten boxes, from findings to bytes; a median.

    The film is decoded before, because that takes longer for some transfer syntaxes than for others.
    """
    path, prompt_set, reader = folder / "film.dcm", prompts.load("chexpert14"), ScriptedReader()
    path.write_bytes(films.file_bytes(films.rg1()))
    answered = answer_film(path, reader, prompt_set)
    film, header = answered.film, answered.dataset
    if film is None:
        sys.exit("failed: the film was not read")
    picture = decoding.picture_of(decoding.read_file(path))
    report = writers.make_report(
        header.StudyInstanceUID, [film], model=reader.identity, prompts=prompt_set, created_at=datetime.now(UTC)
    )
    sources = {film.source: Source(header=header, picture=lambda: picture)}
    seconds = []
    for _ in range(WRITES):
        began = time.process_time()
        for _, dataset in writers.write_objects(report, sources, zone=ZoneInfo("UTC"), kinds=("sr", "gsps")):
            document.save_bytes(dataset)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
