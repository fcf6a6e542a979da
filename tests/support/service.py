"""A node as a process of its own: started, listened to line by line, and always stopped."""

from __future__ import annotations

import atexit
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, Self

import httpx2
from pydicom import dcmread
from pydicom.dataset import Dataset

from node import config
from node.__main__ import main as node_main
from node.config import (
    Caller,
    CorrectionsSettings,
    ListenerSettings,
    ModelSettings,
    OrdersSettings,
    Settings,
    StorageSettings,
    StudySettings,
)
from node.settings.destinations import DicomDestination, Hl7Destination
from node.settings.http import HttpSettings
from tests.paths import REPOSITORY
from tests.support import forked, scripted_node
from tests.support.forked import Forked
from tests.support.mllp import InformationSystem
from tests.support.peers import DIRECT, LOOPBACK, send, send_all

# A run of the tests in the background ignores SIGINT, and hands that on to what it starts.
INTERRUPTIBLE = ("env", "--default-signal=INT")

Line = dict[str, object]

_STOPPED: Final[dict[tuple[str, str], Path]] = {}
"""Folders of nodes that have read a film and ended, by the film and the settings."""


def settings_for(
    directory: Path,
    *,
    archive_port: int,
    archive_ae: str = "ARCHIVE",
    callers: Sequence[str] = ("TESTER",),
    dicom_port: int = 0,
    model: ModelSettings | None = None,
    min_free_mib: int = 1,
    quiet_seconds: float = 0.3,
    corrections_seconds: float = 0.0,
) -> Settings:
    """Settings of a node on free ports that keeps its files in `directory` and sends to one archive.

    corrections_seconds: how long corrections are gathered; by default a report follows each of them at once
    """
    return Settings(
        listener=ListenerSettings(
            port=dicom_port, callers=tuple(Caller(ae_title=title, hosts=(LOOPBACK,)) for title in callers)
        ),
        storage=StorageSettings(directory=directory, min_free_mib=min_free_mib),
        study=StudySettings(quiet_seconds=quiet_seconds, max_seconds=30.0),
        corrections=CorrectionsSettings(quiet_seconds=corrections_seconds),
        http=HttpSettings(port=0),
        model=model or ModelSettings(),
        destinations=(DicomDestination(name="archive", ae_title=archive_ae, host=LOOPBACK, port=archive_port),),
    )


def settings_with(system: InformationSystem, directory: Path, *, archive_port: int) -> Settings:
    """The same for a node that also sends results to an information system, and takes its orders."""
    settings = settings_for(directory, archive_port=archive_port)
    return dataclasses.replace(
        settings,
        destinations=(*settings.destinations, Hl7Destination(name="ris", host=LOOPBACK, port=system.port)),
        orders=OrdersSettings(port=0, hosts=(LOOPBACK,)),
    )


def on_database(settings: Settings, url: str) -> Settings:
    """The same settings with another database."""
    return dataclasses.replace(settings, storage=dataclasses.replace(settings.storage, database_url=url))


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of the node to its end."""
    return forked.run(node_main, [str(argument) for argument in arguments])


def _started(command: Sequence[str], *, descriptors: int | None) -> subprocess.Popen[str]:
    limited = ["sh", "-c", 'ulimit -Sn "$0" && exec "$@"', str(descriptors)] if descriptors else []
    return subprocess.Popen([*limited, *command], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


class Service:
    """One process of the service. `scripted` runs the reader of `tests.support.fakes`, otherwise the settings' model.

    is_fresh: whether an interpreter of its own runs the settings' model, for where time and memory are measured
    only, executor: as `python -m node serve` takes them; several processes may share one storage folder then
    descriptors: the soft limit of the process on open files, where it is not the one of this process
    ready_seconds: how long it may take until it is ready
    """

    def __init__(
        self,
        settings: Settings,
        *,
        scripted: bool = True,
        die_at: int = 0,
        only: str | None = None,
        executor: str | None = None,
        descriptors: int | None = None,
        is_fresh: bool = False,
        ready_seconds: float = 60.0,
    ) -> None:
        name = executor or only
        path = settings.storage.directory.parent / (f"node-{name}.toml" if name else "node.toml")
        path.write_text(config.render(settings), encoding="utf-8")
        self.settings_path = path
        role = [*(["--only", only] if only else []), *(["--executor", executor] if executor else [])]
        serve = ["serve", str(path), *role]
        self._process: Forked | subprocess.Popen[str]
        if is_fresh:
            self._process = _started([sys.executable, "-m", "node", *serve], descriptors=descriptors)
        elif scripted:
            main, arguments = scripted_node.main, [str(path), str(die_at), *role]
            self._process = Forked(main, arguments, descriptors=descriptors)
        else:
            self._process = Forked(node_main, serve, descriptors=descriptors)
        self.lines: list[Line] = []
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._listener.start()
        self.dicom_port = self.http_port = 0
        self._ready_seconds = ready_seconds

    def __enter__(self) -> Self:
        try:
            ready = self.wait_for("service.ready", limit_seconds=self._ready_seconds)
        except AssertionError:
            self.kill()
            raise
        self.dicom_port, self.http_port = int(str(ready.get("dicom_port", 0))), int(str(ready["http_port"]))
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def wait_for(self, event: str, *, count: int = 1, limit_seconds: float = 60.0) -> Line:
        """Wait until an event was logged `count` times; its last line."""
        self._wait(lambda: len(self.logged(event)) >= count, f"{count} x {event}", limit_seconds)
        return self.logged(event)[count - 1]

    def wait_for_line(self, fits: Callable[[Line], bool], *, limit_seconds: float = 60.0) -> None:
        """Wait until a line that fits was logged."""
        self._wait(lambda: any(fits(line) for line in list(self.lines)), "a line", limit_seconds)

    def logged(self, event: str) -> list[Line]:
        """All lines of one event so far."""
        return [line for line in list(self.lines) if line["event"] == event]

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, object]]:
        """Send a request to the interface for programs; the status and the JSON object of its answer."""
        answer = self.request(method, path, body, **headers)
        said: dict[str, object] = answer.json()
        return answer.status_code, said

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        **headers: str,
    ) -> httpx2.Response:
        """Send an HTTP request; a body in bytes is sent as it is, another one as JSON; kind: its media type."""
        return httpx2.request(
            method,
            f"http://{LOOPBACK}:{self.http_port}{path}",
            content=body if isinstance(body, bytes | None) else json.dumps(body),
            headers={"Content-Type": kind, **headers},
            timeout=60,
            trust_env=False,
            verify=False,  # it would read the certificates of the machine, for nothing
        )

    def read(self, *films: Dataset | Path, limit_seconds: float = 60.0) -> None:
        """Send films of one study, and wait until the node has finished it."""
        heads = [film if isinstance(film, Dataset) else dcmread(film, stop_before_pixels=True) for film in films]
        before = self._finished(heads[0].StudyInstanceUID)
        assert send_all(films, port=self.dicom_port) == [0] * len(films)
        self._wait(lambda: self._finished(heads[0].StudyInstanceUID) > before, "the end of the study", limit_seconds)

    def _finished(self, study: str) -> int:
        return sum(line["study"] == study for line in self.logged("study.finished"))

    def metrics(self) -> str:
        """What Prometheus gets when it asks."""
        with DIRECT.open(f"http://{LOOPBACK}:{self.http_port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def wait_until_dead(self, *, limit_seconds: float = 60.0) -> int:
        """Wait for the end of the process; its exit code."""
        code = self._process.wait(timeout=limit_seconds)
        self._listener.join(timeout=10)
        return code

    def stop(self, *, limit_seconds: float = 30.0) -> int:
        """Ask it to stop as a supervisor does; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait_until_dead(limit_seconds=limit_seconds)

    def kill(self) -> None:
        """Cut the power."""
        self._process.kill()
        self.wait_until_dead()
        self._listener.join(timeout=60)  # a server of children notices the end once its imports are done
        if self._listener.is_alive():  # closing the pipe under it would wait for good
            raise AssertionError("a process that the killed one left behind holds its output open")
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _wait(self, condition: Callable[[], bool], what: str, limit_seconds: float) -> None:
        with self._heard:
            heard = self._heard.wait_for(lambda: condition() or self._process.poll() is not None, limit_seconds)
        if not condition():
            state = f"the process ended with {self._process.returncode}" if heard else "it did not come in time"
            raise AssertionError(f"waited for {what}: {state}; it said {self.lines[-5:]}")

    def _listen(self, stream: IO[str]) -> None:
        for text in stream:
            with self._heard:
                self.lines.append(json.loads(text))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()


def read_and_stop(settings: Settings, film: Dataset) -> None:
    """Bring a node to where it has read one film, delivered its report and presentation state, and stopped.

    A node with the same settings but for folder and archive does this once for all tests of a process. Others get a
    copy of its files, and the archive the objects that it wrote.
    """
    directory, (archive,) = settings.storage.directory, settings.destinations
    assert isinstance(archive, DicomDestination)
    storage = dataclasses.replace(settings.storage, directory=Path("any"))
    alike = dataclasses.replace(settings, storage=storage, destinations=(dataclasses.replace(archive, port=1),))
    stopped = _STOPPED.get((film.SOPInstanceUID, repr(alike)))
    if stopped is not None:
        shutil.copytree(stopped, directory)
        for path in sorted(directory.glob("studies/*/outputs/*")):
            assert send(path, port=archive.port, called_ae=archive.ae_title, calling_ae="CHEX") == 0
        return
    with Service(settings) as service:
        assert send(film, port=service.dicom_port) == 0
        service.wait_for("delivery.sent", count=2)
        service.wait_for("study.finished")
        assert service.stop() == 0
    kept = Path(tempfile.mkdtemp(prefix="stopped-node-"))
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    _STOPPED[film.SOPInstanceUID, repr(alike)] = shutil.copytree(directory, kept / "node")
