"""Runnable: how long a question waits for its answer while films are being read.

    python -m tests.drills.ask_bench [--films 60] [--rounds 10]

A node with the shipped model reads one film, then gets many more at once. While it reads them, questions are asked
about the first one over the interface, one after the other: by a prompt, by a box, by both. The last line is one JSON
object: `passed` says that no answer took more than `MOST_RATIO` times the longest one without
other films, and that films were read between the questions.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.drills.node_bench import Sender
from tests.support import films, peers
from tests.support.service import Service, settings_for

MOST_RATIO = 4.0
"""The longest answer while films are read, beside the longest while none is."""
PAUSE_SECONDS = 0.37
PROMPTS = ("opacity in the left lower zone", "Is the heart enlarged?", "pleural effusion", "right lung", "fracture")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.ask_bench", description=__doc__)
    parser.add_argument("--films", type=int, default=60, help="that are being read")
    parser.add_argument("--rounds", type=int, default=10, help="questions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ask-bench-") as folder:
        figures = measure(Path(folder), options.films, rounds=options.rounds)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


def measure(folder: Path, count: int, *, rounds: int) -> dict[str, object]:
    """Ask about one film while others are read. Ends the program if they were all read before the last question."""
    folder.mkdir(exist_ok=True)
    first = films.rg1()
    first.StudyInstanceUID, first.SOPInstanceUID = "2.25.7", "2.25.8"
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port)
        with Service(settings, is_fresh=True) as node:
            if peers.send(first, port=node.dicom_port) != 0:
                sys.exit("failed: the node did not take the first film")
            node.wait_for("study.finished")
            quiet = [ask(node.http_port, first.SOPInstanceUID, number) for number in range(rounds)]
            Sender(node.dicom_port).send(count)
            node.wait_for("study.finished", count=2)
            waits, read = list[float](), list[int]()
            for number in range(rounds, 2 * rounds):
                time.sleep(PAUSE_SECONDS)  # so that each question meets another moment of another film
                read.append(len(node.logged("study.finished")))
                waits.append(ask(node.http_port, first.SOPInstanceUID, number))
            read.append(len(node.logged("study.finished")))
    if read[-1] > count:
        sys.exit("failed: all films were read before the last question; give more --films")
    return {
        "passed": max(waits) <= MOST_RATIO * max(quiet) and read[-1] - read[0] >= rounds / 2,
        "ratio": round(max(waits) / max(quiet), 3),
        "limit": MOST_RATIO,
        "seconds_of_each_answer": [round(wait, 3) for wait in waits],
        "longest": round(max(waits), 3),
        "median": round(statistics.median(waits), 3),
        "longest_without_other_films": round(max(quiet), 3),
        "median_without_other_films": round(statistics.median(quiet), 3),
        "films_read_meanwhile": read[-1] - read[0],
    }


def ask(port: int, film: str, number: int) -> float:
    """Ask a question that was not asked before. Returns the seconds until its answer."""
    left, top = 300 + 17 * number, 500 + 23 * number
    box = [left, top, left + 400, top + 500]
    question: dict[str, object] = {"prompt": PROMPTS[number % len(PROMPTS)], "box": box}
    if number % 3:
        question.pop("box" if number % 3 == 1 else "prompt")
    connection = http.client.HTTPConnection(peers.LOOPBACK, port, timeout=60)
    begin = time.perf_counter()
    body = json.dumps({"questions": [question]})
    path = f"/api/v1/films/{film}/questions"
    connection.request("POST", path, body=body, headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    seconds = time.perf_counter() - begin
    connection.close()
    if answer.status != 201:
        sys.exit(f"failed: a question was answered with {answer.status}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
