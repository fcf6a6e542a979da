"""The processes of the service: what each of them does, and which of them run on one storage folder.

Each running process holds a lock and writes a small file. `node status` reads the file; the lock keeps a second process
from using the same name. The lock's file says which process holds it: a small file may be left by one that was killed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from node.config import StorageSettings
from node.domain import JsonObject
from node.errors import InputError
from node.settings.http import HttpSettings
from node.store import files

FileName: TypeAlias = Literal["running", "reload", "refused-callers"]
"""The files of a process: its state, the result of its last reload, and the callers that it refused."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(StrEnum):
    """The part of the work that a process does if it does not do everything."""

    LISTENER = "listener"
    WORKER = "worker"
    SENDER = "sender"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the service; without a role it does everything.

    executor: its name. Keep the name across restarts: the process then continues the work it had when it was killed
    """

    only: Role | None = None
    executor: str = "node"

    @property
    def receives(self) -> bool:
        """Whether the process receives films and orders."""
        return self.only in (None, Role.LISTENER)

    @property
    def reads(self) -> bool:
        """Whether the process opens the model, reads films and removes old studies."""
        return self.only in (None, Role.WORKER)

    @property
    def sends(self) -> bool:
        """Whether the process delivers results."""
        return self.only in (None, Role.SENDER)


def process_of(storage: StorageSettings, *, only: Role | None, executor: str | None) -> Process:
    """Check the role and name of a process. Raises InputError for a combination that is not allowed."""
    if only is not None and not storage.database_url:
        raise InputError(
            f"--only {only}: set storage.database_url; with SQLite one process does everything, without --only"
        )
    name = executor if executor is not None else (only or "node")
    if not _NAME.fullmatch(name):
        raise InputError(f"--executor {name!r}: use 1 to 64 letters, digits, dots, dashes and underscores")
    return Process(only=only, executor=str(name))


_PATIENCE_SECONDS = 5.0
_READY, _NOT_READY = 200, 503


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state that a running process reports.

    ready: its own answer to `/ready`; None for a process on another machine, which cannot be queried from here
    answers: whether it answers on its HTTP port, ready or not
    ports: its open ports
    """

    executor: str
    ready: bool | None
    answers: bool
    ports: frozenset[int]


def lock_path(storage: StorageSettings, process: Process) -> Path:
    """Return the file that a process locks while it runs. On SQLite all names share one lock."""
    return storage.directory / (f"lock-{process.executor}" if storage.database_url else "lock")


@contextmanager
def held(storage: StorageSettings, process: Process) -> Iterator[bool]:
    """Hold the lock of a process, and write its number into the lock's file; yields whether the lock was free."""
    path = lock_path(storage, process)
    with files.try_lock(path) as is_free:
        if is_free:
            with suppress(OSError):  # a full disk: `reload` then refuses to signal, and the node runs
                path.write_bytes(files.to_json(_this_process()))
        yield is_free


def path_of(storage: StorageSettings, process: Process, file: FileName) -> Path:
    """Return a file of a process. On SQLite all names share one."""
    return storage.directory / (f"{file}-{process.executor}.json" if storage.database_url else f"{file}.json")


@contextmanager
def published(
    storage: StorageSettings, process: Process, *, ports: Mapping[str, int], settings: Path | None = None
) -> Iterator[None]:
    """Write the state file of this process, and remove it at its end, also of a start that is refused.

    ports: the real ports by name, `http_port` among them
    settings: the settings file that the process reads again on SIGHUP
    """
    path = path_of(storage, process, "running")
    content = {
        "executor": process.executor,
        **_this_process(),
        **({"settings": str(settings.resolve())} if settings is not None else {}),
        **ports,
    }
    files.write(path, files.to_json(content))
    try:
        yield
    finally:
        with suppress(OSError):  # a broken disk must not hide why the process ends
            path.unlink()


def remove_gone(directory: Path, *, before: datetime) -> None:
    """Remove the files of processes that have ended before a time."""
    for path in directory.glob("lock-*"):
        if path.stat().st_mtime >= before.timestamp():
            continue
        with files.try_lock(path) as is_gone:
            if is_gone:
                for name in get_args(FileName):
                    path.with_name(f"{name}-{path.name.removeprefix('lock-')}.json").unlink(missing_ok=True)
                path.unlink()
            else:
                os.utime(path)


def running(storage: StorageSettings) -> Iterator[JsonObject]:
    """Yield the state file of every process that holds its lock.

    The file of a killed process is left out, also while its successor has the lock and has published nothing yet.
    """
    for path in sorted(storage.directory.glob("running*.json")):
        content = files.read_json(path)
        if content is None:
            continue
        lock = lock_path(storage, Process(executor=str(content.get("executor", "node"))))
        with files.try_lock(lock) as is_gone:
            holder = None if is_gone else files.read_json(lock)
        if holder and all(content.get(name) == value for name, value in holder.items()):
            yield content


def signal_reload(published: JsonObject) -> bool:
    """Send SIGHUP to a process on this machine; return whether it still runs.

    published: the entry from `running`. If another process has its number by now, no signal is sent.
    """
    pid = int(str(published["pid"]))
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if _started(pid) != published.get("started"):  # the descriptor refers to the process that is compared here
            return False
        signal.pidfd_send_signal(process, signal.SIGHUP)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def _this_process() -> JsonObject:
    pid = os.getpid()
    return {"machine": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])


def states(
    storage: StorageSettings, http: HttpSettings, *, patience_seconds: float = _PATIENCE_SECONDS
) -> list[ProcessState]:
    """Query all published processes at the same time; one that does not answer in time is not ready."""
    contents = map(files.read_json, sorted(storage.directory.glob("running*.json")))
    published = [content for content in contents if content is not None]
    with ThreadPoolExecutor(max_workers=max(1, len(published))) as pool:
        return list(pool.map(partial(_state, http=http, patience_seconds=patience_seconds), published))


def _state(content: JsonObject, *, http: HttpSettings, patience_seconds: float) -> ProcessState:
    is_here = content.get("machine", socket.gethostname()) == socket.gethostname()
    status = _ready_status(content, http, patience_seconds) if is_here else None
    return ProcessState(
        executor=str(content.get("executor", "node")),
        ready=status == _READY if is_here else None,
        answers=status in (_READY, _NOT_READY),
        ports=frozenset(port for name, port in content.items() if name.endswith("_port") and isinstance(port, int)),
    )


def _ready_status(content: JsonObject, http: HttpSettings, patience_seconds: float) -> int | None:
    """Return the HTTP status of `/ready`; None when there is no answer."""
    import httpx2  # a command without running processes saves this import, 60 ms

    host = f"[{http.host}]" if ":" in http.host else http.host
    scheme = "http" if http.tls is None else "https"
    try:
        answer = httpx2.get(
            f"{scheme}://{host}:{content['http_port']}/ready",
            timeout=patience_seconds,
            verify=False,  # it is this machine, and a certificate names the node, not `host`
            trust_env=False,  # no proxy of the environment
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, KeyError):
        return None
    return answer.status_code
