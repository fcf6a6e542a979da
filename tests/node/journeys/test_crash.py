"""kill -9, lost databases, a failing disk, then a start: the study still gets exactly its SR and GSPS.

`tests/node/jobs/test_deaths.py` has a death after every step.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset

from node.config import CorrectionsSettings, QuestionsSettings, Settings
from node.jobs.executor import Client
from node.store.database import open_executor_database
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for
from tests.support.workstation import finding, group, region, report


def test_a_node_killed_right_after_success_or_without_its_databases_still_delivers(
    archive: ReceivingArchive, settings: Settings
) -> None:
    film = films.thumbnail()
    with Service(settings) as first:
        assert peers.send(film, port=first.dicom_port) == 0
        first.kill()
    # What stays if it dies before it hands the study to the executor: a film, and no workflow.
    films.keep(Spool(settings.storage.directory), films.as_another(films.thumbnail(), "kept", study="kept"))

    with archive.down(), Service(settings) as second:
        second.wait_for("study.finished", count=2)
        second.wait_for("delivery.delayed")
        send_an_answer(second, film)
        second.wait_for("answer.written")
        assert second.stop() == 0
    for database in settings.storage.directory.glob("*.sqlite*"):
        database.unlink()

    with Service(settings) as third:
        archive.wait_for_kept(6)
        third.wait_for("delivery.sent", count=6)
        _, listed = third.ask("GET", "/api/v1/studies")
        assert third.stop() == 0

    assert len(archive.kept) == 6
    studies = [line["uid"] for line in cast(list[dict[str, object]], listed["studies"])]
    assert film.StudyInstanceUID in studies and len(studies) == 2


def send_an_answer(node: Service, film: Dataset) -> None:
    """Ask a node about a film, and have it send the answer."""
    _, answer = node.ask("POST", f"/api/v1/films/{film.SOPInstanceUID}/questions", {"questions": [{"prompt": "Edema"}]})
    question = cast(list[dict[str, str]], answer["questions"])[0]["id"]
    assert node.ask("POST", f"/api/v1/questions/{question}/send")[0] == 202


@pytest.mark.drill(part="kills")
def test_a_failing_disk_ends_the_process_and_nothing_is_lost(archive: ReceivingArchive, settings: Settings) -> None:
    film = films.thumbnail()
    in_the_way = settings.storage.directory / "studies" / film.StudyInstanceUID / "readings"
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


@pytest.mark.drill(part="kills")
def test_undelivered_results_go_out_after_a_start_that_was_cut_short(
    archive: ReceivingArchive, settings: Settings
) -> None:
    with archive.down(), Service(settings) as first:
        assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
        first.wait_for("study.finished")
        first.wait_for("delivery.delayed")
    # What a start leaves that ended while it queued again what a lost engine had known.
    with closing(sqlite3.connect(settings.storage.directory / "engine.sqlite")) as database, database:
        assert database.execute("DELETE FROM workflow_status WHERE name = 'deliver'").rowcount

    with Service(settings) as second:
        archive.wait_for_kept(2)
        assert second.stop() == 0

    assert len(archive.kept) == 2


@pytest.mark.drill(part="kills")
def test_a_node_that_loses_its_databases_goes_on_from_the_spool(archive: ReceivingArchive, settings: Settings) -> None:
    read, new, awaited = (films.as_another(films.thumbnail(), name, study=name) for name in ("read", "new", "awaited"))
    square = region(awaited, "POLYLINE", [2, 3, 20, 3, 20, 30, 2, 30, 2, 3])
    asking = report(awaited, group(finding("edema"), square))
    asks, corrects = QuestionsSettings(ae_titles=("TESTER",)), CorrectionsSettings(quiet_seconds=3.0)
    settings = replace(settings, questions=asks, corrections=corrects)
    with archive.down(), Service(settings) as first:
        assert peers.send(asking, port=first.dicom_port) == 0
        first.wait_for("study.finished")  # the question waits for its film
        first.read(read)
        first.wait_for("delivery.delayed")
        send_an_answer(first, read)
        rejecting = {"kind": "reject", "prompt": "atelectasis"}
        assert first.ask("POST", f"/api/v1/films/{read.SOPInstanceUID}/corrections", rejecting)[0] == 202
        assert peers.send(new, port=first.dicom_port) == 0
        first.kill()
    for database in settings.storage.directory.glob("*.sqlite*"):
        database.unlink()

    with Service(settings) as second:
        assert peers.send(awaited, port=second.dicom_port) == 0
        second.wait_for("question.answered")
        # Report and state of three films, of two answers, and of what was corrected.
        archive.wait_for_kept(12)
        second.wait_for("study.finished", count=2)
        assert second.stop() == 0

    assert Counter(kept.dataset.Modality for kept in archive.kept) == {"SR": 6, "PR": 6}
    assert len({kept.sop_instance_uid for kept in archive.kept}) == 12


@pytest.mark.drill(part="kills")
def test_a_study_that_has_just_become_quiet_is_queued_once(settings: Settings) -> None:
    with Service(settings, die_at=1) as node:  # its place in the queue is known, and the study is not in it yet
        assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
        assert node.wait_until_dead() == -9

    with closing(Client(open_executor_database(settings.storage))) as client:
        planned = client.planned_files()

    assert planned == {films.thumbnail().StudyInstanceUID: None}, "every file of the study"
