"""Checks the database, and the storage folder: can files be stored, is there space, who owns it, who uses it.

Of SQLite files integrity and mode are checked, of PostgreSQL that it answers.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node.checks import Check, CheckState, fault, note, ok
from node.config import Settings, StorageSettings
from node.errors import InputError, NodeError
from node.health.checks import check_room
from node.jobs import processes
from node.store import database
from node.store.folders import fault_of_folder, require_known_format

_NAME: Final = "storage"
_OTHERS: Final = 0o077
"""The permissions of a folder's or file's group and of everybody else."""
_DATABASE: Final = "database"
_SLOW_SECONDS: Final = 1.0
_APART_SECONDS: Final = 10.0


def check_storage(settings: Settings) -> Iterator[Check]:
    """Store a file in the storage folder as a film is stored, and remove it; check space, owner and processes."""
    storage = settings.storage
    try:
        if not storage.directory.exists():
            yield _absent(storage.directory)
            return
        require_known_format(storage.directory)
        complaint = fault_of_folder(storage.directory, is_shared=bool(storage.database_url))
    except InputError as error:  # as `serve` says it
        yield fault(_NAME, str(error))
        return
    except OSError as error:
        yield _unusable(storage, error)
        return
    if complaint is not None:
        yield fault(_NAME, f"{storage.directory}: {complaint}")
        return
    room = check_room(storage)
    usable = ok(_NAME, f"{storage.directory} can be written, synced, renamed and locked; {room.message}")
    yield usable if room.state is CheckState.OK else room
    yield from _access(storage.directory)
    yield from _processes(settings)


def is_open_to_others(path: Path) -> bool:
    """Say whether anybody but the owner has a permission."""
    return bool(path.stat().st_mode & _OTHERS)


def _absent(directory: Path) -> Check:
    above = next(folder for folder in directory.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        return fault(_NAME, f"{directory} does not exist and cannot be created in {above}; {_remedy(directory)}")
    return note(
        _NAME,
        f"{directory} does not exist; the first start creates it; if the node has run before, mount its disk or "
        "correct storage.directory",
    )


def _unusable(storage: StorageSettings, error: OSError) -> Check:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return fault(_NAME, f"{storage.directory} is full ({error.strerror}); free space, films are refused until then")
    if error.errno in (errno.EROFS, errno.EIO):
        return fault(_NAME, f"{storage.directory} cannot be used ({error.strerror}); check the disk and its mount")
    return fault(_NAME, f"{storage.directory} cannot be used ({error.strerror}); {_remedy(storage.directory)}")


def _access(directory: Path) -> Iterator[Check]:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        yield note(
            "storage owner",
            f"{directory} belongs to user {found.st_uid}, and this command ran as {os.geteuid()}; run it as the user "
            "of the node to see what the node may do",
        )
    if is_open_to_others(directory):
        yield note(
            "storage mode", f"{directory} is open to other users (mode {found.st_mode & 0o7777:04o}); chmod 700 it"
        )


def _processes(settings: Settings) -> Iterator[Check]:
    """Report the processes of this node; one that is not ready gets a note."""
    for process in processes.states(settings.storage, settings.http):
        name = f"process {process.executor}"
        if process.ready is None:
            yield ok(name, "runs on another machine; run this command there for its ports")
        elif process.ready:
            yield ok(name, "runs on the storage folder and is ready")
        elif process.answers:
            yield note(name, "runs on the storage folder and is not ready; its /ready shows which part is not good")
        else:
            yield note(name, "has not ended in order and does not answer: it was killed or hangs; start it again")


def _remedy(directory: Path) -> str:
    return (
        f"give the node's user a folder of its own there (chown, chmod 700), or correct storage.directory {directory}"
    )


def check_database(settings: Settings) -> Iterator[Check]:
    """Read the SQLite files completely, or ask PostgreSQL."""
    if settings.storage.database_url:
        yield from _server(settings.storage)
        return
    for path in database.sqlite_files(settings.storage):
        yield from _file(path)
    for path in database.files_set_aside(settings.storage):
        yield note(
            f"{_DATABASE} {path.name}",
            "a damaged file that a start moved aside; check the disk, and remove the file when it is no longer needed",
        )


def _file(path: Path) -> Iterator[Check]:
    name = f"{_DATABASE} {path.name}"
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
        yield fault(_DATABASE, f"PostgreSQL cannot be asked ({error}); start it, or correct storage.database_url")
        return
    seconds, apart = time.monotonic() - began, abs((server.now - datetime.now(UTC)).total_seconds())
    version = f"PostgreSQL {server.version}"
    if server.is_standby:
        yield fault(
            _DATABASE, f"{version} is a standby, which accepts no writes; name the primary in storage.database_url"
        )
    elif server.forbidden:
        schemas = " and ".join(server.forbidden)
        yield fault(
            _DATABASE, f"{version}: the node's user may not create tables in {schemas}; GRANT CREATE ON DATABASE"
        )
    elif seconds > _SLOW_SECONDS:
        yield note(_DATABASE, f"{version} answers, but took {seconds:.1f} s; look at its load and the network")
    else:
        yield ok(_DATABASE, f"{version} answers in {seconds * 1000:.0f} ms, and the node may create its tables")
    if apart > _APART_SECONDS:
        yield note(f"{_DATABASE} clock", f"the clocks of PostgreSQL and this machine differ by {apart:.0f} s; set them")
