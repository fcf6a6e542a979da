"""A workflow whose thread ended without an outcome is found, told, tried again, and parked if that does not help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dbos import DBOSClient

from node.store.database import connect
from tests.support import films, peers
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for

pytestmark = pytest.mark.drill(part="kills")

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)


@contextmanager
def panic(folder: Path, step: str) -> Iterator[Path]:
    """End the thread of each workflow that finishes a step."""
    path = folder / "panic"
    path.write_text(step, encoding="utf-8")
    yield path
    path.unlink(missing_ok=True)


def parked(node: Service) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run_command("status", node.settings_path, "--json").stdout)["parked"]
    return found


def ended_studies(directory: Path) -> list[float]:
    """When each workflow `study` that has ended was queued, in seconds since the first."""
    client = DBOSClient(system_database_engine=connect(directory / "engine.sqlite"))
    try:
        found = sorted(item.created_at or 0 for item in client.list_workflows(name="study", status="SUCCESS"))
    finally:
        client.destroy()
    return [(at - found[0]) / 1000 for at in found]


@pytest.mark.parametrize("step", ["place", "read"])  # of `quiet` and of `study`
def test_a_study_whose_thread_ends_again_and_again_is_parked(tmp_path: Path, step: str) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node:
            with panic(tmp_path, step):
                assert peers.send(FILM, port=node.dicom_port) == 0
                line = node.wait_for("study.parked")
                lost = node.logged("workflow.lost")

                assert (line["study"], line["stage"]) == (STUDY, "workflow")
                assert "Panic at scripted_node.py" in str(line["reason"])
                assert [(item["study"], item["times"]) for item in lost] == [(STUDY, times) for times in (1, 2, 3)]
                assert 'cxr_failures_total{reason="lost",stage="workflow"} 3.0' in node.metrics()
                [row] = parked(node)
                assert (row["study"], row["stage"]) == (STUDY, "workflow")
                assert "retry" in run_command("explain", STUDY, node.settings_path).stdout

            assert run_command("retry", node.settings_path, "--all").returncode == 0
            archive.wait_for_kept(2)
            assert parked(node) == []


@pytest.mark.parametrize("step", ["write", "finish", "send"])
def test_a_workflow_that_is_lost_once_is_tried_again(tmp_path: Path, step: str) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node, panic(tmp_path, step) as path:
            assert peers.send(FILM, port=node.dicom_port) == 0
            node.wait_for("workflow.lost")
            path.unlink()

            archive.wait_for_kept(2)
            node.wait_for("study.finished")
            assert not node.logged("study.parked") and not node.logged("delivery.parked")


def test_a_study_that_is_done_is_not_parked(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node, panic(tmp_path, "ready"):  # the thread of `quiet` ends, and `study` is queued
            assert peers.send(FILM, port=node.dicom_port) == 0
            archive.wait_for_kept(2)
            node.wait_for("workflow.lost", count=3)

            assert not node.logged("study.parked")
            assert parked(node) == []


def test_what_a_lost_delivery_did_not_send_is_parked(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node, panic(tmp_path, "send"):
            assert peers.send(FILM, port=node.dicom_port) == 0
            node.wait_for("delivery.parked")

            [row] = parked(node)  # the first object was sent, and is not parked
            assert (row["study"], row["stage"]) == (STUDY, "deliver archive")
            assert "Panic at scripted_node.py" in row["reason"]


def test_rounds_that_wait_for_a_lost_one_make_no_busy_loop(tmp_path: Path) -> None:
    late = films.as_another(FILM, "late")
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node:
            hold = tmp_path / "hold"
            hold.touch()
            assert peers.send(FILM, port=node.dicom_port) == 0
            node.wait_for("study.ready")
            assert peers.send(late, port=node.dicom_port) == 0
            peers.wait_until(lambda: len(ended_studies(tmp_path / "node")) >= 3, what="the late film waited 3 times")
            _, first, second, *_ = ended_studies(tmp_path / "node")
            hold.unlink()
            archive.wait_until(lambda: any(late.SOPInstanceUID.encode() in kept.content for kept in archive.kept))

    assert first >= 1.0
    assert second - first >= 2.0


@pytest.mark.drill(part="processes")
def test_a_worker_on_postgresql_finds_what_it_lost(tmp_path: Path, postgres: Postgres) -> None:
    settings = on_database(settings_for(tmp_path / "node", archive_port=peers.free_port()), postgres.url)
    with (
        Service(settings, only="listener") as listener,
        Service(settings, only="worker", executor="one") as first,
        Service(settings, only="worker", executor="two") as second,
        panic(tmp_path, "read"),
    ):
        assert peers.send(FILM, port=listener.dicom_port) == 0
        peers.wait_until(
            lambda: bool(first.logged("study.parked") or second.logged("study.parked")), what="the study is parked"
        )
        [row] = parked(first)

    assert (row["study"], row["stage"]) == (STUDY, "workflow")
