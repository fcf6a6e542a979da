"""kill -9, lost databases, a failing disk, then a start: the study still gets exactly its SR and GSPS.

`tests/node/jobs/test_deaths.py` has a death after every step.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from node.config import Settings
from node.jobs.executor import Client
from node.store.database import open_executor_database
from tests.support import films, peers
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for


def test_a_node_killed_right_after_success_still_delivers(archive: ReceivingArchive, settings: Settings) -> None:
    with Service(settings) as first:
        assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
        first.kill()

    with Service(settings):
        archive.wait_for_kept(2)

    assert len(archive.kept) == 2


@pytest.mark.drill(part="kills")
def test_a_failing_disk_ends_the_process_and_nothing_is_lost(
    tmp_path: Path, archive: ReceivingArchive, settings: Settings
) -> None:
    film = films.thumbnail()
    in_the_way = tmp_path / "node" / "studies" / film.StudyInstanceUID / "readings"
    with Service(settings) as first:
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_text("no folder", encoding="utf-8")
        assert peers.send(film, port=first.dicom_port) == 0
        assert first.wait_until_dead() == 1
        assert first.logged("executor.broken")
    in_the_way.unlink()

    with Service(settings) as second:
        archive.wait_for_kept(2)
        assert second.stop() == 0

    assert len(archive.kept) == 2


def test_a_second_node_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port())
    with Service(settings) as first:
        second = Service(settings)
        assert second.wait_until_dead() == 1
        second.kill()

        assert not second.logged("service.ready")
        assert first.stop() == 0


def without_databases(storage: Path) -> None:
    for database in storage.glob("*.sqlite*"):
        database.unlink()


def without_queued_deliveries(storage: Path) -> None:
    """What a start leaves that was cut short while it queued again what a lost engine had known."""
    with closing(sqlite3.connect(storage / "engine.sqlite")) as database, database:
        assert database.execute("DELETE FROM workflow_status WHERE name = 'deliver'").rowcount


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize("lose", (without_databases, without_queued_deliveries))
def test_undelivered_results_go_out_after_the_engine_forgot_them(
    lose: Callable[[Path], None], archive: ReceivingArchive, settings: Settings
) -> None:
    with archive.down(), Service(settings) as first:
        assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
        first.wait_for("study.finished")
        first.wait_for("delivery.delayed")
    lose(settings.storage.directory)

    with Service(settings) as second:
        archive.wait_for_kept(2)
        assert second.stop() == 0

    assert len(archive.kept) == 2


@pytest.mark.drill(part="kills")
def test_a_node_that_loses_its_databases_starts_from_the_spool(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port, quiet_seconds=20.0)
        with Service(settings) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            first.wait_for("study.submitted")
        without_databases(settings.storage.directory)

        with Service(settings_for(tmp_path / "node", archive_port=archive.port)):
            archive.wait_for_kept(2)

        assert len(archive.kept) == 2


@pytest.mark.drill(part="kills")
def test_a_study_that_has_just_become_quiet_is_queued_once(settings: Settings) -> None:
    with Service(settings, die_at=1) as node:  # its place in the queue is known, and the study is not in it yet
        assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
        assert node.wait_until_dead() == -9

    with closing(Client(open_executor_database(settings.storage))) as client:
        planned = client.planned_files()

    assert planned == {films.thumbnail().StudyInstanceUID: None}, "every file of the study"
