"""Callers, destinations and prompts that a running node takes from its changed settings, or refuses as a whole.

And deliveries that a person ends, because their destination is gone for good.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from node import config
from node.commands.operate import abandon, reload, render, status
from node.config import Caller, Settings
from node.dicom.identity import VERSION
from node.domain import Delivery, DeliveryState
from node.errors import InputError
from node.jobs import processes
from node.jobs.processes import Process, Role, lock_path, path_of
from node.read import prompts
from node.read.model import open_reader
from node.service.running import needs_restart
from node.settings.destinations import DestinationTable, DicomDestination
from node.store import database, files
from node.store.ledger import Ledger
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, on_database, run_command, settings_for
from tests.support.spoken import PROMPTS

NEW = Caller(ae_title="NEWROOM", hosts=(LOOPBACK,))


def with_caller(settings: Settings) -> Settings:
    return replace(settings, listener=replace(settings.listener, callers=(*settings.listener.callers, NEW)))


def write(path: Path, settings: Settings) -> None:
    path.write_text(config.render(settings), encoding="utf-8")


def test_a_refused_caller_and_a_moved_archive_are_used_after_a_good_reload(tmp_path: Path) -> None:
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

        with peers.ReceivingArchive() as archive, peers.ReceivingArchive() as second:
            (known,) = changed.destinations
            assert isinstance(known, DicomDestination)
            moved, added = replace(known, port=archive.port), replace(known, name="second", port=second.port)
            changed = replace(changed, destinations=(moved, replace(added, outputs=("sr",))))
            write(node.settings_path, changed)
            assert run_command("reload", node.settings_path).stdout == "node: destinations in use\n"
            later = films.as_another(films.thumbnail(), "later", study="later")
            assert peers.send(later, port=node.dicom_port) == 0
            archive.wait_for_kept(2)
            second.wait_for_kept(1)

            own = replace(settings.model, prompts=str(tmp_path / "own.toml"), uncompared="accept")
            for said, change in WRONG.items():
                write_set(tmp_path / "own.toml", "2", change)
                write(node.settings_path, replace(changed, model=own, destinations=()))
                refused = run_command("reload", node.settings_path)
                assert (refused.returncode, said in refused.stderr) == (2, True)
            sha256 = write_set(tmp_path / "own.toml", "2", RENAMED)
            write(node.settings_path, replace(changed, model=replace(own, uncompared="refuse")))
            refused = run_command("reload", node.settings_path)
            assert (refused.returncode, "was never compared, with these prompts" in refused.stderr) == (2, True)

            (tmp_path / "hold").touch()  # the scripted reader waits
            held, last = (films.as_another(films.thumbnail(), name, study=name) for name in ("held", "last"))
            assert peers.send(held, port=node.dicom_port) == 0
            node.wait_for_line(
                lambda line: (line["event"], line.get("study")) == ("study.ready", held.StudyInstanceUID)
            )
            write(node.settings_path, replace(changed, model=own))
            taken = run_command("reload", node.settings_path)
            assert taken.stdout == "node: model.prompts, model.uncompared in use\n", taken.stderr
            (tmp_path / "hold").unlink()
            assert f'cxr_build_info{{model="scripted 1",prompts="own 2",version="{VERSION}"}} 1.0' in node.metrics()
            node.read(last)
            archive.wait_for_kept(6)
            second.wait_for_kept(3)
            reports = {str(kept.dataset.StudyInstanceUID): kept.content for kept in second.kept}
            for text in (b"Water in the lung is seen here.", f"prompt set own 2 (sha256 {sha256})".encode()):
                found = [text in reports[film.StudyInstanceUID] for film in (held, last)]
                assert found == [False, True], "a round that has begun keeps its prompts"
            _, asked = node.ask("GET", "/api/v1/prompts")
            assert "Water in the lung" in cast(list[str], asked["suggestions"])
            place = f"/api/v1/studies/{last.StudyInstanceUID}/films/{last.SOPInstanceUID}/questions"
            status, answer = node.ask("POST", place, {"questions": [{"prompt": "Water in the lung"}]})
            assert (status, "'prompts': 'own 2'" in str(answer)) == (201, True)
            assert node.stop() == 0


def test_a_reload_of_a_node_that_has_opened_no_port_is_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=1)
    settings.storage.directory.mkdir()

    with processes.held(settings.storage, Process()), pytest.raises(InputError, match="no node runs"):
        list(reload(settings, tmp_path / "node.toml"))


def test_processes_elsewhere_or_with_other_files_are_named(tmp_path: Path) -> None:
    settings = on_database(settings_for(tmp_path / "node", archive_port=1), "postgresql://localhost/chex")
    storage, path = settings.storage, tmp_path / "node.toml"
    storage.directory.mkdir()

    def publish(executor: str, machine: str, used: Path = path) -> None:
        started = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        this = {"machine": machine, "pid": os.getpid(), "started": started}
        lock_path(storage, Process(executor=executor)).write_bytes(files.to_json(this))
        content = {**this, "executor": executor, "settings": str(used.resolve())}
        files.write(storage.directory / f"running-{executor}.json", files.to_json(content))

    def answer(*_: object) -> None:
        files.write(path_of(storage, Process(executor="near"), "reload"), files.to_json({"changed": ["destinations"]}))

    with ExitStack() as running:
        for executor in ("far", "near", "with-its-own"):
            assert running.enter_context(files.try_lock(lock_path(storage, Process(executor=executor))))
            publish(executor, "other.example")
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

            with pytest.raises(InputError, match=r"no node runs|has just ended"):
                list(reload(settings, path))

        stranger.communicate(b"\n", timeout=30)
    assert stranger.returncode == 0


def _with_kinds(settings: Settings, *kinds: str) -> Settings:
    (destination,) = settings.destinations
    assert isinstance(destination, DicomDestination)
    return replace(settings, destinations=(replace(destination, outputs=kinds),))


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
        (lambda settings: _with_kinds(settings, "sr", "gsps", "sc"), None, ["destinations.outputs"]),
        (lambda settings: _with_kinds(settings, "sr", "gsps", "sc"), Role.SENDER, []),
        (lambda settings: _with_kinds(settings, "sr"), None, []),
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


BUILT_IN = Path(prompts.__file__).with_name("prompt_sets") / "chexpert14.toml"
RENAMED = ('phrases = ["Edema"]', 'phrases = ["Water in the lung"]')


def write_set(path: Path, version: str, *changes: tuple[str, str]) -> str:
    """Write a prompt set; changes: what stands in the built-in set, and what instead of it. Returns its hash."""
    text = BUILT_IN.read_text(encoding="utf-8").replace('version = "1.0"', f'version = "{version}"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


WRONG = {
    "own.toml: prompt Edema: key: 'Edema' must be a snake_case word": ('key = "edema"', 'key = "Edema"'),
    "own.toml: Illegal character": ('key = "edema"', 'key = "edema'),
    "prompt edema: this model never learned: unlearned": ('phrases = ["Edema"]', 'phrases = ["unlearned"]'),
}


def test_the_shipped_model_looks_at_prompts_before_they_are_used(phantom_model: Path) -> None:
    first, *others = PROMPTS.prompts
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)
    regions = tuple(other for other in others if other.kind == "region")

    for changed, said in (
        ((replace(first, phrases=("Tuberculosis",)), *others), "prompt atelectasis: this model never learned: tuberc"),
        (tuple(others), r"decisions\.thresholds\.atelectasis belongs to no prompt"),
        (regions, r"decisions\.thresholds\.atelectasis belongs to no prompt"),  # the first of several
    ):
        with pytest.raises(InputError, match=said):
            reader.prepare(replace(PROMPTS, prompts=changed))
    reader.prepare(replace(PROMPTS, prompts=(*others, first)))


def delivery(destination: str, uid: str) -> Delivery:
    return Delivery(destination=destination, study_uid="1", sop_instance_uid=uid, kind="sr")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.drill(part="processes"))])
def test_abandon_ends_what_is_open_for_a_removed_destination_and_spares_a_configured_one_unless_forced(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    settings = settings_for(tmp_path / "node", archive_port=1)
    settings.storage.directory.mkdir()
    if kind == "postgresql":
        settings = on_database(settings, request.getfixturevalue("postgres").url)
    open_states = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.PARKED)
    with closing(Ledger(database.open_ledger(settings.storage))) as ledger:
        for number, state in enumerate((*open_states, DeliveryState.SENT, DeliveryState.COMMITTED)):
            ledger.set_delivery(delivery("gone", f"1.{number}"), state, attempts=1)
        ledger.set_sent(delivery("gone", "1.9"), attempts=1, awaits_commitment=True)
        ledger.set_delivery(delivery("archive", "1.0"), DeliveryState.PARKED, attempts=1)

        assert abandon(settings, "gone") == 4
        assert abandon(settings, "gone") == 0
        with pytest.raises(InputError, match=r"still in the settings; remove it there .* or add --force"):
            abandon(settings, "archive")
        with pytest.raises(InputError, match="there are no deliveries to it"):
            abandon(settings, "archvie")

        assert ledger.overview().deliveries == {
            ("gone", "abandoned"): 3, ("gone", "sent"): 2, ("gone", "committed"): 1, ("archive", "parked"): 1
        }  # fmt: skip
        assert ledger.open_deliveries() == []
        assert not ledger.is_delivered("1")
        content = status(settings)
        assert [parked.stage for parked in ledger.parked()] == ["deliver archive"]
        assert (content["ready"], content["abandoned"]) == (False, {"gone": 3}), "no process runs"
        assert "destination gone: abandoned 3" in render(content, zone=settings.site.zone)
        assert abandon(settings, "archive", force=True) == 1
        assert ledger.is_delivered("1")
