"""A destination that is away while thousands of objects wait for it: what that costs, and what it costs the others.

The outage is as long as asked, not six hours: a destination that is down is probed every few seconds however long it
has been (`node.deliver.delivery`), so a minute shows the rate. The objects are put into the node's folder and its
queues, as `node retry` puts them there, instead of thousands of films being read first.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydicom.dataset import Dataset

from models.progress import ProgressReport
from node.config import Settings
from node.domain import Delivery
from node.jobs.executor import Client
from node.store import database
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.drills.chaos.night import with_second
from tests.drills.chaos.verdict import MOST_SENT_TWICE, changed, sent_twice
from tests.support import films, peers
from tests.support.peers import Received, ReceivingArchive
from tests.support.service import Service, settings_for

WAITING: Final = "waiting"
_MOST_SLOWER: Final = 1.5
_CONNECTIONS_A_SECOND: Final = 2.0
_PATIENCE_SECONDS: Final = 120.0
"""For which nothing at all may arrive while something waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """How many objects wait, for how long, and how many films are sent to see how the other destination fares."""

    objects: int
    seconds: float
    samples: int


class NobodyHome:
    """A port that hangs up on whoever connects, and counts them; it listens while the block runs."""

    def __init__(self, port: int) -> None:
        self.connections = 0
        self._socket = socket.create_server((peers.LOOPBACK, port))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                connection.close()
                self.connections += 1


def run(outage: Outage, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Live through an outage of one of two destinations; the figures, with `passed`."""
    expected = outage.objects + 4 * outage.samples
    with ReceivingArchive() as other, ReceivingArchive(ae_title="AWAY") as away:
        plain = settings_for(folder / "node", archive_port=other.port)
        settings = with_second(plain, name=WAITING, ae_title=away.ae_title, port=away.port)
        with Service(settings) as node:
            say("both are there")
            before = latencies(outage.samples, "before", node, other)
            (example,) = [received for received in other.kept if received.sop_class_uid.endswith(".88.33")][:1]
            away.wait_for_kept(2 * outage.samples, limit_seconds=_PATIENCE_SECONDS)
            away.stop()
            with NobodyHome(away.port) as nobody:
                queue(settings, example, outage.objects)
                say(f"{outage.objects} objects wait for one of them")
                began, connections = time.monotonic(), nobody.connections
                meanwhile = latencies(outage.samples, "meanwhile", node, other)
                time.sleep(max(0.0, outage.seconds - (time.monotonic() - began)))
                seconds, wasted = time.monotonic() - began, nobody.connections - connections
            away.start()
            back = time.monotonic()
            away.wait_for_kept(2 * outage.samples + 1, limit_seconds=_PATIENCE_SECONDS)
            first = time.monotonic() - back
            arrived = list(away.kept)
            while len({received.sop_instance_uid for received in arrived}) < expected:
                arrived = away.wait_for_kept(len(arrived) + 1, limit_seconds=_PATIENCE_SECONDS)
            drained = time.monotonic() - back
            exit_code = node.stop()
    twice = sent_twice(received.sop_instance_uid for received in away.kept)
    altered = changed((received.sop_instance_uid, films.body_of(received.content)) for received in away.kept)
    slower = p95(meanwhile) / p95(before)
    is_good = slower <= _MOST_SLOWER and wasted <= _CONNECTIONS_A_SECOND * seconds and altered == 0
    return {
        "passed": is_good and twice <= MOST_SENT_TWICE * expected and exit_code == 0,
        "waiting": outage.objects,
        "seconds_away": round(seconds, 1),
        "connections_in_vain": wasted,
        "other_p95_seconds_before": round(p95(before), 3),
        "other_p95_seconds_meanwhile": round(p95(meanwhile), 3),
        "slower": round(slower, 2),
        "first_object_after_return_seconds": round(first, 1),
        "drained_seconds": round(drained, 1),
        "twice": twice,
        "changed": altered,
    }


def latencies(count: int, name: str, node: Service, archive: ReceivingArchive) -> list[float]:
    """Send films one after the other; the seconds from the first byte of each to the last of its results."""
    taken = []
    for number in range(count):
        film = films.as_another(films.thumbnail(), f"{name} {number}", study=f"{name} {number}")
        kept, began = len(archive.kept), time.monotonic()
        if peers.send(film, port=node.dicom_port) != 0:
            raise AssertionError("the node did not take a film")
        archive.wait_for_kept(kept + 2, limit_seconds=120.0)
        taken.append(time.monotonic() - began)
    return taken


def p95(seconds: Sequence[float]) -> float:
    """The time that 19 of 20 stay below."""
    return statistics.quantiles(seconds, n=20)[-1]


def queue(settings: Settings, example: Received, count: int) -> None:
    """Let copies of an object wait for one destination, each with a UID and a study of its own."""
    spool, ledger = Spool(settings.storage.directory), Ledger(database.open_ledger(settings.storage))
    client = Client(database.open_executor_database(settings.storage))
    try:
        for delivery, dataset in _copies(example, count):
            spool.keep_output(delivery, films.file_bytes(dataset))
            ledger.add_delivery(delivery)
            client.run_delivery(delivery)
    finally:
        client.close()
        ledger.close()


def _copies(example: Received, count: int) -> Iterator[tuple[Delivery, Dataset]]:
    for number in range(count):
        dataset = example.dataset
        films.as_another(dataset, f"{WAITING} {number}", study=f"{WAITING} {number}")
        delivery = Delivery(
            destination=WAITING,
            study_uid=dataset.StudyInstanceUID,
            sop_instance_uid=dataset.SOPInstanceUID,
            kind="sr",
        )
        yield delivery, dataset
