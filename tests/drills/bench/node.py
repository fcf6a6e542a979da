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
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from pydicom import Dataset, dcmwrite
from pydicom.filereader import read_dataset

from models.progress import ProgressReport
from node.config import ReportSettings
from node.domain import derive_uid
from tests.drills.bench.results import Found
from tests.support import films, pdus, peers
from tests.support.processes import core_seconds_below
from tests.support.service import Service, settings_for

STEPS = ("receive", "decode", "read", "write", "finish", "deliver")
QUIET_SECONDS = 0.5
ALONE = 20
"""How many films are sent one after the other, each a random time after the one before it was answered."""
LONGEST_PAUSE_SECONDS = 2.0
_ITEMS: Final = 400
_TIMES: Final = 7


class Flood(NamedTuple):
    """Films that came at once: taken and answered in a second, core seconds a film of the node and of its peers.

    The node's are with its decoders and writers, which are below this process as it is.
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


def measure(folder: Path, *, count: int, rounds: int, say: ProgressReport) -> Found:
    """Send films one by one, then many at once, then let results wait for an archive that is down."""
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, quiet_seconds=QUIET_SECONDS)
        settings = replace(settings, report=ReportSettings(cardiothoracic_ratio=False))  # two objects of every film
        with Service(settings) as node:
            sender = Sender(node.dicom_port)
            archive.wait_for_kept(2, limit_seconds=60.0)
            say("one film after the other")
            turnarounds, pauses = [], random.Random(17)
            for _ in range(min(count, ALONE)):
                time.sleep(pauses.uniform(0.0, LONGEST_PAUSE_SECONDS))
                before, began = len(archive.kept), time.monotonic()
                sender.send(1)
                archive.wait_for_kept(before + 2, limit_seconds=60.0)  # its report and its presentation state
                turnarounds.append(time.monotonic() - began - QUIET_SECONDS)
            floods = []
            for number in range(1, rounds + 1):
                say(f"{count} films at once, round {number} of {rounds}")
                floods.append(flood(sender, count, node, archive))
            say("an archive that was down")
            delivered = drain(sender, count, node, archive)
            steps = step_seconds(node)
    taken, answered, cost, peers_cost = (statistics.median(figures) for figures in zip(*floods, strict=True))
    p95 = sorted(turnarounds)[math.ceil(0.95 * len(turnarounds)) - 1]
    reference = pydicom_seconds()
    share = answered * (cost + peers_cost) / len(os.sched_getaffinity(0))
    figures = {
        "core_seconds_a_film": round(cost, 3),
        "core_seconds_of_each_round": [round(flood.node_cost, 3) for flood in floods],
        "core_seconds_of_sender_and_archive": round(peers_cost, 3),
        "pydicom_core_seconds": round(reference, 4),
        "answered_per_second": round(answered, 2),
        "taken_per_second": round(taken, 2),
        "deliveries_per_second": round(delivered, 2),
        "turnaround_without_quiet_seconds": round(statistics.median(turnarounds), 3),
        "turnaround_without_quiet_seconds_p95": round(p95, 3),
        "step_seconds": {step: round(steps[step], 4) for step in STEPS},
    }
    held = {
        "node_cost_pydicom_ratio": cost / reference,
        "node_share_of_cores": share,
        "node_turnaround_cost_ratio": p95 / cost,
    }
    return Found(figures=figures, held=held)


def pydicom_seconds() -> float:
    """Measure the core seconds in which pydicom writes a data set of 2,001 elements in items, and reads them all."""
    nested = Dataset()
    nested.ContentSequence = [Dataset() for _ in range(_ITEMS)]
    for number, item in enumerate(nested.ContentSequence):
        item.ValueType, item.RelationshipType, item.TextValue = "TEXT", "CONTAINS", f"sentence {number}"
        item.ObservationUID, item.NumericValue = f"1.2.{number}", f"{number}"
    taken = list[float]()
    for _ in range(_TIMES):
        began, encoded = time.process_time(), BytesIO()
        dcmwrite(encoded, nested, implicit_vr=False, little_endian=True)
        encoded.seek(0)
        for item in read_dataset(encoded, is_implicit_VR=False, is_little_endian=True).ContentSequence:
            _ = [element.value for element in item]
        taken.append(time.process_time() - began)
    return statistics.median(taken)


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
