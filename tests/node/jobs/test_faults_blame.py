"""A film that ends the process is parked alone: what is in hand with it is read one at a time after the first death."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset

from node.config import Settings
from node.domain import derive_uid
from node.store.begun import MOST_INTERRUPTIONS
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for

COLUMNS = 300
"""Of the film that kills."""


def of_own_study(name: str) -> Dataset:
    return films.as_another(films.thumbnail(), name, study=derive_uid("study", name))


def deadly() -> Dataset:
    pixels = np.arange(200 * COLUMNS).reshape(200, COLUMNS) % 4096
    return films.with_pixels(of_own_study("deadly"), pixels, bits=12)


INNOCENT = tuple(of_own_study(name) for name in ("first", "second", "third"))
SENT = (INNOCENT[0], deadly(), *INNOCENT[1:])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let films wait in the reader, and then kill."""
    hold = folder / "hold"
    hold.touch()
    yield
    (folder / "deadly").write_text(str(COLUMNS), encoding="utf-8")
    hold.unlink()


def is_answered(archive: peers.ReceivingArchive) -> bool:
    """Whether a report on each innocent film has come."""
    reports = [kept.content for kept in archive.kept]
    return all(any(film.SOPInstanceUID.encode() in report for report in reports) for film in INNOCENT)


def parked(path: Path) -> list[tuple[str, str]]:
    """The studies that are parked, each with the beginning of its reason."""
    rows = json.loads(run_command("status", path, "--json").stdout)["parked"]
    return [(row["study"], row["reason"].partition(":")[0]) for row in rows]


def kept_alive(start: Sequence[Callable[[], Service]], *, until: Callable[[], bool], processes: ExitStack) -> int:
    """Start processes, and each again when it dies, as a supervisor does; returns how often one died."""

    def started(again: Callable[[], Service]) -> Service:
        service = again()  # it may die before it is ready
        processes.callback(service.kill)
        return service

    running, deaths = {again: started(again) for again in start}, list[int]()

    def is_reached() -> bool:
        for again, service in running.items():
            if not peers.is_running(service.pid):
                deaths.append(service.wait_until_dead())
                running[again] = started(again)
        return until()

    peers.wait_until(is_reached, what="every film is answered", limit_seconds=90)
    assert set(deaths) == {-9}
    return len(deaths)


def is_over(archive: peers.ReceivingArchive, settings: Settings) -> bool:
    """Whether every innocent film is answered, and the round of the deadly one has come to its end."""
    rounds = Spool(settings.storage.directory).rounds(str(SENT[1].StudyInstanceUID))
    return bool(rounds) and is_answered(archive)


@pytest.mark.drill(part="kills")
def test_only_the_film_that_kills_is_parked(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive, ExitStack() as processes:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as first:
            with held(tmp_path):
                assert peers.send_all(SENT, port=first.dicom_port) == [0] * len(SENT)
                first.wait_for("study.ready", count=2)
            assert first.wait_until_dead() == -9
        again = partial(Service, settings)
        deaths = 1 + kept_alive([again], until=lambda: is_over(archive, settings), processes=processes)

        assert deaths == MOST_INTERRUPTIONS
        assert parked(tmp_path / "node.toml") == [(SENT[1].StudyInstanceUID, "interrupted")]


@pytest.mark.drill(part="processes")
def test_two_workers_park_only_the_film_that_kills(tmp_path: Path, postgres: Postgres) -> None:
    with peers.ReceivingArchive() as archive, ExitStack() as processes:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), postgres.url)
        listener = processes.enter_context(Service(settings, only="listener"))
        processes.enter_context(Service(settings, only="sender"))
        with held(tmp_path):
            assert peers.send_all(SENT, port=listener.dicom_port) == [0] * len(SENT)
        workers = [partial(Service, settings, only="worker", executor=name) for name in ("one", "two")]
        deaths = kept_alive(workers, until=lambda: is_over(archive, settings), processes=processes)

        assert deaths == MOST_INTERRUPTIONS
        assert parked(listener.settings_path) == [(SENT[1].StudyInstanceUID, "interrupted")]
