"""Callers, destinations and prompts that a running node takes from its changed settings, or refuses as a whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from node import config
from node.commands.operate import reload
from node.config import Caller, ModelSettings, Settings
from node.dicom.identity import VERSION
from node.domain import ModelIdentity
from node.errors import InputError
from node.jobs import processes
from node.jobs.processes import Process, Role, lock_path, path_of
from node.read import prompts
from node.read.model import open_reader
from node.service.running import needs_restart
from node.settings.destinations import DestinationTable, DicomDestination
from node.store import files
from tests.support import compared, films, peers
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service, on_database, run_command, settings_for
from tests.support.spoken import PROMPTS

NEW = Caller(ae_title="NEWROOM", hosts=(LOOPBACK,))


def with_caller(settings: Settings) -> Settings:
    return replace(settings, listener=replace(settings.listener, callers=(*settings.listener.callers, NEW)))


def write(path: Path, settings: Settings) -> None:
    path.write_text(config.render(settings), encoding="utf-8")


def made(kept: peers.Received) -> tuple[str, str]:
    return kept.dataset.StudyInstanceUID, kept.dataset.Modality


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

        with peers.ReceivingArchive() as archive:
            (known,) = changed.destinations
            assert isinstance(known, DicomDestination)
            write(node.settings_path, replace(changed, destinations=(replace(known, port=archive.port),)))
            assert run_command("reload", node.settings_path).stdout == "node: destinations in use\n"
            later = films.as_another(films.thumbnail(), "later", study="later")
            assert peers.send(later, port=node.dicom_port) == 0
            archive.wait_for_kept(2)

            changed = replace(changed, destinations=(replace(known, port=archive.port),))
            write_set(tmp_path / "own.toml", "2", RENAMED)
            renamed = replace(settings.model, prompts=str(tmp_path / "own.toml"))
            write(node.settings_path, replace(changed, model=renamed))
            refused = run_command("reload", node.settings_path)
            write(node.settings_path, replace(changed, model=replace(renamed, uncompared="accept")))
            taken = run_command("reload", node.settings_path)
            assert (refused.returncode, "was never compared, with these prompts" in refused.stderr) == (2, True)
            assert taken.stdout == "node: model.prompts, model.uncompared in use\n", taken.stderr
            assert 'prompts="own 2"' in node.metrics()
            last = films.as_another(films.thumbnail(), "last", study="last")
            node.read(last)
            of_last = (last.StudyInstanceUID, "SR")
            archive.wait_until(lambda: of_last in [made(kept) for kept in archive.kept])
            (report,) = (kept for kept in archive.kept if made(kept) == of_last)
            assert b"Water in the lung is seen here." in report.content
            _, asked = node.ask("GET", "/api/v1/prompts")
            assert "Water in the lung" in cast(list[str], asked["suggestions"])
            place = f"/api/v1/studies/{last.StudyInstanceUID}/films/{last.SOPInstanceUID}/questions"
            status, answer = node.ask("POST", place, {"questions": [{"prompt": "Water in the lung"}]})
            assert (status, "'prompts': 'own 2'" in str(answer)) == (201, True)
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
        this = {"machine": machine, "pid": os.getpid(), "started": started("self")}
        lock_path(storage, Process(executor=executor)).write_bytes(files.to_json(this))
        content = {**this, "executor": executor, "settings": str(used.resolve())}
        files.write(storage.directory / f"running-{executor}.json", files.to_json(content))

    def answer(*_: object) -> None:
        files.write(path_of(storage, Process(executor="near"), "reload"), files.to_json({"changed": ["destinations"]}))

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

            with pytest.raises(InputError, match=r"no node runs|has just ended"):
                list(reload(settings, path))

        stranger.communicate(b"\n", timeout=30)
    assert stranger.returncode == 0


def started(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


def _with_kinds(settings: Settings, *kinds: str) -> Settings:
    destination = settings.destinations[0]
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


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node whose prompt set is a file of its own, and its archive."""

    service: Service
    settings: Settings
    archive: ReceivingArchive

    @property
    def path(self) -> Path:
        return Path(self.settings.model.prompts)

    def send(self, name: str) -> str:
        """Send a film of a study of its own; its UID."""
        film = films.as_another(films.thumbnail(), name, study=name)
        assert peers.send(film, port=self.service.dicom_port) == 0
        return str(film.SOPInstanceUID)

    def reload(self) -> subprocess.CompletedProcess[str]:
        return run_command("reload", self.service.settings_path)

    def reports(self, count: int) -> list[str]:
        """The text in the reports of so many films, in the order in which the archive got them."""
        self.service.wait_for("delivery.sent", count=2 * count)
        reports = [kept for kept in self.archive.kept if kept.dataset.Modality == "SR"]
        return [report.content.decode("utf-8", errors="replace") for report in reports]

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection(LOOPBACK, self.service.http_port, timeout=30)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text


def write_set(path: Path, version: str, *changes: tuple[str, str]) -> str:
    """Write a prompt set; changes: what stands in the built-in set, and what instead of it. Returns its hash."""
    text = BUILT_IN.read_text(encoding="utf-8").replace('version = "1.0"', f'version = "{version}"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def running(folder: Path, *, model: ModelSettings | None = None) -> Iterator[Node]:
    write_set(folder / "own.toml", "1")
    with ReceivingArchive() as archive:
        model = replace(model or ModelSettings(uncompared="accept"), prompts=str(folder / "own.toml"))
        settings = settings_for(folder / "node", archive_port=archive.port, model=model)
        with Service(settings) as service:
            yield Node(service=service, settings=settings, archive=archive)
            assert service.stop() == 0


def named_in(report: str) -> set[str]:
    """The prompt sets that a report names, with their hashes."""
    return set(re.findall(r"prompt set (own \d \(sha256 \w+\))", report))


WRONG = {
    "own.toml: prompt Edema: key: 'Edema' must be a snake_case word": ('key = "edema"', 'key = "Edema"'),
    "own.toml: Illegal character": ('key = "edema"', 'key = "edema'),
    "prompt edema: this model never learned: unlearned": ('phrases = ["Edema"]', 'phrases = ["unlearned"]'),
}


@pytest.mark.drill(part="processes")
def test_a_wrong_set_is_refused_and_a_good_one_is_used_from_the_next_round(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        first, text = node.path.read_bytes(), node.service.settings_path.read_text(encoding="utf-8")
        destination = node.settings.destinations[0]
        assert isinstance(destination, DicomDestination)
        changed = replace(node.settings, destinations=(replace(destination, name="other"),))
        node.service.settings_path.write_text(config.render(changed), encoding="utf-8")
        for said, change in WRONG.items():
            write_set(node.path, "2", change)
            refused = node.reload()
            assert (refused.returncode, said in refused.stderr) == (2, True)
        node.service.settings_path.write_text(text, encoding="utf-8")
        node.path.write_bytes(first)
        (tmp_path / "hold").touch()
        node.send("held")
        node.service.wait_for("study.ready")
        second = write_set(node.path, "2", RENAMED)

        done = node.reload()
        (tmp_path / "hold").unlink()
        node.send("next")
        reports = node.reports(2)

        assert (done.returncode, done.stdout) == (0, "node: model.prompts in use\n"), done.stderr
        assert [named_in(report) for report in reports] == [
            {f"own 1 (sha256 {hashlib.sha256(first).hexdigest()})"},
            {f"own 2 (sha256 {second})"},
        ]
        assert ["Water in the lung is seen here." in report for report in reports] == [False, True]
        assert node.service.logged("delivery.sent")[0]["destination"] == "archive", "the rest of the file was refused"
        assert node.service.logged("prompts.reloaded")[0]["prompts"] == "own 2"
        assert "Water in the lung" in node.get("/api/v1/prompts")
        assert [line for line in node.get("/metrics").splitlines() if line.startswith("cxr_build_info")] == [
            f'cxr_build_info{{model="scripted 1",prompts="own 2",version="{VERSION}"}} 1.0'
        ]
        assert node.reload().stdout == "node: nothing has changed\n"


@pytest.mark.drill(part="processes")
def test_a_set_that_was_not_compared_is_refused(tmp_path: Path, phantom_model: Path) -> None:
    identity = ModelIdentity(name="scripted", version="1", weights_sha256="0" * 64, engine="scripted")
    directory = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    with running(tmp_path, model=ModelSettings(directory=directory)) as node:
        in_use = compared.compared(identity, prompts.load(str(node.path)))
        write_set(node.path, "2", RENAMED)
        refused = node.reload()
        compared.write(directory, old=in_use, new=compared.compared(identity, prompts.load(str(node.path))))
        taken = node.reload()
        write_set(node.path, "3")
        accepting = replace(node.settings, model=replace(node.settings.model, uncompared="accept"))
        node.service.settings_path.write_text(config.render(accepting), encoding="utf-8")
        accepted = node.reload()

        assert refused.returncode == 2
        assert "scripted 1 was never compared, with these prompts" in refused.stderr
        assert taken.stdout == "node: model.prompts in use\n", taken.stderr
        assert node.service.logged("model.promoted")[0]["prompts"] == "own 2"
        assert accepted.stdout == "node: model.uncompared, model.prompts in use\n", accepted.stderr
        assert node.service.logged("model.accepted")[0]["prompts"] == "own 3"


def test_the_shipped_model_looks_at_prompts_before_they_are_used(phantom_model: Path) -> None:
    first, *others = PROMPTS.prompts
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)

    with pytest.raises(InputError, match="prompt atelectasis: this model never learned: tuberculosis"):
        reader.prepare(replace(PROMPTS, prompts=(replace(first, phrases=("Tuberculosis",)), *others)))
    with pytest.raises(InputError, match=r"decisions\.thresholds\.atelectasis belongs to no prompt"):
        reader.prepare(replace(PROMPTS, prompts=tuple(others)))
    with pytest.raises(InputError, match=r"decisions\.thresholds\.atelectasis belongs to no prompt"):  # the first
        reader.prepare(replace(PROMPTS, prompts=tuple(other for other in others if other.kind == "region")))
    reader.prepare(replace(PROMPTS, prompts=(*others, first)))
