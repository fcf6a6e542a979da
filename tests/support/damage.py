"""Bytes that change on disk, and one study on a spool whose rounds and deliveries go step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydicom.dataset import Dataset

from node.deliver.delivery import Sending
from node.domain import Delivery
from node.rounds.round_plan import Round
from node.settings.destinations import DicomDestination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support import films, peers, senders
from tests.support.fakes import ScriptedReader

FILM, OTHER = films.thumbnail(), films.as_another(films.thumbnail(), "other")
STUDY = FILM.StudyInstanceUID


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def flip_a_pixel(path: Path) -> None:
    flip(path, -1000)


def flip_the_name(path: Path) -> None:
    flip(path, path.read_bytes().index(str(FILM.PatientName).encode()))


def flip_the_transfer_syntax(path: Path) -> None:
    flip(path, path.read_bytes().index(b"1.2.840.10008.1.2") + 1)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


class Bench:
    """One study on a spool, its rounds and its deliveries, step by step."""

    def __init__(self, folder: Path, archive: peers.ReceivingArchive | None = None, *, version: str = "1") -> None:
        self.folder, self.spool, self.ledger = folder, Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        destination = DicomDestination(
            name="archive", ae_title="ARCHIVE", host=peers.LOOPBACK, port=archive.port if archive else 104
        )
        pipeline = senders.pipeline(self.spool, reader=ScriptedReader(version))
        self.steps = senders.steps(pipeline, self.ledger, destination)
        self.metrics = self.steps.metrics
        self.asked: list[str] = []
        self.sending: Sending = senders.sending(self.spool, self.ledger, destination, rewrite=self.asked.append)

    def keep(self, film: Dataset) -> Path:
        return films.keep(self.spool, film).instance.path

    def plan(self) -> Round:
        """Plan a round, for which there must be something new."""
        plan = self.steps.plan(STUDY)
        assert plan is not None
        return plan

    def round(self) -> tuple[list[str | None], list[Delivery]]:
        """Read what is new: the outcomes in order of arrival, and what is to be delivered."""
        plan = self.plan()
        outcomes = [self.steps.read(STUDY, file) for file in plan.files]
        written = self.steps.write(plan)
        assert written is not None
        assert self.steps.finish(plan, [str(outcome) for outcome in outcomes], written) is False
        return outcomes, [delivery for several in written.queued.deliveries.values() for delivery in several]

    def output(self, kind: str) -> Path:
        """The newest output of a kind."""
        return max(self.folder.rglob(f"outputs/*.{kind}.dcm"), key=lambda path: path.stat().st_mtime_ns)

    def send(self, delivery: Delivery, attempt: int = 1) -> object:
        return self.sending.send(delivery, attempt, time.time()).outcome

    def damaged(self, what: str) -> float | None:
        return self.metrics.registry.get_sample_value("cxr_damaged_total", {"what": what})


@contextmanager
def benches(folder: Path, archive: peers.ReceivingArchive | None = None, *, version: str = "1") -> Iterator[Bench]:
    bench = Bench(folder, archive, version=version)
    yield bench
    bench.ledger.close()


def interrupted(bench: Bench, path: Path) -> None:
    """Leave what four processes leave that end while they read a film."""
    key = bench.steps.pipeline.films.key(path.name)
    folder = bench.folder / "studies" / STUDY / "readings"
    folder.mkdir(exist_ok=True)
    (folder / f"{key}.begun").write_bytes(b"4")
