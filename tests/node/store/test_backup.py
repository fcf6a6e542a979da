"""Backups and a snapshot of a running node: what was taken starts elsewhere, and every study has its results, once."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node.config import Settings, StorageSettings
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, settings_for

KILLS = pytest.mark.drill(part="kills")


def back_up(storage: Path, backup: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.backup", str(storage), str(backup), *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def restored(settings: Settings, backup: Path) -> Settings:
    """The same node on another machine."""
    directory = settings.storage.directory.parent / "elsewhere" / "node"
    shutil.copytree(backup, directory)
    return replace(settings, storage=StorageSettings(directory=directory, min_free_mib=1))


def send_film(node: Service, *, study: str) -> str:
    """Send the film of a study of its own; the study's UID."""
    film = films.as_another(films.thumbnail(), study, study=study)
    assert peers.send(film, port=node.dicom_port) == 0
    return str(film.StudyInstanceUID)


def results(archive: peers.ReceivingArchive) -> Counter[tuple[str, str]]:
    found = (received.dataset for received in archive.kept)
    return Counter((str(dataset.StudyInstanceUID), str(dataset.Modality)) for dataset in found)


def different(archive: peers.ReceivingArchive) -> dict[tuple[str, bytes], Dataset]:
    """What arrived, the same bytes once: a kill between sending and noting it sends them again, and never others."""
    return {(received.sop_instance_uid, received.content): received.dataset for received in archive.kept}


def once(*studies: str) -> dict[tuple[str, str], int]:
    return {(study, kind): 1 for study in studies for kind in ("SR", "PR")}


@KILLS
def test_a_restored_node_delivers_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node:
            delivered, finished = send_film(node, study="delivered"), send_film(node, study="finished")
            archive.wait_for_kept(4, limit_seconds=60.0)
            node.wait_for("delivery.sent", count=4)
            with archive.down():
                waiting = send_film(node, study="waiting")
                node.wait_for("study.finished", count=3)
                node.wait_for("delivery.delayed")
                outcome = back_up(settings.storage.directory, tmp_path / "backup")
                node.kill()  # the old machine is gone
        assert outcome.returncode == 0, outcome.stderr
        # As if this round had ended after the marks were copied and before the ledger was.
        (mark,) = (tmp_path / "backup" / "studies" / finished / "rounds").iterdir()
        mark.unlink()

        with Service(restored(settings, tmp_path / "backup")) as node:
            archive.wait_for_kept(6, limit_seconds=60.0)
            node.wait_for("study.finished")
            later = send_film(node, study="later")
            archive.wait_for_kept(8, limit_seconds=60.0)
            assert node.stop() == 0

        assert results(archive) == once(delivered, finished, waiting, later)


@KILLS
def test_a_snapshot_of_a_running_node_starts_as_after_a_power_cut(tmp_path: Path) -> None:
    restic = [peers.require("restic"), "--repo", str(tmp_path / "repository"), "--no-cache", "--quiet"]
    environment = {**os.environ, "RESTIC_PASSWORD": "restic"}
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node:
            delivered = send_film(node, study="delivered")
            archive.wait_for_kept(2, limit_seconds=60.0)
            node.wait_for("delivery.sent", count=2)
            with archive.down():
                waiting = send_film(node, study="waiting")
                node.wait_for("delivery.delayed")
                unread = send_film(node, study="unread")
                os.kill(node.pid, signal.SIGSTOP)  # nothing is written while the whole folder is copied
                shutil.copytree(settings.storage.directory, tmp_path / "snapshot", symlinks=True)
                os.kill(node.pid, signal.SIGCONT)
                node.kill()
        for command in ("init", f"backup {tmp_path / 'snapshot'}", f"restore latest --target {tmp_path / 'restored'}"):
            subprocess.run([*restic, *command.split()], env=environment, check=True, timeout=60)

        snapshot = tmp_path / "restored" / (tmp_path / "snapshot").relative_to("/")
        with Service(restored(settings, snapshot)) as node:
            archive.wait_for_kept(6, limit_seconds=60.0)
            assert node.stop() == 0

        assert results(archive) == once(delivered, waiting, unread)


@pytest.mark.drill(part="processes")
def test_a_postgresql_node_is_restored_from_dump_and_files(tmp_path: Path) -> None:
    with Postgres() as postgres, peers.ReceivingArchive() as archive:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), postgres.url)
        with Service(settings) as node:
            delivered = send_film(node, study="delivered")
            node.wait_for("delivery.sent", count=2)
            with archive.down():
                waiting = send_film(node, study="waiting")
                node.wait_for("study.finished", count=2)
                outcome = back_up(settings.storage.directory, tmp_path / "backup", "--database-url", postgres.url)
                node.kill()
        assert outcome.returncode == 0, outcome.stderr

        postgres.empty()
        dump = tmp_path / "backup" / "ledger.pg_dump"
        subprocess.run(["pg_restore", "--exit-on-error", f"--dbname={postgres.url}", dump], check=True, timeout=60)
        with Service(on_database(restored(settings, tmp_path / "backup"), postgres.url)) as node:
            archive.wait_for_kept(4, limit_seconds=60.0)
            later = send_film(node, study="later")
            archive.wait_for_kept(6, limit_seconds=60.0)
            assert node.stop() == 0

        assert results(archive) == once(delivered, waiting, later)


@KILLS
def test_a_backup_of_studies_at_every_stage_loses_no_result(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings, die_at=14) as node:  # of eight steps for each of three studies
            studies = [send_film(node, study=f"study {number}") for number in range(3)]
            assert node.wait_until_dead() == -9
        assert back_up(settings.storage.directory, tmp_path / "backup").returncode == 0

        with Service(restored(settings, tmp_path / "backup")) as node:
            archive.wait_until(lambda: len(different(archive)) >= 6, limit_seconds=60.0)
            node.wait_for("service.ready")
            assert node.stop() == 0

        contents = different(archive)
        kinds = Counter((str(dataset.StudyInstanceUID), str(dataset.Modality)) for dataset in contents.values())
        assert kinds == once(*studies)


def test_a_backup_holds_exactly_the_acknowledged_films(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port(), quiet_seconds=20.0)
    with Service(settings) as node:
        send_film(node, study="only")
        (film,) = settings.storage.directory.glob("studies/*/received/*.dcm")
        (film.parent / ".incoming-half").write_bytes(b"half a film")

        assert back_up(settings.storage.directory, tmp_path / "backup").returncode == 0

    kept = sorted(path.relative_to(tmp_path / "backup") for path in (tmp_path / "backup").rglob("*") if path.is_file())
    assert [path.name for path in kept] == ["format", "ledger.sqlite", film.name]
    copy = tmp_path / "backup" / kept[2]
    assert copy.read_bytes() == film.read_bytes()
    assert copy.stat().st_mtime_ns == film.stat().st_mtime_ns
    assert os.stat(tmp_path / "backup").st_mode & 0o077 == 0


def test_a_round_that_ends_while_the_ledger_is_copied_is_unfinished_in_the_backup(tmp_path: Path) -> None:
    study = tmp_path / "node" / "studies" / "1.2"
    for folder in ("rounds", "received"):
        (study / folder).mkdir(parents=True)
        (study / folder / "before.json").touch()
    with ThreadPoolExecutor(1) as pool, closing(sqlite3.connect(tmp_path / "node" / "ledger.sqlite")) as ledger:
        ledger.execute("BEGIN EXCLUSIVE")
        backup = pool.submit(back_up, tmp_path / "node", tmp_path / "backup")
        peers.wait_until((tmp_path / ".backup.unfinished" / "ledger.sqlite").exists, what="the ledger is to be copied")
        for folder in ("rounds", "received"):
            (study / folder / "meanwhile.json").touch()
        ledger.rollback()
        assert backup.result().returncode == 0

    copied = sorted(f"{path.parent.name}/{path.stem}" for path in (tmp_path / "backup").rglob("*.json"))
    assert copied == ["received/before", "received/meanwhile", "rounds/before"]


def test_a_backup_over_another_one_of_no_node_or_of_no_database_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "node" / "studies").mkdir(parents=True)
    url = f"postgresql://node@{peers.LOOPBACK}:{peers.free_port()}/chex"

    of_nothing = back_up(tmp_path / "node", tmp_path / "new")
    unreachable = back_up(tmp_path / "node", tmp_path / "new", "--database-url", url)
    (tmp_path / "node" / "ledger.sqlite").touch()
    over_another = back_up(tmp_path / "node", tmp_path / "old")

    assert (of_nothing.returncode, unreachable.returncode, over_another.returncode) == (2, 1, 2)
    assert "storage.directory" in of_nothing.stderr
    assert "not complete" in unreachable.stderr
    assert "name a new folder" in over_another.stderr
    assert not (tmp_path / "new").exists()
