"""A disk that is full to the last byte while films come, and kills while studies wait."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from models.progress import ProgressReport
from node.config import Settings
from tests.drills.chaos import night
from tests.drills.chaos.senders import Senders, caller_names
from tests.drills.chaos.verdict import judge_own
from tests.support import peers
from tests.support.films import as_another, thumbnail
from tests.support.service import Service, settings_for

_DISK_MIB: Final = 96
_BALLAST: Final = "ballast"
_BLOCK: Final = bytes(65536)
_SETTLE_SECONDS = 2.0  # a node hands on the studies it finds at its start in its first second
_LIMIT_SECONDS: Final = 300.0
_OPEN_WORKFLOWS: Final = "SELECT count(*) FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED')"


class CannotMountError(Exception):
    """This machine or container lets nobody mount a file system."""


class SmallDisk:
    """A mounted file system that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> int:
        """Leave not one byte; the bytes it took."""
        taken = 0
        with (self.path / _BALLAST).open("ab", buffering=0) as ballast:
            while True:
                try:
                    written = ballast.write(_BLOCK)
                except OSError:
                    return taken
                taken += written

    def relieve(self) -> None:
        """Give back what `fill` took."""
        (self.path / _BALLAST).unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return shutil.disk_usage(self.path).free


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How many films come, and for how long the disk is full; hostile: as in `night.Plan`."""

    films: int
    seconds: float
    seed: int
    hostile: tuple[str, ...] = ()


def disk_full(trouble: Trouble, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Fill the node's disk to the last byte under load, and give room again. Raises CannotMountError."""
    began, port, third = time.monotonic(), peers.free_port(), trouble.films // 3
    with small_disk(folder / "node", mib=_DISK_MIB) as disk, peers.ReceivingArchive() as archive:
        callers = caller_names(night.SENDERS)
        settings = settings_for(
            folder / "node", archive_port=archive.port, dicom_port=port, callers=callers, min_free_mib=0
        )
        with night.one_process(settings) as node:
            draw = Random(trouble.seed)
            sending = Senders(port=port, count=night.SENDERS, films=trouble.films, draw=draw, hostile=trouble.hostile)
            with closing(sending) as senders:
                senders.allow(third)
                senders.wait_for(third, limit_seconds=_LIMIT_SECONDS)
                disk.fill()
                say("the disk is full")
                senders.allow(trouble.films)
                time.sleep(trouble.seconds)
                free, ends = disk.free_bytes, list(node.crashes)
                disk.relieve()
                is_taken = senders.wait_for(trouble.films, limit_seconds=_LIMIT_SECONDS)
            is_idle = night.wait_until_idle(settings, patience_seconds=_LIMIT_SECONDS)
            excused = night.IN_HAND * node.ends
        verdict = judge_own(archive, senders.acknowledged, excused=excused, unreadable=senders.hostile)
    return {
        "passed": verdict.passed and is_taken and is_idle and free == 0,
        "acknowledged": senders.done,
        "idle_at_the_end": is_idle,
        "free_bytes_meanwhile": free,
        "ends_meanwhile": ends,
        "archive": verdict.figures(),
        "seconds": round(time.monotonic() - began, 1),
    }


def restarts(folder: Path, *, count: int, films: int, say: ProgressReport) -> dict[str, object]:
    """Kill a node again and again while studies wait, and count what its engine holds then; in the end all is read."""
    studies = [as_another(thumbnail(), str(number), study=str(number)) for number in range(films)]
    (folder / "hold").touch()  # the scripted reader reads nothing while this is there
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port)
        for number in range(count):
            with Service(settings) as node:
                for film in studies if number == 0 else []:
                    peers.send(film, port=node.dicom_port)
                if number == 0:
                    node.wait_for("study.submitted", count=films)
                    node.wait_for("study.ready")
                else:
                    node.wait_for("service.ready")
                    time.sleep(_SETTLE_SECONDS)
                workflows = _settled_workflows(settings, expected=films)
                node.kill()
            say(f"restart {number + 1} of {count}")
        (folder / "hold").unlink()
        with Service(settings):
            is_idle, interrupted = night.retry_interrupted(settings, patience_seconds=_LIMIT_SECONDS)
        verdict = judge_own(archive, {str(film.StudyInstanceUID): {str(film.SOPInstanceUID)} for film in studies})
    return {
        "passed": verdict.passed and is_idle and workflows <= films,
        "restarts": count,
        "interrupted": interrupted,
        "unread_studies": films,
        "open_workflows": workflows,
        "archive": verdict.figures(),
    }


def _settled_workflows(settings: Settings, *, expected: int) -> int:
    """Count the open workflows of a running node, once they are as few as expected or after half a minute.

    A study whose quiet time ends holds two workflows until the first of them is over.
    """
    counts: list[int] = []

    def are_few() -> bool:
        counts.append(_open_workflows(settings))
        return counts[-1] <= expected

    with suppress(AssertionError):
        peers.wait_until(are_few, what="one workflow for each study")
    return counts[-1]


def _open_workflows(settings: Settings) -> int:
    """Count the workflows that the executor of a node on SQLite has not finished."""
    with closing(sqlite3.connect(settings.storage.directory / "engine.sqlite")) as engine:
        ((workflows,),) = engine.execute(_OPEN_WORKFLOWS).fetchall()
    return int(workflows)


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """Mount one while the block runs. Raises CannotMountError."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        raise CannotMountError(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
