"""Checks the database: integrity and mode of the SQLite files, or the answer of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node.checks import Check, fault, note, ok
from node.commands.doctor.storage import is_open_to_others
from node.config import Settings, StorageSettings
from node.errors import NodeError
from node.store import database

_NAME: Final = "database"
_SLOW_SECONDS: Final = 1.0
_APART_SECONDS: Final = 10.0


def check_database(settings: Settings) -> Iterator[Check]:
    """Read the SQLite files completely, or ask PostgreSQL."""
    if settings.storage.database_url:
        yield from _server(settings.storage)
        return
    for path in database.sqlite_files(settings.storage):
        yield from _file(path)
    for path in database.files_set_aside(settings.storage):
        yield note(
            f"{_NAME} {path.name}",
            "a damaged file that a start moved aside; check the disk, and remove the file when it is no longer needed",
        )


def _file(path: Path) -> Iterator[Check]:
    name = f"{_NAME} {path.name}"
    if not path.exists():
        yield ok(name, "does not exist yet; the first start creates it")
    elif not database.is_whole(path):
        yield fault(name, f"{path} is damaged; restart the node, which moves it aside and builds a new one")
    elif is_open_to_others(path):
        yield note(name, f"{path} is good, and open to other users; chmod 600 it, or restart the node, which does")
    else:
        yield ok(name, f"{path} is good")


def _server(storage: StorageSettings) -> Iterator[Check]:
    began = time.monotonic()
    try:
        server = database.ask_server(storage)
    except NodeError as error:
        yield fault(_NAME, f"PostgreSQL cannot be asked ({error}); start it, or correct storage.database_url")
        return
    seconds, apart = time.monotonic() - began, abs((server.now - datetime.now(UTC)).total_seconds())
    version = f"PostgreSQL {server.version}"
    if server.is_standby:
        yield fault(_NAME, f"{version} is a standby, which accepts no writes; name the primary in storage.database_url")
    elif server.forbidden:
        schemas = " and ".join(server.forbidden)
        yield fault(_NAME, f"{version}: the node's user may not create tables in {schemas}; GRANT CREATE ON DATABASE")
    elif seconds > _SLOW_SECONDS:
        yield note(_NAME, f"{version} answers, but took {seconds:.1f} s; look at its load and the network")
    else:
        yield ok(_NAME, f"{version} answers in {seconds * 1000:.0f} ms, and the node may create its tables")
    if apart > _APART_SECONDS:
        yield note(f"{_NAME} clock", f"the clocks of PostgreSQL and this machine differ by {apart:.0f} s; set them")
