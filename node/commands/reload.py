"""Has the running processes of a node read their settings file again, and waits for their answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.config import Settings
from node.domain import JsonObject
from node.errors import ConfigError, InputError, RetryLater
from node.jobs import processes
from node.store import files

_PATIENCE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


def reload(settings: Settings, path: Path) -> Iterator[str]:
    """Send SIGHUP to every process on this machine, and return a line for each that uses the file now.

    Processes of the same node on other machines get a line that names their machine; those that were started with
    another file, as several on one machine may be, get one that names the file.

    settings: of that file, which must have no mistake
    Raises InputError if no process can be asked, ConfigError when one refuses the file, RetryLater without an answer.
    """
    running = list(processes.running(settings.storage))
    here = [content for content in running if content.get("machine") == socket.gethostname()]
    far = [content for content in running if content not in here]
    elsewhere = [f"{_name(content)} runs on {content.get('machine')}; run reload there" for content in far]
    if not running and processes.is_starting(settings.storage):
        raise RetryLater(
            f"the node on storage.directory {settings.storage.directory} is still starting; run reload again when its "
            "log says service.listening"
        )
    if not running:
        raise InputError(f"no node runs on storage.directory {settings.storage.directory}; start it with serve")
    if not here:
        raise InputError("; ".join(elsewhere))
    asked = [content for content in here if _file(content) == path.resolve()]
    others = [content for content in here if content not in asked]
    elsewhere += [f"{_name(content)} was started with {_file(content)}; name that file" for content in others]
    if not asked:
        raise InputError("; ".join(elsewhere))
    yield from elsewhere
    for content in asked:
        yield _asked(settings, content)


def _name(content: JsonObject) -> str:
    return str(content.get("executor", "node"))


def _file(content: JsonObject) -> Path:
    return Path(str(content.get("settings", "")))


def _asked(settings: Settings, content: JsonObject) -> str:
    executor = _name(content)
    answer_path = processes.reload_path(settings.storage, processes.Process(executor=executor))
    before = files.read_json(answer_path)
    if not processes.signal_reload(content):
        raise InputError(f"{executor} has just ended; start it with serve")
    end = time.monotonic() + _PATIENCE_SECONDS
    while (answer := files.read_json(answer_path)) is None or answer == before:
        if time.monotonic() > end:
            raise RetryLater(
                f"{executor} has not answered for {_PATIENCE_SECONDS:g} s; while it is still starting, it reads the "
                "file again when it is ready; else look at its log"
            )
        time.sleep(_POLL_SECONDS)
    mistakes, changed = answer.get("mistakes"), answer.get("changed")
    if isinstance(mistakes, list) and mistakes:
        raise ConfigError([*map(str, mistakes), f"{executor} keeps all of its old settings"])
    names = ", ".join(map(str, changed)) if isinstance(changed, list) else ""
    return f"{executor}: {f'{names} in use' if names else 'nothing has changed'}"
