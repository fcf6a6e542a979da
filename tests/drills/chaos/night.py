"""One night: films come all the time, power goes at random moments, an archive comes and goes; at dawn all counts."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from models.progress import ProgressReport
from node.commands import operate
from node.config import Settings
from node.jobs.study_actions import retry
from node.settings.destinations import DicomDestination
from tests.drills.chaos import verdict
from tests.drills.chaos.node import Cluster, Supervised, running
from tests.drills.chaos.senders import Senders, caller_names
from tests.support import peers
from tests.support.service import Service, on_database, settings_for

SENDERS: Final = 4
IN_HAND: Final = 2
"""Objects that a process which ends may have sent to one archive without noting it."""

_START_SECONDS: Final = 2.5
_IN_ITS_START: Final = 0.2
_TIMES_SAID: Final = 3
_BETWEEN_LOOKS_SECONDS: Final = 0.6
_SENDING_LIMIT_SECONDS: Final = 300.0
_PATIENCE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much happens in a night. The seed draws every moment, though no two machines are equally fast.

    longest_seconds: of load before each kill, and of an archive's moods
    excused: how many objects may reach an archive twice, however few there are
    """

    kills: int
    films: int
    seed: int
    longest_seconds: float = 5.0
    excused: int = 0


def run(plan: Plan, folder: Path, *, database_url: str = "", say: ProgressReport) -> dict[str, object]:
    """Live through a night with two archives, of which one comes and goes, and count; the figures, with `passed`.

    database_url: PostgreSQL, with several processes; else SQLite, with one
    """
    draw, dicom_port, began = random.Random(plan.seed), peers.free_port(), time.monotonic()
    with peers.ReceivingArchive() as archive, peers.ReceivingArchive(ae_title="STEADY") as steady:
        callers = caller_names(SENDERS)
        settings = settings_for(folder / "node", archive_port=archive.port, dicom_port=dicom_port, callers=callers)
        second = DicomDestination(name="steady", ae_title="STEADY", host=peers.LOOPBACK, port=steady.port)
        settings = dataclasses.replace(settings, destinations=(*settings.destinations, second))
        settings = on_database(settings, database_url)
        with several_processes(settings) if database_url else one_process(settings) as node:
            senders = Senders(port=dicom_port, count=SENDERS, films=plan.films, draw=random.Random(plan.seed + 1))
            try:
                fate = random.Random(plan.seed + 2)
                with flapping(archive, fate, longest_seconds=plan.longest_seconds) as moods:
                    kills = _kill_now_and_then(plan, node, senders, draw=draw, say=say)
                    senders.allow(plan.films)
                    is_taken = senders.wait_for(plan.films, limit_seconds=_SENDING_LIMIT_SECONDS)
            finally:
                senders.close()
            say(f"{senders.done} films acknowledged; the archive is well again")
            is_idle, interrupted = retry_interrupted(settings, patience_seconds=_PATIENCE_SECONDS)
            crashes = node.crashes
        flapped, quiet = (verdict.judge(each, senders.acknowledged, excused=plan.excused) for each in (archive, steady))
    return {
        "passed": flapped.passed and quiet.passed and is_taken and is_idle and kills == plan.kills and not crashes,
        "seed": plan.seed,
        "kills": kills,
        "acknowledged": senders.done,
        "idle_at_the_end": is_idle,
        "interrupted": interrupted,
        "times_the_archive_was_away": len(moods),
        "crashes": crashes,
        "archive": flapped.figures(),
        "steady": quiet.figures(),
        "seconds": round(time.monotonic() - began, 1),
    }


@contextmanager
def flapping(archive: peers.ReceivingArchive, draw: random.Random, *, longest_seconds: float) -> Iterator[list[str]]:
    """Let an archive be down, reject or be out of resources now and then while the block runs; well after it.

    longest_seconds: for which it is well, or not, at a time. Yields the moods that it has had.
    """
    closing, moods = threading.Event(), list[str]()

    def go_on() -> None:
        while not closing.wait(draw.uniform(0.4, 1.0) * longest_seconds):
            moods.append(draw.choice(("down", "rejecting", "full")))
            seconds = draw.uniform(0.2, 0.8) * longest_seconds
            if moods[-1] == "down":
                with archive.down():
                    closing.wait(seconds)
            else:
                archive.reject() if moods[-1] == "rejecting" else archive.refuse(0xA700)
                closing.wait(seconds)
                archive.accept()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield moods
    finally:
        closing.set()
        thread.join(timeout=60)


def one_process(settings: Settings) -> AbstractContextManager[Cluster]:
    """The node as one process."""
    return running([Supervised("node", lambda: Service(settings))])


def several_processes(settings: Settings) -> AbstractContextManager[Cluster]:
    """The node as a listener, two workers and a sender, on PostgreSQL."""
    members = (("listener", "listener"), ("worker", "worker-1"), ("worker", "worker-2"), ("sender", "sender"))
    return running([Supervised(name, partial(Service, settings, only=role, executor=name)) for role, name in members])


def retry_interrupted(settings: Settings, *, patience_seconds: float) -> tuple[bool, int]:
    """Wait until nothing is on its way, then retry the studies over whose films the node was killed four times.

    Returns whether nothing is on its way or parked in the end, and how many studies were retried.
    patience_seconds: as for `wait_until_idle`
    """
    _wait_for(settings, _is_nothing_on_its_way, patience_seconds=patience_seconds)
    parked = operate.status(settings)["parked"]
    retried = {work["study"] for work in parked if work["reason"].startswith("interrupted")}
    if retried:  # an operator says that they may be read
        retry(settings, sorted(retried))
    return wait_until_idle(settings, patience_seconds=patience_seconds), len(retried)


def wait_until_idle(settings: Settings, *, patience_seconds: float) -> bool:
    """Wait until the node says several times that nothing is on its way or parked; say whether it came to that.

    Once is not enough: a film that was just acknowledged is not yet in the tables (`node.service.receiver`).
    patience_seconds: for which nothing of what it says may change before that
    """
    return _wait_for(
        settings,
        lambda said: _is_nothing_on_its_way(said) and not said["parked"],
        patience_seconds=patience_seconds,
    )


def _wait_for(settings: Settings, is_reached: Callable[[operate.Status], bool], *, patience_seconds: float) -> bool:
    last, changed_at, times = operate.status(settings), time.monotonic(), 0
    while times < _TIMES_SAID and time.monotonic() - changed_at < patience_seconds:
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        said = operate.status(settings)
        times = times + 1 if is_reached(said) else 0
        if said != last:
            last, changed_at = said, time.monotonic()
    return times == _TIMES_SAID


def _is_nothing_on_its_way(said: operate.Status) -> bool:
    studies = said["studies"]
    deliveries = said["deliveries"].values()
    return not (
        studies["receiving"]
        or studies["reading"]
        or any(counts["waiting"] or counts["sending"] for counts in deliveries)
    )


def _kill_now_and_then(plan: Plan, node: Cluster, senders: Senders, *, draw: random.Random, say: ProgressReport) -> int:
    """Cut the power at every drawn moment, each while films are under way; how often it was.

    Films are let in by and by, so that there is load at every cut. Some cuts come while the node is starting.
    """
    kills = 0
    for number in range(1, plan.kills + 1):
        senders.allow(plan.films * number // (plan.kills + 1))
        if draw.random() < _IN_ITS_START:
            time.sleep(draw.uniform(0.0, _START_SECONDS))
        else:
            senders.wait_for(senders.done + 1, limit_seconds=_START_SECONDS * 4)
            time.sleep(draw.uniform(0.0, plan.longest_seconds))
        name = node.kill_one(draw)
        kills += 1
        say(f"kill {number} of {plan.kills}, of the {name}: {senders.done} films acknowledged")
    return kills
