"""A node that dies after every step of a film, a question and a correction still sends each object exactly once.

Its lives follow each other in one process: each ends by an exception after the first step that no life before it did,
and the next finds what a death leaves. `test_crash.py` has real ones.
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
import pytest
from dbos import DBOS

from node import log
from node.config import QuestionsSettings, ReportSettings, Settings
from node.jobs.workflows import OPEN
from node.service import app
from node.settings.destinations import FhirDestination
from tests.support import films, forked, peers
from tests.support.fakes import Panic, ScriptedReader
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import settings_for
from tests.support.web_archive import web_archive
from tests.support.workstation import TRACKING, finding, group, region, report

FILM = films.thumbnail()
REPORT = report(
    FILM, group(finding("edema"), region(FILM, "POLYLINE", [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]), tracking=TRACKING)
)
REJECTION = {"kind": "reject", "prompt": "atelectasis", "id": "a" * 32}


class Lives:
    """Lives of one node on one folder."""

    def __init__(self, settings: Settings, archive: ReceivingArchive) -> None:
        self._settings, self._archive = settings, archive
        self._done, self._is_mortal = set[tuple[str, int]](), False
        self.deaths = list[str]()

    def live(self, act: Callable[[app.Running], object], *, until: int, is_mortal: bool) -> None:
        """Do something, and live until so many objects have come and nothing is left to do, however often it dies."""
        self._is_mortal = is_mortal
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
    def _life(self) -> Iterator[tuple[app.Running, threading.Event]]:
        numbers, is_dead = Counter[str](), threading.Event()

        def on_step(name: str) -> None:
            workflow = str(DBOS.workflow_id)
            numbers[workflow] += 1
            if is_dead.is_set():
                raise Panic
            if self._is_mortal and (step := (workflow, numbers[workflow])) not in self._done:
                self._done.add(step)
                self.deaths.append(name)
                is_dead.set()
                raise Panic

        with app.run(self._settings, reader=ScriptedReader, on_step=on_step) as running:
            yield running, is_dead
        DBOS.destroy(destroy_registry=True)


def main(arguments: Sequence[str]) -> int:
    """Live in a folder, and die of one work; writes what the archive was sent, and after which steps it died."""
    folder, mortal = arguments
    log.configure()
    corrections = f"/api/v1/films/{FILM.SOPInstanceUID}/corrections"
    works: dict[str, Callable[[app.Running], object]] = {
        "film": lambda running: peers.send(FILM, port=running.dicom_port or 0),
        "question": lambda running: peers.send(REPORT, port=running.dicom_port or 0),
        "correction": lambda running: httpx2.post(
            f"http://{LOOPBACK}:{running.http_port}{corrections}", json=REJECTION
        ),
    }
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
        for name in dict.fromkeys(("film", mortal)):
            lives.live(works[name], until=len(archive.kept) + 2, is_mortal=name == mortal)
        sent = [str(request.sop_instance_uid) for request in archive.requests]
        kinds = [kept.dataset.Modality for kept in archive.kept]
        bundles = [body.decode() for _, _, _, body in server.requests]
    told = {"sent": sent, "kinds": kinds, "bundles": bundles, "deaths": lives.deaths}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    return 0


@pytest.mark.parametrize(
    ("work", "bundles", "steps"),
    [
        ("film", 1, {"place", "ready", "plan", "read", "write", "queue", "finish", "send"}),
        ("question", 1, {"look", "answer", "queue", "send"}),
        ("correction", 3, {"gather", "place", "ready", "plan", "write", "queue", "finish", "send"}),
    ],
)
def test_a_node_that_dies_after_every_step_sends_each_object_once(
    tmp_path: Path, work: str, bundles: int, steps: set[str]
) -> None:
    done = forked.run(main, [str(tmp_path / "node"), work])

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    pairs = 1 if work == "film" else 2
    assert Counter(said["kinds"]) == {"SR": pairs, "PR": pairs}
    assert len(set(said["sent"])) == len(said["sent"]) == 2 * pairs
    assert steps <= set(said["deaths"])
    assert len(set(said["bundles"])) == len(said["bundles"]) == bundles
    assert said["deaths"].count("send") == {"film": 3, "question": 2, "correction": 4}[work]
