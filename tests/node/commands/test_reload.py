"""Callers and destinations that a running node takes from its changed settings, or refuses as a whole."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from node import config
from node.commands.operate import reload
from node.config import Caller, Settings
from node.errors import InputError, RetryLater
from node.jobs import processes
from node.jobs.processes import Process, Role, lock_path, reload_path
from node.service.reload import needs_restart
from node.settings.destinations import DestinationTable, DicomDestination
from node.store import files
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, on_database, run_command, settings_for

NEW = Caller(ae_title="NEWROOM", hosts=(LOOPBACK,))


def with_caller(settings: Settings) -> Settings:
    return replace(settings, listener=replace(settings.listener, callers=(*settings.listener.callers, NEW)))


def write(path: Path, settings: Settings) -> None:
    path.write_text(config.render(settings), encoding="utf-8")


def test_a_refused_caller_is_accepted_after_a_good_reload(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port())
    with Service(settings) as node:
        changed = with_caller(settings)
        write(node.settings_path, replace(changed, study=replace(changed.study, quiet_seconds=1.0)))
        restart = run_command("reload", node.settings_path)
        write(node.settings_path, changed)
        good = node.settings_path.read_text(encoding="utf-8")
        node.settings_path.write_text(f"{good}[stduy]\n", encoding="utf-8")
        wrong = run_command("reload", node.settings_path)
        os.kill(node.pid, signal.SIGHUP)  # without the command, which finds the mistake before the node does
        refusal = node.wait_for("configuration.refused", count=2)

        assert restart.returncode == wrong.returncode == 2
        assert "study.quiet_seconds: needs a restart" in restart.stderr
        assert "stduy: unknown key; did you mean study?" in wrong.stderr
        assert "did you mean study?" in str(refusal["message"])
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="NEWROOM") is None
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="TESTER") == 0

        node.settings_path.write_text(good, encoding="utf-8")
        done = run_command("reload", node.settings_path)

        assert (done.returncode, done.stdout) == (0, "node: listener.callers in use\n"), done.stderr
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="NEWROOM") == 0
        assert run_command("reload", node.settings_path).stdout == "node: nothing has changed\n"
        assert node.stop() == 0


@pytest.mark.drill(part="processes")
def test_new_and_moved_destinations_get_what_is_read_next(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as old, peers.ReceivingArchive() as new, peers.ReceivingArchive() as second:
        settings = settings_for(tmp_path / "node", archive_port=old.port)
        with Service(settings) as node:
            moved = DicomDestination(name="archive", ae_title="ARCHIVE", host=LOOPBACK, port=new.port)
            added = replace(moved, name="second", port=second.port, outputs=("sr",))
            write(node.settings_path, replace(settings, destinations=(moved, added)))

            done = run_command("reload", node.settings_path)
            assert done.stdout == "node: destinations in use\n", done.stderr
            assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="TESTER") == 0
            node.wait_for("delivery.sent", count=3)

            assert (len(old.kept), len(new.kept), len(second.kept)) == (0, 2, 1)
            assert node.stop() == 0


def test_a_reload_without_a_node_says_so(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    write(path, settings_for(tmp_path / "node", archive_port=1))

    done = run_command("reload", path)

    assert done.returncode == 2
    assert "no node runs" in done.stderr


@pytest.mark.parametrize(("url", "executor"), [("", "node"), ("", "night"), ("postgresql://localhost/chex", "night")])
def test_a_reload_of_a_node_that_has_opened_no_port_says_that_it_starts(
    tmp_path: Path, url: str, executor: str
) -> None:
    path = tmp_path / "node.toml"
    settings = settings_for(tmp_path / "node", archive_port=1)
    settings = on_database(settings, url) if url else settings
    settings.storage.directory.mkdir()

    with (
        processes.held(settings.storage, Process(executor=executor)),
        pytest.raises(RetryLater, match="is still starting"),
    ):
        list(reload(settings, path))

    with pytest.raises(InputError, match="no node runs"):
        list(reload(settings, path))


def test_processes_elsewhere_or_with_other_files_are_named(tmp_path: Path) -> None:
    settings = on_database(settings_for(tmp_path / "node", archive_port=1), "postgresql://localhost/chex")
    storage, path = settings.storage, tmp_path / "node.toml"
    storage.directory.mkdir()

    def publish(executor: str, machine: str, used: Path = path) -> None:
        this = {"machine": machine, "pid": os.getpid(), "started": started("self")}
        lock_path(storage, Process(executor=executor)).write_bytes(files.to_json(this))
        content = {**this, "executor": executor, "settings": str(used.resolve())}
        files.write(storage.directory / f"running-{executor}.json", files.to_json(content))

    def answer(*_: object) -> None:
        files.write(reload_path(storage, Process(executor="near")), files.to_json({"changed": ["destinations"]}))

    with ExitStack() as running:
        for executor, machine in (
            ("far", "other.example"),
            ("near", "other.example"),
            ("with-its-own", "other.example"),
        ):
            assert running.enter_context(files.try_lock(lock_path(storage, Process(executor=executor))))
            publish(executor, machine)
        with pytest.raises(InputError, match=r"^far runs on other\.example; .*; near runs on other\.example;"):
            list(reload(settings, path))
        own = tmp_path / "its-own.toml"
        publish("with-its-own", socket.gethostname(), own)
        with pytest.raises(InputError, match=rf"with-its-own was started with {re.escape(str(own))}; name that file$"):
            list(reload(settings, path))
        publish("near", socket.gethostname())
        running.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, answer))

        told = list(reload(settings, path))

    assert told == [
        "far runs on other.example; run reload there",
        f"with-its-own was started with {own}; name that file",
        "near: destinations in use",
    ]


@pytest.mark.parametrize("left_by", ["a killed process", "a process that started at another time"])
def test_a_process_that_is_no_node_gets_no_signal(left_by: str, tmp_path: Path) -> None:
    settings, path = settings_for(tmp_path / "node", archive_port=1), tmp_path / "node.toml"
    storage, process = settings.storage, Process()
    storage.directory.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        with processes.held(storage, process):
            holder = files.read_json(lock_path(storage, process))
            content = {**(holder or {}), "executor": "node", "settings": str(path.resolve()), "pid": stranger.pid}
            if left_by == "a process that started at another time":
                lock_path(storage, process).write_bytes(files.to_json({**(holder or {}), "pid": stranger.pid}))
            files.write(storage.directory / "running.json", files.to_json(content))

            with pytest.raises((InputError, RetryLater), match=r"is still starting|has just ended"):
                list(reload(settings, path))

        stranger.communicate(b"\n", timeout=30)
    assert stranger.returncode == 0


def started(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


def _with_kind(settings: Settings) -> Settings:
    destination = settings.destinations[0]
    assert isinstance(destination, DicomDestination)
    return replace(settings, destinations=(replace(destination, outputs=("sr", "sc")),))


def _with_another(settings: Settings) -> Settings:
    another = DicomDestination(name="second", ae_title="SECOND", host=LOOPBACK, port=104)
    return replace(settings, destinations=(*settings.destinations, another))


@pytest.mark.parametrize(
    ("change", "role", "named"),
    [
        (with_caller, None, []),
        (_with_another, None, []),
        (_with_another, Role.LISTENER, []),
        (_with_another, Role.SENDER, ["destinations"]),
        (_with_kind, None, ["destinations.outputs"]),
        (_with_kind, Role.SENDER, []),
        (lambda settings: replace(settings, http=replace(settings.http, port=81, hosts=("a",))), None,
         ["http.port", "http.hosts"]),
    ],
)  # fmt: skip
def test_what_needs_a_restart_is_named(
    tmp_path: Path, change: Callable[[Settings], Settings], role: Role | None, named: list[str]
) -> None:
    settings = settings_for(tmp_path, archive_port=104)

    complaints = needs_restart(settings, change(settings), process=Process(only=role))

    assert [complaint.split(":")[0] for complaint in complaints] == named


def test_a_look_through_destinations_is_whole_while_they_change() -> None:
    old = DicomDestination(name="old", ae_title="OLD", host=LOOPBACK, port=104)
    new = DicomDestination(name="new", ae_title="NEW", host=LOOPBACK, port=104)
    table = DestinationTable([old])

    views = (iter(table.values()), iter(table.items()), iter(table))
    table.replace([new])

    assert [next(view) for view in views] == [old, ("old", old), "old"]
    assert list(table.values()) == [new]
