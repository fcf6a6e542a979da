"""What `doctor` says of storage folder, database, clock and ports, good and bad; it leaves nothing behind."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from node.check_result import Check, CheckState, run_check
from node.commands.doctor import check_database, check_passwords, check_ports, check_storage
from node.config import Settings
from node.health.checks import check_clock
from node.jobs import processes
from node.settings.http import HttpSettings
from node.store import database, files, received
from node.store.ledger import Ledger
from node.web import passwords
from tests.support import peers
from tests.support.postgres import Postgres
from tests.support.service import on_database, settings_for

HOUR = timedelta(hours=1)
OK, NOTE, FAULT = CheckState.OK, CheckState.NOTE, CheckState.FAULT
NOBODY = 65534


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose storage folder is there and empty."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o700)
    return settings_for(folder, archive_port=104)


def states(checks: Iterable[Check]) -> dict[str, CheckState]:
    return {check.name: check.state for check in checks}


def only(checks: Iterable[Check]) -> Check:
    (check,) = checks
    return check


@contextmanager
def another_user() -> Iterator[None]:
    """Run as a user who may not write what the tests have made, where the tests run as root."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if os.geteuid() == NOBODY:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "check the disk"),
        (errno.EACCES, "chown"),
        (errno.EFBIG, os.strerror(errno.EFBIG)),
    ],
)
def test_what_is_said_of_a_folder_fits_what_the_disk_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.Aside, "write", fail)
    check = only(check_storage(settings))

    assert check.state is FAULT
    assert remedy in check.message
    assert list(settings.storage.directory.iterdir()) == []


def format_of(content: str) -> Callable[[Path], object]:
    """A folder with a study, of another format or of none."""

    def make(directory: Path) -> None:
        (directory / "studies" / "1.2.3").mkdir(parents=True)
        if content:
            (directory / "format").write_text(content, encoding="utf-8")

    return make


@pytest.mark.parametrize(
    ("make", "found", "said"),
    [
        (lambda _: None, {"storage": OK}, "GiB free"),
        (format_of("1\n"), {"storage": FAULT}, "docs/operate/upgrade.md"),
        (format_of("4\n"), {"storage": FAULT}, "docs/operate/upgrade.md"),
        (format_of(""), {"storage": FAULT}, "docs/operate/upgrade.md"),
        (lambda folder: folder.chmod(0o500), {"storage": FAULT}, "chown"),
        (lambda folder: folder.chmod(0o710), {"storage": OK, "storage mode": NOTE}, ""),
        (lambda folder: folder.rmdir(), {"storage": NOTE}, "the first start creates it"),
        (lambda folder: (folder.rmdir(), folder.touch()), {"storage": FAULT}, ""),
    ],
)
def test_a_folder_is_good_odd_or_a_fault_and_left_as_it_was(
    settings: Settings, make: Callable[[Path], object], found: dict[str, CheckState], said: str
) -> None:
    make(settings.storage.directory)
    before = sorted(settings.storage.directory.parent.rglob("*"))

    with another_user() if said == "chown" else nullcontext():
        checks = list(check_storage(settings))

    assert states(checks) == found
    assert said in checks[0].message
    assert sorted(settings.storage.directory.parent.rglob("*")) == before


def test_a_full_disk_is_a_fault_and_a_nearly_full_one_a_note(settings: Settings) -> None:
    free_mib = shutil.disk_usage(settings.storage.directory).free // 2**20

    full, nearly = (
        only(check_storage(replace(settings, storage=replace(settings.storage, min_free_mib=wanted))))
        for wanted in (10**9, free_mib * 2 // 3)
    )

    assert (full.state, nearly.state) == (FAULT, NOTE)
    assert "storage.min_free_mib" in full.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_is_told_that_it_sees_more_than_the_node(settings: Settings) -> None:
    os.chown(settings.storage.directory, NOBODY, NOBODY)

    assert states(check_storage(settings)) == {"storage": OK, "storage owner": NOTE}


@contextmanager
def answering(said: bytes) -> Iterator[int]:
    """A program that says this to whoever connects; its port."""
    with socket.create_server((peers.LOOPBACK, 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def leave_running(settings: Settings, **ports: int) -> None:
    """Leave the file of a node that runs, or was killed, which names its ports."""
    content = files.to_json({"executor": "node", **ports})
    files.write(settings.storage.directory / "running.json", content)


def test_an_unready_node_holds_its_ports_and_a_dead_one_does_not(settings: Settings) -> None:
    with socket.create_server((peers.LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with answering(b"HTTP/1.0 503 It still opens its model\r\n\r\n") as http_port:
            leave_running(settings, http_port=http_port, dicom_port=port)
            here = replace(settings, listener=replace(settings.listener, port=port), http=HttpSettings(port=http_port))
            living, its_ports = states(check_storage(here)), states(check_ports(here))
            away = replace(here, listener=replace(here.listener, host="192.0.2.1"))  # no address of this machine
            elsewhere = states(check_ports(away))
        dead, ports = states(check_storage(here)), states(check_ports(here))

    assert living == dead == {"storage": OK, "process node": NOTE}
    assert its_ports == {"port listener": OK, "port http": OK}
    assert elsewhere == ports == {"port listener": FAULT, "port http": OK}


def test_another_program_on_a_dead_nodes_port_is_not_the_node(settings: Settings) -> None:
    with answering(b"220 mail ready\r\n") as port:
        leave_running(settings, http_port=port)

        (state,) = processes.states(settings.storage, settings.http)

    assert (state.ready, state.answers) == (False, False)


def test_a_taken_port_and_a_foreign_address_are_faults(settings: Settings) -> None:
    with socket.create_server((peers.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        taken = replace(settings, listener=replace(settings.listener, port=port), http=HttpSettings(host="192.0.2.1"))
        checks = {check.name: check for check in check_ports(taken)}

    assert checks["port listener"].state is checks["port http"].state is FAULT
    assert "listener.port" in checks["port listener"].message and str(port) in checks["port listener"].message
    assert "http.host" in checks["port http"].message


def test_a_database_is_good_absent_damaged_or_open_to_others(settings: Settings) -> None:
    ledger, engine = database.sqlite_files(settings.storage)
    Ledger(database.open_ledger(settings.storage)).close()

    good = states(check_database(settings))
    ledger.chmod(0o644)
    is_open = states(check_database(settings))
    ledger.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    damaged = {check.name: check for check in check_database(settings)}["database ledger.sqlite"]
    aside = database.set_damaged_aside(settings.storage, database.LEDGER)

    assert good == {"database ledger.sqlite": OK, "database engine.sqlite": OK}
    assert not engine.exists()
    assert (is_open["database ledger.sqlite"], damaged.state) == (NOTE, FAULT)
    assert "restart the node" in damaged.message
    assert aside is not None
    assert states(check_database(settings))[f"database {aside.name}"] is NOTE


@pytest.mark.drill(part="processes")
def test_postgresql_is_good_before_and_after_the_first_start_but_not_for_who_may_not_make_tables(
    settings: Settings, postgres: Postgres
) -> None:
    shared = on_database(settings, postgres.url)
    postgres.execute("DROP ROLE IF EXISTS reader")
    postgres.execute("CREATE ROLE reader LOGIN")

    reader = only(check_database(on_database(settings, postgres.url.replace("node@", "reader@"))))
    before = only(check_database(shared))
    Ledger(database.open_ledger(shared.storage)).close()
    after = only(check_database(shared))

    assert (reader.state, before.state, after.state) == (FAULT, OK, OK), (before, after)
    assert "PostgreSQL 1" in before.message
    assert "chex and dbos" in reader.message


def test_a_postgresql_that_is_away_is_a_fault(settings: Settings) -> None:
    away = f"postgresql://node:open-sesame@{peers.LOOPBACK}:{peers.free_port()}/chex"

    check = only(check_database(on_database(settings, away)))

    assert (check.state, "storage.database_url" in check.message) == (FAULT, True)
    assert "open-sesame" not in check.message


@pytest.mark.parametrize(
    ("changed", "seconds", "found", "said"),
    [
        (lambda facts: facts, 0.0, [OK], "PostgreSQL 16.1 answers in"),
        (lambda facts: replace(facts, is_standby=True), 0.0, [FAULT], "name the primary"),
        (lambda facts: replace(facts, forbidden=("chex", "dbos")), 0.0, [FAULT], "chex and dbos"),
        (lambda facts: replace(facts, now=facts.now - HOUR), 0.0, [OK, NOTE], "differ by 36"),
        (lambda facts: facts, 1.05, [NOTE], "took 1."),
    ],
)
def test_a_postgresql_is_good_slow_or_a_fault(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[database.ServerFacts], database.ServerFacts],
    seconds: float,
    found: list[CheckState],
    said: str,
) -> None:
    def ask(_storage: object) -> database.ServerFacts:
        time.sleep(seconds)
        return changed(database.ServerFacts(version="16.1", is_standby=False, now=datetime.now(UTC), forbidden=()))

    monkeypatch.setattr(database, "ask_server", ask)
    checks = list(check_database(on_database(settings, "postgresql://node@nowhere/chex")))

    assert [check.state for check in checks] == found
    assert said in checks[-1].message


def test_a_clock_behind_the_newest_film_or_program_is_a_fault(settings: Settings) -> None:
    folder = settings.storage.directory / "studies" / "1.2.3" / "received"
    folder.mkdir(parents=True)
    old, new = (folder / received.file_name("1.2.3.4", number=number, sha256="0" * 64) for number in (1, 2))
    new.touch()
    old.touch()
    os.utime(old, (1.0, 1.0))
    film = received.newest_arrival(settings.storage.directory / "studies")
    assert film is not None
    settings = replace(settings, site=replace(settings.site, timezone="Europe/Berlin"))

    good, stepped = only(check_clock(settings)), only(check_clock(settings, now=film - timedelta(seconds=30)))
    behind = only(check_clock(settings, now=film - HOUR))
    changed = only(check_clock(settings, now=film - HOUR, last_change=film - timedelta(minutes=1)))
    shutil.rmtree(folder)
    long_ago = only(check_clock(settings, now=film - timedelta(days=36500)))

    assert [check.state for check in (good, stepped, behind, changed, long_ago)] == [OK, OK, FAULT, FAULT, FAULT]
    assert "timedatectl" in good.message
    assert "newest film" in behind.message
    assert "a study changed at" in changed.message
    assert "installed" in long_ago.message


def test_a_changing_database_is_checked_again_under_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, modes = tmp_path / "ledger.sqlite", list[str]()
    Ledger(database.connect(path)).close()

    def look(_path: Path, mode: str) -> bool:
        modes.append(mode)
        return mode == "mode=ro"

    monkeypatch.setattr(database, "_is_whole", look)

    assert database.is_whole(path)
    assert modes == ["immutable=1", "mode=ro"]


@pytest.mark.parametrize(
    ("prepare", "state", "words"),
    [
        (lambda path: None, "ok", "has 1 user"),
        (lambda path: path.unlink(), "fault", "no such file"),
        (lambda path: path.write_text("\n\n", encoding="utf-8"), "fault", "has no user"),
        (lambda path: path.write_text("anna:plain\n"), "fault", "line 1 is not USER:HASH"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "fault", "is no text"),
        (lambda path: path.chmod(0o640), "note", "others may read"),
        (lambda path: path.chmod(0o606), "fault", "others may change"),
        (lambda path: (path.unlink(), path.mkdir()), "fault", "is a directory"),
    ],
)
def test_the_password_file_is_looked_at(
    settings: Settings, tmp_path: Path, prepare: Callable[[Path], object], state: str, words: str
) -> None:
    path = tmp_path / "users"
    passwords.set_password(path, "anna", "correct horse battery")
    prepare(path)

    found = run_check("passwords", lambda: check_passwords(replace(settings, http=HttpSettings(password_file=path))))

    assert found[0].state == state
    assert words in found[0].message and str(path) in found[0].message
    assert "$argon2" not in str([check.message for check in found])
    assert run_check("passwords", lambda: check_passwords(settings)) == (), "without a file nothing is said"
