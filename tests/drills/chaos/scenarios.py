"""The single misfortunes, each while films come: a database that is away, a worker that dies, a disk that is full."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from models.progress import ProgressReport
from node.config import Settings
from tests.drills.chaos import night
from tests.drills.chaos.archives import judge_own
from tests.drills.chaos.node import Cluster
from tests.drills.chaos.senders import Senders, caller_names
from tests.drills.chaos.small_disk import small_disk
from tests.support import peers
from tests.support.films import as_another, thumbnail
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, settings_for

_DISK_MIB: Final = 96
_SETTLE_SECONDS = 2.0  # a node hands on the studies it finds at its start in its first second
_LIMIT_SECONDS: Final = 300.0
_OPEN_WORKFLOWS: Final = "SELECT count(*) FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How much load there is, and for how long the trouble lasts; hostile: as in `night.Plan`."""

    films: int
    seconds: float
    seed: int
    hostile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A node under load with an archive that is well."""

    node: Cluster
    senders: Senders


def database_away(trouble: Trouble, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Stop PostgreSQL under load, and start it again; films go on being taken."""
    with Postgres() as postgres:

        def happen(stage: Stage) -> dict[str, object]:
            postgres.stop()
            say("PostgreSQL is stopped")
            before = stage.senders.done
            stage.senders.allow(trouble.films)
            time.sleep(trouble.seconds)
            taken = stage.senders.done - before
            postgres.start()
            return {"acknowledged_meanwhile": taken, "as_meant": taken > 0}

        return _play(trouble, folder, happen, database_url=postgres.url)


def worker_killed(trouble: Trouble, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Kill one of two workers under load, for good: the other one takes over what it had in hand."""

    def happen(stage: Stage) -> dict[str, object]:
        worker = next(member for member in stage.node.members if member.name == "worker-1")
        worker.close()
        say("one worker is killed and does not come back")
        stage.senders.allow(trouble.films)
        return {}

    with Postgres() as postgres:
        return _play(trouble, folder, happen, database_url=postgres.url)


def disk_full(trouble: Trouble, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Fill the node's disk to the last byte under load, and give room again. Raises CannotMountError."""
    with small_disk(folder / "node", mib=_DISK_MIB) as disk:

        def happen(stage: Stage) -> dict[str, object]:
            disk.fill()
            say("the disk is full")
            stage.senders.allow(trouble.films)
            time.sleep(trouble.seconds)
            free = disk.free_bytes
            disk.relieve()
            return {"free_bytes_meanwhile": free, "as_meant": free == 0, "ends_meanwhile": list(stage.node.crashes)}

        return _play(trouble, folder, happen)


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


def _play(
    trouble: Trouble, folder: Path, happen: Callable[[Stage], dict[str, object]], *, database_url: str = ""
) -> dict[str, object]:
    """Let a third of the films come, then the trouble, then the rest; count at the end.

    happen: lets the rest of the films come, and returns what it has to say; `as_meant` False fails
    """
    began = time.monotonic()
    with peers.ReceivingArchive() as archive:
        port = peers.free_port()
        settings = on_database(
            settings_for(
                folder / "node",
                archive_port=archive.port,
                dicom_port=port,
                callers=caller_names(night.SENDERS),
                min_free_mib=0,
            ),
            database_url,
        )
        with night.several_processes(settings) if database_url else night.one_process(settings) as node:
            with _sending(port, trouble) as senders:
                senders.allow(trouble.films // 3)
                senders.wait_for(trouble.films // 3, limit_seconds=_LIMIT_SECONDS)
                said = happen(Stage(node=node, senders=senders))
                is_taken = senders.wait_for(trouble.films, limit_seconds=_LIMIT_SECONDS)
            is_idle = night.wait_until_idle(settings, patience_seconds=_LIMIT_SECONDS)
            ends = node.ends
        verdict = judge_own(archive, senders.acknowledged, excused=night.IN_HAND * ends, unreadable=senders.hostile)
    return {
        "passed": verdict.passed and is_taken and is_idle and said.get("as_meant", True),
        "acknowledged": senders.done,
        "idle_at_the_end": is_idle,
        **said,
        "archive": verdict.figures(),
        "seconds": round(time.monotonic() - began, 1),
    }


@contextmanager
def _sending(port: int, trouble: Trouble) -> Iterator[Senders]:
    senders = Senders(
        port=port, count=night.SENDERS, films=trouble.films, draw=Random(trouble.seed), hostile=trouble.hostile
    )
    try:
        yield senders
    finally:
        senders.close()
