"""One node on PostgreSQL, in one process or in several: what each does, and what happens when one of them dies."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node import config
from node.commands.operate import render, status
from node.config import ReportSettings, Settings, StudySettings
from node.domain import derive_uid
from node.jobs.executor import Client
from node.store import database
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for

SCALER = REPOSITORY / "helm" / "templates" / "scaledobject.yaml"
ROLES = ("listener", "worker", "sender")

# What no lost connection is, and nothing tries again: the engine may not queue deliveries.
REFUSE_DELIVERIES = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON dbos.workflow_status
    FOR EACH ROW WHEN (NEW.queue_name LIKE 'deliver %') EXECUTE FUNCTION refuse()
"""

UNSENT = "SELECT 2 - count(*) FROM chex.deliveries WHERE state = 'sent'"


def settings_on(postgres: Postgres, folder: Path, *, archive_port: int | None = None) -> Settings:
    """The settings of a node on PostgreSQL; without a port, of one whose archive is away."""
    settings = settings_for(folder / "node", archive_port=archive_port or peers.free_port(), quiet_seconds=0.3)
    return on_database(settings, postgres.url)


def film(number: int) -> Dataset:
    """A film of a study of its own."""
    return films.as_another(films.thumbnail(), str(number), study=str(number))


def received_once(archive: peers.ReceivingArchive, *, count: int) -> bool:
    """Whether so many different objects have come, none with two contents; an object may come twice."""
    contents = {(received.sop_instance_uid, received.content) for received in archive.kept}
    return len(contents) == len({uid for uid, _ in contents}) == count


def test_three_processes_carry_one_film(postgres: Postgres, tmp_path: Path) -> None:
    with ExitStack() as processes, peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        started = [Service(settings, only=role) for role in ROLES]  # at once, on an empty database
        listener, worker, sender = (processes.enter_context(service) for service in started)

        assert peers.send(films.thumbnail(), port=listener.dicom_port) == 0
        archive.wait_for_kept(2, limit_seconds=60)
        sender.wait_for("delivery.sent", count=2)
        worker.wait_for("study.finished")

        waiting = re.compile(r"^cxr_review_films\{[^}]*\} ([1-9].*)$", re.MULTILINE)
        to_review = [waiting.findall(service.metrics()) for service in (worker, sender)]
        now = status(settings)
        depth = postgres.execute("SELECT queue, depth, oldest_seconds FROM chex.queue_depth WHERE queue = 'studies'")
        assert [service.stop() for service in (listener, worker, sender)] == [0, 0, 0]

        assert sorted(received.dataset.Modality for received in archive.kept) == ["PR", "SR"]
        assert now["ready"] is True
        assert now["processes"] == dict.fromkeys(ROLES, True)
        assert "process sender: ready" in render(now, zone=settings.site.zone)
        assert depth == [("studies", 0, 0.0)]
        assert to_review == [["1.0"], ["1.0"]], "each process has the count of the whole node"
        assert not listener.logged("model.opened") and not sender.logged("model.opened")
        assert status(settings)["ready"] is False


@pytest.mark.drill(part="processes")
def test_a_sender_leaves_how_many_studies_workers_read(postgres: Postgres, tmp_path: Path) -> None:
    settings = settings_on(postgres, tmp_path)
    settings = replace(settings, report=ReportSettings(writers=3))
    for role in ("worker", "sender"):
        with Service(settings, only=role) as service:
            assert service.stop(limit_seconds=90.0) == 0

    assert postgres.execute("SELECT worker_concurrency FROM dbos.queues WHERE name = 'studies'") == [(5,)]


@pytest.mark.drill(part="processes")
def test_what_waits_in_a_queue_is_seen_by_who_scales_the_workers(postgres: Postgres, tmp_path: Path) -> None:
    settings = settings_on(postgres, tmp_path)
    with Service(settings, only="worker") as worker:  # it makes the tables
        assert worker.stop(limit_seconds=90.0) == 0  # other tests may keep PostgreSQL from answering
    client = Client(database.open_executor_database(settings.storage))
    for number in range(3):
        client.run_study(derive_uid("study", str(number)))
    client.touch_study(derive_uid("study", "not quiet"), StudySettings(quiet_seconds=600.0, max_seconds=600.0))
    client.close()

    depths = {row[0]: row[1:] for row in postgres.execute("SELECT queue, depth, oldest_seconds FROM chex.queue_depth")}

    assert depths["quiet"][0] == 3
    assert 0 <= float(str(depths["quiet"][1])) < 60
    assert depths["studies"] == (0, 0.0)
    _, from_zero = re.findall(r"query: (SELECT .+)", SCALER.read_text(encoding="utf-8"))
    assert postgres.execute(from_zero) == [(4,)], "without a worker, a study that is not quiet yet needs one too"


@pytest.mark.drill(part="processes")
def test_the_study_of_a_killed_worker_is_answered_once(postgres: Postgres, tmp_path: Path) -> None:
    with ExitStack() as processes, peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        started = [
            Service(settings, only="listener"),
            Service(settings, only="worker", executor="worker-0", die_at=4),  # after it has read the film
        ]
        listener, doomed = (processes.enter_context(service) for service in started)
        assert peers.send(films.thumbnail(), port=listener.dicom_port) == 0
        assert doomed.wait_until_dead() == -9

        started = [Service(settings, only="worker", executor="worker-1"), Service(settings, only="sender")]
        living, sender = (processes.enter_context(service) for service in started)
        archive.wait_for_kept(2, limit_seconds=60)
        sender.wait_for("delivery.sent", count=2)

        assert sorted(received.dataset.Modality for received in archive.kept) == ["PR", "SR"]
        assert living.logged("executor.recovered") or sender.logged("executor.recovered")
        assert len(living.logged("study.finished")) == 1
        assert not living.logged("film.decided")  # nor is a step done twice


@pytest.mark.drill(part="processes")
def test_nothing_is_lost_while_postgresql_is_away_under_load(tmp_path: Path) -> None:
    with ExitStack() as processes, Postgres() as postgres, peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        listener = processes.enter_context(Service(settings, only="listener"))
        executors = [processes.enter_context(Service(settings, only=role)) for role in ROLES[1:]]
        for number in range(4):
            assert peers.send(film(number), port=listener.dicom_port) == 0
        archive.wait_for_kept(1, limit_seconds=60)

        postgres.kill()
        for number in range(4, 8):
            assert peers.send(film(number), port=listener.dicom_port) == 0
        listener.wait_for("study.delayed")
        assert [executor.wait_until_dead() for executor in executors] == [1, 1]
        again = [Service(settings, only=role) for role in ROLES[1:]]  # as the supervisor does
        again[0].wait_for("database.waiting")
        postgres.start()
        for service in again:
            processes.enter_context(service)

        archive.wait_until(lambda: received_once(archive, count=16), limit_seconds=90)
        assert listener.stop() == 0


@pytest.mark.drill(part="processes")
def test_whoever_waits_for_postgresql_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port())

    waiting = Service(on_database(settings, f"postgresql://{peers.LOOPBACK}:1/chex"), only="sender")
    waiting.wait_for("database.waiting")
    code = waiting.stop()
    waiting.kill()

    assert code == 0
    assert not waiting.logged("service.ready")


@pytest.mark.drill(part="processes")
def test_a_database_error_ends_the_process_and_the_work_goes_on(postgres: Postgres, tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        with Service(settings) as first:
            postgres.execute(REFUSE_DELIVERIES)
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            assert first.wait_until_dead() == 1
            assert first.logged("executor.broken")
        postgres.execute("DROP TRIGGER refuse ON dbos.workflow_status")

        with Service(settings):
            archive.wait_for_kept(2, limit_seconds=60)

        assert sorted(received.dataset.Modality for received in archive.kept) == ["PR", "SR"]
        assert postgres.execute("SELECT count(*) FROM dbos.workflow_status WHERE status = 'ERROR'") == [(0,)]


@pytest.mark.drill(part="processes")
@pytest.mark.parametrize("lost", ["chex", "chex, dbos"])
def test_tables_are_built_again_when_they_are_lost(postgres: Postgres, tmp_path: Path, lost: str) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        with archive.down(), Service(settings) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            first.wait_for("study.finished")
            first.wait_for("delivery.delayed")
        postgres.execute(f"DROP SCHEMA {lost} CASCADE")

        with Service(settings) as second:
            archive.wait_until(lambda: received_once(archive, count=2), limit_seconds=60)
            peers.wait_until(lambda: postgres.execute(UNSENT) == [(0,)], what="both are noted as sent")
            assert second.stop() == 0

        assert received_once(archive, count=2)
        assert postgres.execute("SELECT state, count(*) FROM chex.studies GROUP BY state") == [("finished", 1)]
        assert postgres.execute("SELECT state, count(*) FROM chex.deliveries GROUP BY state") == [("sent", 2)]


@pytest.mark.drill(part="processes")
def test_what_the_engine_keeps_of_old_work_is_removed(postgres: Postgres, tmp_path: Path) -> None:
    tables = ("workflow_status", "operation_outputs", "workflow_input", "workflow_output")

    def rows() -> list[int]:
        """How many rows the engine has of what it was asked, did and answered."""
        return [int(str(postgres.execute(f"SELECT count(*) FROM dbos.{name}")[0][0])) for name in tables]

    with peers.ReceivingArchive() as archive:
        settings = settings_on(postgres, tmp_path, archive_port=archive.port)
        with Service(settings) as first:
            assert peers.send(film(1), port=first.dicom_port) == 0
            first.wait_for("delivery.sent", count=2)
            assert first.stop() == 0
        young = rows()
        postgres.execute("UPDATE dbos.workflow_status SET completed_at = 1 WHERE completed_at > 0")  # long ago
        with Service(settings) as second:
            second.wait_for("executor.cleaned")
            assert second.stop() == 0

    assert young[1] > young[0] >= 3, "quiet, study, deliver"
    assert {*rows()} <= {0, 1}, "one may not have been over when the process ended"


def test_several_processes_on_sqlite_are_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port())
    path = tmp_path / "node.toml"
    path.write_text(config.render(settings), encoding="utf-8")

    for words, said in ((["--only", "worker"], "storage.database_url"), (["--executor", "a b"], "--executor")):
        done = run_command("serve", path, *words)

        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
