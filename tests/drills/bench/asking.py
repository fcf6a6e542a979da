"""How long a question waits for its answer while films are being read: part `asking`.

A node with the shipped model reads one film, then gets many more at once. While it reads them, questions are asked
about the first one over the interface, one after the other: by a prompt, by a box, by both.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.drills.bench.node import Sender
from tests.drills.bench.results import Found
from tests.support import films, peers
from tests.support.service import Service, settings_for

FILMS: Final = 60
ROUNDS: Final = 10
PAUSE_SECONDS: Final = 0.37
PROMPTS: Final = (
    "opacity in the left lower zone",
    "Is the heart enlarged?",
    "pleural effusion",
    "right lung",
    "fracture",
)


def measure(folder: Path, *, count: int = FILMS, rounds: int = ROUNDS) -> Found:
    """Ask about one film while others are read. Raises RuntimeError if all were read before the last question."""
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port)
        with Service(settings, is_fresh=True) as node:
            film = send_first(node)
            quiet = [ask(node, film, number) for number in range(rounds)]
            Sender(node.dicom_port).send(count)
            node.wait_for("study.finished", count=2)
            waits, read = list[float](), list[int]()
            for number in range(rounds, 2 * rounds):
                time.sleep(PAUSE_SECONDS)  # so that each question meets another moment of another film
                read.append(len(node.logged("study.finished")))
                waits.append(ask(node, film, number))
            read.append(len(node.logged("study.finished")))
    if read[-1] > count:
        raise RuntimeError("all films were read before the last question; more are needed")
    figures = {
        "seconds_of_each_answer": [round(wait, 3) for wait in waits],
        "longest": round(max(waits), 3),
        "median": round(statistics.median(waits), 3),
        "longest_without_other_films": round(max(quiet), 3),
        "median_without_other_films": round(statistics.median(quiet), 3),
        "films_read_meanwhile": read[-1] - read[0],
    }
    held = {
        "asking_longest_ratio": max(waits) / max(quiet),
        "asking_films_read_a_question": (read[-1] - read[0]) / rounds,
    }
    return Found(figures=figures, held=held)


def send_first(node: Service) -> str:
    """Send the film that is asked about, and wait until it was read; its UID. Raises RuntimeError if it is refused."""
    film = films.rg1()
    film.StudyInstanceUID, film.SOPInstanceUID = "2.25.7", "2.25.8"
    if peers.send(film, port=node.dicom_port) != 0:
        raise RuntimeError("the node did not take the first film")
    node.wait_for("study.finished")
    return str(film.SOPInstanceUID)


def ask(node: Service, film: str, number: int) -> float:
    """Ask a question that was not asked before; the seconds until its answer. Raises RuntimeError without one."""
    left, top = 300 + 17 * number, 500 + 23 * number
    box = [left, top, left + 400, top + 500]
    question: dict[str, object] = {"prompt": PROMPTS[number % len(PROMPTS)], "box": box}
    if number % 3:
        question.pop("box" if number % 3 == 1 else "prompt")
    body, fields = json.dumps({"questions": [question]}), {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(peers.LOOPBACK, node.http_port, timeout=60)) as connection:
        begun = time.perf_counter()
        connection.request("POST", f"/api/v1/films/{film}/questions", body, fields)
        answer = connection.getresponse()
        answer.read()
        seconds = time.perf_counter() - begun
    if answer.status != 201:
        raise RuntimeError(f"a question was answered with {answer.status}")
    return seconds
