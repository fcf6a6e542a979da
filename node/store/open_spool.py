"""Opens the spool of the service: the disk is tried, and what is not the node's is moved away."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node import log
from node.config import StorageSettings
from node.store import strange_files
from node.store.folder_probe import require_honest
from node.store.spool import Spool

_MOST_NAMED: Final = 100
_LONGEST_NAME: Final = 200


def open_spool(storage: StorageSettings, *, character_set: str) -> Spool:
    """Open the spool; character_set: as in `Spool`. Raises InputError if the folder is not honest."""
    is_shared = bool(storage.database_url)
    require_honest(storage.directory, is_shared=is_shared)
    spool = Spool(storage.directory, min_free_mib=storage.min_free_mib, character_set=character_set)
    if swept := spool.sweep(is_shared=is_shared):
        log.get().info("spool.swept", files=swept)
    moved = strange_files.set_aside(storage.directory)
    for path in moved[:_MOST_NAMED]:
        log.get().warning("spool.set_aside", name=_printable(path))
    if len(moved) > _MOST_NAMED:
        log.get().warning("spool.set_aside", files=len(moved))
    return spool


def _printable(path: Path) -> str:
    """Return a path for a line of the log: a name that somebody gave may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(path))[:_LONGEST_NAME]
