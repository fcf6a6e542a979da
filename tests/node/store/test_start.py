"""What a node does before it can read: it keeps films, stops when it is told to, and builds damaged databases anew."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from node.commands.operate import status
from node.config import QuestionsSettings, Settings
from node.errors import NodeError, OtherForm
from node.jobs.processes import Process
from node.jobs.workflows import deliveries_of
from node.metrics import Metrics
from node.net import callers
from node.read.decoder_processes import DecoderProcesses
from node.service import app
from node.service.receiver import open_receiving
from node.settings.http import HttpSettings
from node.store import database, questions
from node.store.ledger import Ledger, open_ledger
from node.store.spool import DocumentKind, Spool
from tests.support import films, peers
from tests.support.damage import cut
from tests.support.fakes import ScriptedReader
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, run_command, settings_for
from tests.support.spoken import PROMPTS


def test_films_are_kept_while_the_model_is_being_opened_in_files_of_its_user_alone(tmp_path: Path) -> None:
    hold = tmp_path / "hold-model"
    hold.touch()
    umask = os.umask(0)
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        listener = replace(settings.listener, port=peers.free_port())  # known before the node says it
        settings = replace(settings, listener=listener, http=HttpSettings(port=peers.free_port()))
        node = Service(settings)
        os.umask(umask)

        def ready() -> list[object]:
            answer = httpx2.get(f"http://{peers.LOOPBACK}:{settings.http.port}/ready", timeout=30)
            return [answer.status_code, *(answer.json()[part] for part in ("listener", "model", "workers"))]

        try:
            node.wait_for("service.listening")

            assert peers.send(films.thumbnail(), port=settings.listener.port) == 0
            assert ready() == [503, True, False, False]
            assert not node.logged("study.delayed")

            hold.unlink()
            archive.wait_for_kept(2)
            node.wait_for("service.ready")
            assert ready() == [200, True, True, True]
            files = [path for path in (tmp_path / "node").rglob("*") if path.is_file()]
            assert [path.name for path in files if path.stat().st_mode & 0o077] == []
            assert node.stop() == 0
        finally:
            node.kill()


def test_a_node_that_is_told_to_stop_does_not_wait_for_its_model(tmp_path: Path) -> None:
    (tmp_path / "hold-model").touch()
    node = Service(settings_for(tmp_path / "node", archive_port=peers.free_port()))
    try:
        node.wait_for("service.listening")
        began = time.monotonic()

        assert node.stop() == 0

        assert time.monotonic() - began < 10
        assert node.logged("service.stopped")
    finally:
        node.kill()


def without_journal(path: Path) -> None:
    """Bring everything that is still in a database's journal into its file, where it can be damaged."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def overwrite_the_beginning(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(200))


def overwrite_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def flip_in_an_index(path: Path) -> None:
    """Change one letter of a key in an index, which leaves every page well formed."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index'").fetchone()
    content = bytearray(path.read_bytes())
    content[content.index(b"1.2.7", (page - 1) * size)] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [overwrite_the_beginning, overwrite_a_page, cut, flip_in_an_index])
def test_a_damaged_database_is_moved_aside_and_a_good_one_stays(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    with closing(Ledger(database.open_ledger(settings.storage))) as ledger:
        for number in range(20):
            ledger.set_study(f"1.2.{number}", "parked", stage="read", reason="why")
    path = tmp_path / "ledger.sqlite"
    assert database.set_damaged_aside(settings.storage, database.LEDGER) is None
    without_journal(path)
    damage(path)

    aside = database.set_damaged_aside(settings.storage, database.LEDGER)

    assert not path.exists()
    assert status(settings)["damaged_databases"] == [str(aside)]


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize(("name", "damage"), [("ledger.sqlite", cut), ("engine.sqlite", overwrite_a_page)])
def test_a_node_builds_a_damaged_database_anew_and_goes_on(
    name: str, damage: Callable[[Path], None], archive: ReceivingArchive, settings: Settings
) -> None:
    with archive.down(), Service(settings) as first:
        assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
        first.wait_for("study.finished")
        first.wait_for("delivery.delayed")
        assert first.stop() == 0
    without_journal(settings.storage.directory / name)
    damage(settings.storage.directory / name)
    told = run_command("status", first.settings_path)

    with Service(settings) as second:
        archive.wait_for_kept(2)
        assert peers.send(films.as_another(films.thumbnail(), "new", study="new"), port=second.dicom_port) == 0
        archive.wait_until(lambda: len({received.sop_instance_uid for received in archive.kept}) == 4)
        status = json.loads(run_command("status", second.settings_path, "--json").stdout)
        assert second.stop() == 0

    if name == "ledger.sqlite":
        assert (told.returncode, "restart the node" in told.stderr) == (1, True)
    (aside,) = status["damaged_databases"]
    assert Path(aside).name.startswith(f"{name}.damaged-")
    assert Path(aside).exists()
    assert [line["name"] for line in second.logged("database.damaged")] == [Path(aside).name]


@pytest.mark.parametrize(("kind", "read"), [("sent", questions.answers_of), ("objects", questions.objects_of)])
def test_a_stored_document_or_queued_delivery_of_another_form_is_named(
    tmp_path: Path, kind: DocumentKind, read: Callable[[Spool, str], object]
) -> None:
    spool = Spool(tmp_path)
    (spool.received_path("1.2", "")).mkdir(parents=True)
    spool.keep_document("1.2", kind, "1.3", {"patient": "Doe"})

    with pytest.raises(OtherForm, match="go back to the version") as raised:
        read(spool, "1.2")

    assert f"{tmp_path}/studies/1.2/{kind}/1.3.json: " in str(raised.value)
    assert "Doe" not in str(raised.value)
    with pytest.raises(OtherForm, match=r"table workflow_status: .*lacks"):
        deliveries_of({"patient": "Doe"})


def test_a_study_beside_a_document_of_another_form_is_parked_alone(tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path / "node", archive_port=104), questions=QuestionsSettings(labels=("ask",)))
    first, again, beside = (films.as_another(films.thumbnail(), name, study=name[:1]) for name in ("a1", "a2", "b"))
    study, neighbor = str(first.StudyInstanceUID), str(beside.StudyInstanceUID)

    with Service(settings) as service, open_ledger(settings.storage) as ledger:
        assert peers.send(first, port=service.dicom_port) == 0
        peers.wait_until(lambda: ledger.study_state(study) == "finished", what="the study")
        Spool(settings.storage.directory).keep_document(study, "objects", "1.4", {"patient": "Doe"})
        assert [peers.send(film, port=service.dicom_port) for film in (again, beside)] == [0, 0]
        peers.wait_until(lambda: ledger.study_state(neighbor) == "finished", what="the study beside it")
        (parked,) = ledger.parked()

    assert (parked.study, parked.stage, "Doe" in parked.reason) == (study, "submit", False)
    assert "go back to the version that wrote it" in parked.reason


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT 'Doe', priority FROM sqlite_master", "no such column: priority.*start that version again"),
        ("SELECT 'Doe'; SELECT 1", "`node doctor` says what it lacks"),
    ],
)
def test_a_database_that_refuses_at_the_start_is_named(tmp_path: Path, statement: str, said: str) -> None:
    def refuse() -> ScriptedReader:
        with database.connect(tmp_path / "other.sqlite").connect() as connection:
            connection.exec_driver_sql(statement)
        pytest.fail("the database takes it")

    with (
        pytest.raises(NodeError, match=said) as raised,
        app.run(settings_for(tmp_path, archive_port=104), reader=refuse),
    ):
        pytest.fail("the node runs")

    assert str(raised.value).startswith(f"storage.directory {tmp_path}: the database refuses")
    assert "Doe" not in str(raised.value)


def test_a_damaged_database_is_noticed_and_the_callers_refused_before_are_kept(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    with ExitStack() as parts:
        receiving = open_receiving(app._shared(settings, PROMPTS, Process(), Metrics()), parts=parts)
        (tmp_path / database.EXECUTOR).write_bytes(b"no database" * 1000)
        assert not receiving.damaged.is_set()
        receiving.submitter.start()
        receiving.submitter.submit("1.2.3")
        peers.wait_until(receiving.damaged.is_set, what="the damage is noticed")
        assert peers.send(films.thumbnail(), port=receiving.listener.port, called_ae="OTHER") is None

    assert [(caller.called_aet, caller.reason) for caller in callers.read_all(tmp_path)] == [("OTHER", "called_ae")]


@pytest.mark.parametrize(
    ("numbers", "is_broken", "code"),
    [
        ([], True, 1),
        ([signal.SIGTERM], False, 0),
        ([signal.SIGINT], False, 130),
        ([signal.SIGHUP], False, 0),  # without a file of settings
        ([signal.SIGINT, signal.SIGTERM], False, "at once 1"),
    ],
)
def test_a_process_ends_with_the_code_that_tells_its_supervisor_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int], is_broken: bool, code: int | str
) -> None:
    @contextmanager
    def run(_settings: Settings, **_others: object) -> Iterator[SimpleNamespace]:
        for number in numbers:
            signal.raise_signal(number)
        yield SimpleNamespace(is_broken=is_broken)

    def end(code: int) -> None:
        raise SystemExit(f"at once {code}")

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(DecoderProcesses, "start", lambda *_: None)
    monkeypatch.setattr(app, "keep_between_films", lambda: None)  # it cannot be undone in this process
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in handled]
    found: int | str | None
    try:
        found = app.serve(settings_for(tmp_path, archive_port=104))
    except SystemExit as ended:
        found = ended.code
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)

    assert found == code


def test_a_second_opening_of_a_database_drops_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with database.connect(path).connect() as first:
        first.exec_driver_sql("CREATE TABLE numbers (number INTEGER)")
        first.commit()
        database.connect(path)

        # What `node status` does: the last user of a database removes its journal when it closes it.
        program = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('SELECT * FROM numbers'); c.close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        first.exec_driver_sql("INSERT INTO numbers VALUES (1)")
        first.commit()

        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT * FROM numbers").fetchall() == [(1,)]
