"""Which processes run on one storage folder: a lock and a small file for each, for `node status` and against doubles.

lock, running.json                              the one process that does everything on SQLite
lock-<executor>, running-<executor>.json        each of several on PostgreSQL

The time of a lock says when its process was last seen alive by whoever cleans up, or when it was first started.
"""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from node import durable
from node.config import HttpSettings, StorageSettings
from node.domain import JsonObject
from node.roles import Process

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A process that has said it runs; ready: what it says itself, None when it must be asked on its own machine."""

    executor: str
    ready: bool | None


def lock_path(storage: StorageSettings, process: Process) -> Path:
    """What a process locks as long as it lives; on SQLite there is but one, whatever it is called."""
    return storage.directory / (f"lock-{process.executor}" if storage.database_url else "lock")


@contextmanager
def published(storage: StorageSettings, process: Process, *, http_port: int) -> Iterator[None]:
    """Say that a process runs, until it ends in order."""
    path = storage.directory / (f"running-{process.executor}.json" if storage.database_url else "running.json")
    content = {
        "executor": process.executor,
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "http_port": http_port,
    }
    durable.write(path, durable.to_json(content))
    yield
    path.unlink(missing_ok=True)


def remove_gone(directory: Path, *, before: datetime) -> None:
    """Remove what processes left behind that were not seen alive since a time."""
    for path in directory.glob("lock-*"):
        if path.stat().st_mtime >= before.timestamp():
            continue
        with durable.try_lock(path) as is_gone:
            if is_gone:
                path.with_name(f"running-{path.name.removeprefix('lock-')}.json").unlink(missing_ok=True)
                path.unlink()
            else:
                os.utime(path)


def states(storage: StorageSettings, http: HttpSettings) -> list[State]:
    """Ask every process that said it runs; one that does not answer is not ready."""
    return [
        State(executor=str(content.get("executor", "node")), ready=_is_ready(content, http))
        for path in sorted(storage.directory.glob("running*.json"))
        if (content := durable.read_json(path)) is not None
    ]


def _is_ready(content: JsonObject, http: HttpSettings) -> bool | None:
    if content.get("machine", socket.gethostname()) != socket.gethostname():
        return None
    host = f"[{http.host}]" if ":" in http.host else http.host
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy of the environment
    try:
        with direct.open(f"http://{host}:{content['http_port']}/ready", timeout=_PATIENCE_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return False
