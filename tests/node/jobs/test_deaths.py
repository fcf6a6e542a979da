"""A node that dies after every step of a film, a question and a correction still sends each object exactly once.

Its lives follow each other in one process: each ends by an exception, in every work in hand after the first step that
no life before it did, and the next finds what a death leaves. `test_crash.py` has real ones.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
from dbos import DBOS

from node import log
from node.config import QuestionsSettings, ReportSettings, Settings
from node.jobs.workflows import OPEN
from node.service import app
from node.service.running import Running
from node.settings.destinations import FhirDestination
from tests.support import films, forked, peers
from tests.support.fakes import Panic, ScriptedReader
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import settings_for
from tests.support.web_archive import web_archive
from tests.support.workstation import TRACKING, finding, group, region, report

FILM = films.thumbnail()
QUESTION = report(
    FILM, group(finding("edema"), region(FILM, "POLYLINE", [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]), tracking=TRACKING)
)
REJECTION = {"kind": "reject", "prompt": "atelectasis", "id": "a" * 32}


class Lives:
    """Lives of one node on one folder."""

    def __init__(self, settings: Settings, archive: ReceivingArchive) -> None:
        self._settings, self._archive = settings, archive
        self._done = set[tuple[str, int]]()
        self.deaths = list[str]()

    def live(self, act: Callable[[Running], object], *, until: int) -> None:
        """Do something, and live until so many objects have come and nothing is left to do, however often it dies."""
        with self._life() as (running, is_dead):
            act(running)
            has_died = self._last(is_dead, until)
        while has_died:
            with self._life() as (_, is_dead):
                has_died = self._last(is_dead, until)

    def _last(self, is_dead: threading.Event, until: int) -> bool:
        """Wait until it dies, or has done everything; whether it died."""
        limit = time.monotonic() + 60.0
        while not is_dead.wait(timeout=0.05):
            if len(self._archive.kept) >= until and not DBOS.list_workflows(status=[*OPEN], load_output=False):
                return False
            assert time.monotonic() < limit, f"it neither died nor ended: {self.deaths}"
        return True

    @contextmanager
    def _life(self) -> Iterator[tuple[Running, threading.Event]]:
        numbers, is_dead = Counter[str](), threading.Event()

        def on_step(name: str) -> None:
            workflow = str(DBOS.workflow_id)
            numbers[workflow] += 1
            if (step := (workflow, numbers[workflow])) not in self._done:
                self._done.add(step)  # of several works in hand, each dies after its own step
                self.deaths.append(name)
                is_dead.set()
            if is_dead.is_set():
                raise Panic

        with app.run(self._settings, reader=ScriptedReader, on_step=on_step) as running:
            yield running, is_dead
        DBOS.destroy(destroy_registry=True)


def main(arguments: Sequence[str]) -> int:
    """Live in a folder, and die of every step; writes what the archive was sent, and after which steps it died."""
    (folder,) = arguments
    log.configure()
    corrections = f"/api/v1/films/{FILM.SOPInstanceUID}/corrections"

    def send_film(running: Running) -> None:
        peers.send(FILM, port=running.ports["dicom_port"])

    def ask_and_correct(running: Running) -> None:
        """Both at once: fewer lives than one after the other, and as many deaths."""
        peers.send(QUESTION, port=running.ports["dicom_port"])
        httpx2.post(f"http://{LOOPBACK}:{running.ports['http_port']}{corrections}", json=REJECTION)

    with ReceivingArchive() as archive, web_archive() as server:
        settings = settings_for(Path(folder), archive_port=archive.port, corrections_seconds=0.5)
        settings = replace(
            settings,
            questions=QuestionsSettings(ae_titles=("TESTER",)),
            report=ReportSettings(writers=0),
            destinations=(
                *settings.destinations,
                FhirDestination(name="records", url=f"http://{LOOPBACK}:{server.port}/r5"),
            ),
        )
        lives = Lives(settings, archive)
        lives.live(send_film, until=2)
        lives.live(ask_and_correct, until=6)
        told = {
            "sent": [str(request.sop_instance_uid) for request in archive.requests],
            "kinds": [kept.dataset.Modality for kept in archive.kept],
            "bundles": [body.decode() for _, _, _, body in server.requests],
            "deaths": lives.deaths,
        }
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    return 0


def test_a_node_that_dies_after_every_step_sends_each_object_once(tmp_path: Path) -> None:
    done = forked.run(main, [str(tmp_path / "node")], longest_seconds=300.0)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert Counter(told["kinds"]) == {"SR": 3, "PR": 3}  # of the film, of the answer, of the correction
    assert len(set(told["sent"])) == len(told["sent"]) == 6
    assert len(set(told["bundles"])) == len(told["bundles"]) == 3
    deaths = Counter(told["deaths"])
    steps = ("place", "ready", "plan", "read", "write", "queue", "finish", "look", "answer", "gather")
    assert all(deaths[step] for step in steps)
    assert deaths["send"] == 9  # every object to every destination that takes it
