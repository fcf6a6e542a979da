"""Runnable: how fast this machine takes, reads, answers and delivers films; figures for `docs/operate/growth.md`.

    python -m tests.bench [--films 30]

Receiving is measured beside dcmtk (`tests.receive_bench`); writing alone, in seconds of a core; all else by a node and
an archive on this machine, once with a scripted reader, which shows what the node costs, and once with the shipped
model. Sender and archive are not part of the node's processor time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from models import progress
from models.progress import ProgressReport
from node.config import ReportSettings
from node.outputs import document, writers
from node.outputs.source import Source
from node.read import decoding, prompts
from node.read.film import answer_film
from tests import films, peers, receive_bench
from tests.fakes import ScriptedReader
from tests.service import Service, settings_for

STEPS = ("receive", "decode", "read", "write", "finish", "deliver")
QUIET_SECONDS = 0.5
WRITES = 21
MOST_WRITE_SECONDS = 0.06
ALONE = 5
"""How many films are sent one after the other, each when the one before it was answered."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--films", type=int, default=30, help="that are sent at once")
    count = parser.parse_args().films
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, progress.on(sys.stdout) as say:
        say("receiving, beside dcmtk")
        receiving = receive_bench.measure(Path(folder), count=8, rounds=3)
        say("writing")
        writing = write_seconds(Path(folder))
        figures = {
            # Whatever else is not answered in time ends the run.
            "passed": bool(receiving["passed"]) and writing <= MOST_WRITE_SECONDS,
            "receiving": receiving,
            "write": {"sr_and_gsps_cpu_seconds": round(writing, 4), "limit": MOST_WRITE_SECONDS},
            "scripted": measure(Path(folder) / "scripted", count, scripted=True, say=say),
            "shipped_model": measure(Path(folder) / "shipped", count, scripted=False, say=say),
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


def measure(folder: Path, count: int, *, scripted: bool, say: ProgressReport) -> dict[str, object]:
    """Send films one by one, then many at once, then let results wait for an archive that is down."""
    stage = "with the scripted reader" if scripted else "with the shipped model"
    folder.mkdir()
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, quiet_seconds=QUIET_SECONDS)
        settings = replace(settings, report=ReportSettings(cardiothoracic_ratio=False))  # two objects of every film
        with Service(settings, scripted=scripted) as node:
            say(f"{stage}: one film after the other")
            alone = [turnaround(film, node, archive) for film in sources(f"alone {stage}", ALONE)]
            say(f"{stage}: {count} films at once")
            before = receive_bench.core_seconds(node.pid)
            taken, answered = flood(sources(f"flood {stage}", count), node, archive)
            cost = (receive_bench.core_seconds(node.pid) - before) / count
            say(f"{stage}: an archive that was down")
            delivered = drain(sources(f"drain {stage}", count), node, archive)
            steps = step_seconds(node.http_port)
    return {
        "turnaround_seconds": round(statistics.median(alone), 3),
        "quiet_seconds_of_that": QUIET_SECONDS,
        "taken_per_second": round(taken, 2),
        "answered_per_second": round(answered, 2),
        "core_seconds_a_film": round(cost, 3),
        "deliveries_per_second": round(delivered, 2),
        "film_megabytes": round(len(films.file_bytes(films.rg1())) / 1e6, 1),
        "step_seconds": {step: round(steps[step], 4) for step in STEPS},
    }


def sources(name: str, count: int) -> list[Dataset]:
    """Films at full size, each a study of its own."""
    return [films.as_another(films.rg1(), f"{name} {number}", study=f"{name} {number}") for number in range(count)]


def turnaround(film: Dataset, node: Service, archive: peers.ReceivingArchive) -> float:
    """Seconds from the first byte of a film to the last of its report and its presentation state."""
    before, began = len(archive.kept), time.monotonic()
    take([film], node)
    archive.wait_for_kept(before + 2, limit_seconds=60.0)
    return time.monotonic() - began


def flood(many: list[Dataset], node: Service, archive: peers.ReceivingArchive) -> tuple[float, float]:
    """How many films are taken, and how many answered in a second, when all come at once over one association."""
    before, began = len(archive.kept), time.monotonic()
    take(many, node)
    taken = time.monotonic() - began
    archive.wait_for_kept(before + 2 * len(many), limit_seconds=60.0 + 20.0 * len(many))
    return len(many) / taken, len(many) / (time.monotonic() - began)


def drain(many: list[Dataset], node: Service, archive: peers.ReceivingArchive) -> float:
    """How many results reach an archive in a second that all waited for it; counted from the first that arrives."""
    finished, before = len(node.logged("study.finished")), len(archive.kept)
    with archive.down():
        take(many, node)
        node.wait_for("study.finished", count=finished + len(many), limit_seconds=60.0 + 20.0 * len(many))
    archive.wait_for_kept(before + 1, limit_seconds=120.0)
    began = time.monotonic()
    archive.wait_for_kept(before + 2 * len(many), limit_seconds=300.0)
    return (2 * len(many) - 1) / (time.monotonic() - began)


def take(many: list[Dataset], node: Service) -> None:
    if peers.send_all(many, port=node.dicom_port) != [0] * len(many):
        sys.exit("failed: the node did not take every film")


def step_seconds(port: int) -> dict[str, float]:
    """The mean time of each step, as the node's own metric has it."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{peers.LOOPBACK}:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pattern = r'cxr_step_duration_seconds_{}\{{step="(\w+)"\}} (\S+)'
    sums, counts = (dict(re.findall(pattern.format(what), text)) for what in ("sum", "count"))
    return {step: float(sums[step]) / max(float(counts[step]), 1.0) for step in sums}


if __name__ == "__main__":
    sys.exit(main())
