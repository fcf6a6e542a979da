"""What a film costs the node around the network, and how many films it answers in a second: part `node`.

A node with a scripted reader, which takes no time, gets films of 7.2 MB (explicit little endian), each a study of its
own, and delivers report and presentation state to one archive. The sender says recorded bytes over one association; it
and the archive run in this process, and their processor time is shown beside the node's and is no part of it.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.progress import ProgressReport
from node.config import ReportSettings, StorageSettings
from node.domain import derive_uid
from node.outputs import batches
from tests.drills.bench import waiting_studies
from tests.support import films, pdus, peers
from tests.support.processes import core_seconds_below
from tests.support.service import Service, settings_for

STEPS = ("receive", "decode", "read", "write", "finish", "deliver")
QUIET_SECONDS = 0.5
ALONE = 20
"""How many films are sent one after the other, each a random time after the one before it was answered."""
LONGEST_PAUSE_SECONDS = 2.0

_IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Films that came at once.

    taken, answered: in a second; peers_cost: core seconds a film of sender and archive
    node_cost: of the node with its decoders and writers, which are below this process as it is
    """

    taken: float
    answered: float
    node_cost: float
    peers_cost: float


class Sender:
    """Sends the bytes of one recorded film again and again, each time with UIDs of its own."""

    def __init__(self, port: int) -> None:
        """Record a film that the node listening on a port takes and answers."""
        self._port, self._count = port, 0
        self._uids = {name: _uid(name, 0) for name in ("study", "film")}
        film = films.rg1()
        film.StudyInstanceUID, film.SOPInstanceUID = self._uids["study"], self._uids["film"]
        film.file_meta.MediaStorageSOPInstanceUID = film.SOPInstanceUID
        self._recording = pdus.record(film, port=port)
        self._store = b"".join(self._recording.store)

    def send(self, count: int) -> None:
        """Send films over one association. Raises RuntimeError when the node does not take one."""
        with pdus.associate(self._recording, port=self._port) as connection:
            for store in self._films(count):
                connection.sendall(store)
                if pdus.status_of(pdus.read_pdu(connection)) != 0:
                    raise RuntimeError("the node did not take every film")
            connection.sendall(self._recording.release)
            pdus.read_pdu(connection)

    def _films(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            self._count += 1
            store = self._store
            for name, uid in self._uids.items():
                store = store.replace(uid.encode(), _uid(name, self._count).encode())
            yield store


def _uid(name: str, number: int) -> str:
    """A UID of 44 characters, so that one can take the place of another."""
    return f"2.25.1{int(derive_uid(name, str(number)).removeprefix('2.25.')) % 10**38:038}"


def measure(folder: Path, count: int, *, rounds: int = 1, alone: int = ALONE, say: ProgressReport) -> dict[str, Any]:
    """Send films one by one, then many at once, then let results wait for an archive that is down."""
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, quiet_seconds=QUIET_SECONDS)
        settings = replace(settings, report=ReportSettings(cardiothoracic_ratio=False))  # two objects of every film
        with Service(settings) as node:
            sender = Sender(node.dicom_port)
            archive.wait_for_kept(2, limit_seconds=60.0)
            say("one film after the other")
            turnarounds = []
            for pause in _pauses(alone):
                time.sleep(pause)
                turnarounds.append(turnaround(sender, archive) - QUIET_SECONDS)
            floods = []
            for number in range(1, rounds + 1):
                say(f"{count} films at once, round {number} of {rounds}")
                floods.append(flood(sender, count, node, archive))
            say("no film")
            idle = idle_share()
            say("an archive that was down")
            delivered = drain(sender, count, node, archive)
            steps = step_seconds(node)
    cost = statistics.median(flood.node_cost for flood in floods)
    peers_cost = statistics.median(flood.peers_cost for flood in floods)
    answered = statistics.median(flood.answered for flood in floods)
    p95 = sorted(turnarounds)[math.ceil(0.95 * len(turnarounds)) - 1]
    return {
        "core_seconds_a_film": round(cost, 3),
        "core_seconds_of_each_round": [round(flood.node_cost, 3) for flood in floods],
        "core_seconds_of_sender_and_archive": round(peers_cost, 3),
        "answered_per_second": round(answered, 2),
        "share_of_cores": round(answered * (cost + peers_cost) / len(os.sched_getaffinity(0)), 3),
        "taken_per_second": round(statistics.median(flood.taken for flood in floods), 2),
        "deliveries_per_second": round(delivered, 2),
        "turnaround_without_quiet_seconds": round(statistics.median(turnarounds), 3),
        "turnaround_without_quiet_seconds_p95": round(p95, 3),
        "turnaround_without_quiet_seconds_longest": round(max(turnarounds), 3),
        "turnaround_cost_ratio": round(p95 / cost, 2),
        "films_alone": len(turnarounds),
        "quiet_seconds": QUIET_SECONDS,
        "idle_share_of_a_core": round(idle, 4),
        "film_megabytes": round(films.rg1_path().stat().st_size / 1e6, 1),
        "step_seconds": {step: round(steps[step], 4) for step in STEPS},
    }


def _pauses(count: int) -> list[float]:
    """Return pauses in seconds, the same in every run: no film keeps time with what the node does once a second."""
    generator = random.Random(17)
    return [generator.uniform(0.0, LONGEST_PAUSE_SECONDS) for _ in range(count)]


def measure_waiting(folder: Path, count: int, *, waiting: int, rounds: int, say: ProgressReport) -> dict[str, Any]:
    """Measure what a film costs while no other study waits, and while many wait behind it."""
    folder.mkdir()
    costs: dict[int, list[float]] = {0: [], waiting: []}
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, quiet_seconds=QUIET_SECONDS)
        settings = replace(settings, report=ReportSettings(cardiothoracic_ratio=False))
        with Service(settings, scripted=True) as node:
            sender = Sender(node.dicom_port)
            archive.wait_for_kept(2, limit_seconds=60.0)
            for behind, round_costs in costs.items():
                for number in range(1, rounds + 1):
                    say(f"{count} films while {behind} studies wait, round {number} of {rounds}")
                    round_costs.append(_held_flood(sender, count, node, archive, settings.storage, behind=behind))
    without, with_them = (statistics.median(found) for found in costs.values())
    return {
        "waiting": waiting,
        "core_seconds_a_film_without": round(without, 4),
        "core_seconds_a_film_with": round(with_them, 4),
        "ratio": round(with_them / without, 3),
        "core_seconds_of_each_round": [[round(cost, 4) for cost in found] for found in costs.values()],
    }


def _held_flood(
    sender: Sender, count: int, node: Service, archive: peers.ReceivingArchive, storage: StorageSettings, *, behind: int
) -> float:
    """Return the core seconds of a film, of films that come while so many studies wait.

    Films whose reader waits take the node's places, so that it begins none of those that wait before all films are in
    the queue.
    """
    places = 2 + batches.count_of(ReportSettings().writers)
    kept, hold = len(archive.kept), node.settings_path.with_name("hold")
    hold.touch()
    sender.send(places)
    studies = storage.directory / "studies"
    peers.wait_until(lambda: len([*studies.glob("*/readings/*.begun")]) == places, what="the reader holds films")
    lacking = behind - waiting_studies.waiting(storage.directory)  # the node began some in the round before
    if lacking > 0:
        waiting_studies.queue(storage, lacking)
    before = core_seconds_below(os.getpid())
    sender.send(count)
    there = behind + count
    peers.wait_until(lambda: waiting_studies.waiting(storage.directory) >= there, what="all films wait in the queue")
    hold.unlink()
    archive.wait_for_kept(kept + 2 * (count + places), limit_seconds=60.0 + 20.0 * count)
    return (core_seconds_below(os.getpid()) - before) / count


def turnaround(sender: Sender, archive: peers.ReceivingArchive) -> float:
    """Seconds from the first byte of a film to the last of its report and its presentation state."""
    before, began = len(archive.kept), time.monotonic()
    sender.send(1)
    archive.wait_for_kept(before + 2, limit_seconds=60.0)
    return time.monotonic() - began


def flood(sender: Sender, count: int, node: Service, archive: peers.ReceivingArchive) -> Flood:
    """Send films over one association, and wait for their answers."""
    kept, finished = len(archive.kept), len(node.logged("study.finished"))
    node_before, peers_before, began = core_seconds_below(os.getpid()), time.process_time(), time.monotonic()
    sender.send(count)
    taken = time.monotonic() - began
    archive.wait_for_kept(kept + 2 * count, limit_seconds=60.0 + 20.0 * count)
    answered = time.monotonic() - began
    node.wait_for("study.finished", count=finished + count)
    return Flood(
        taken=count / taken,
        answered=count / answered,
        node_cost=(core_seconds_below(os.getpid()) - node_before) / count,
        peers_cost=(time.process_time() - peers_before) / count,
    )


def idle_share() -> float:
    """The share of a core that a node takes while no film comes."""
    before = core_seconds_below(os.getpid())
    time.sleep(_IDLE_SECONDS)
    return (core_seconds_below(os.getpid()) - before) / _IDLE_SECONDS


def drain(sender: Sender, count: int, node: Service, archive: peers.ReceivingArchive) -> float:
    """How many results reach an archive in a second that all waited for it; counted from the first that arrives."""
    finished, before = len(node.logged("study.finished")), len(archive.kept)
    with archive.down():
        sender.send(count)
        node.wait_for("study.finished", count=finished + count, limit_seconds=60.0 + 20.0 * count)
    archive.wait_for_kept(before + 1, limit_seconds=120.0)
    began = time.monotonic()
    archive.wait_for_kept(before + 2 * count, limit_seconds=300.0)
    return (2 * count - 1) / (time.monotonic() - began)


def step_seconds(node: Service) -> dict[str, float]:
    """The mean time of each step, as the node's own metric has it."""
    text = node.metrics()
    pattern = r'cxr_step_duration_seconds_{}\{{step="(\w+)"\}} (\S+)'
    sums, counts = (dict(re.findall(pattern.format(what), text)) for what in ("sum", "count"))
    return {step: float(sums[step]) / max(float(counts[step]), 1.0) for step in sums}
