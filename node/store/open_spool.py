"""Opens the spool of the service: tries the disk, and moves aside what has names that the node gives to nothing.

Such files come from people and their tools: copies, notes, what a program for the desktop leaves behind. The node can
neither read them nor tell what they are, and must not stop because of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from node import log
from node.config import StorageSettings
from node.domain import is_uid
from node.store import files, received
from node.store.folders import require_honest
from node.store.spool import Spool

_ASIDE: Final = "aside"
_DOCUMENT: Final = re.compile(r"[A-Za-z0-9._-]+\.json")
_NAMES: Final[Mapping[str, re.Pattern[str]]] = {
    "received": received.FILE_NAME,
    "conflicts": received.FILE_NAME,
    "readings": re.compile(r"[A-Za-z0-9._-]+\.(json|begun)"),
    "outputs": re.compile(r"[0-9.]+(~[0-9a-f]{64})?\.(hl7|[a-z0-9]+\.dcm)"),
    "rounds": re.compile(r"[0-9]+\.json"),
    **dict.fromkeys(("corrections", "released", "questions", "sent", "objects"), _DOCUMENT),
}
"""The folders of a study, and the names of their files."""
_MOST_NAMED: Final = 100
_LONGEST_NAME: Final = 200


def open_spool(storage: StorageSettings, *, character_set: str) -> Spool:
    """Open the spool; character_set: as in `Spool`. Raises InputError if the folder is not honest."""
    is_shared = bool(storage.database_url)
    require_honest(storage.directory, is_shared=is_shared)
    spool = Spool(storage.directory, min_free_mib=storage.min_free_mib, character_set=character_set)
    if swept := spool.sweep(is_shared=is_shared):
        log.get().info("spool.swept", files=swept)
    moved = _set_aside(storage.directory)
    for path in moved[:_MOST_NAMED]:
        log.get().warning("spool.set_aside", name=_printable(path))
    if len(moved) > _MOST_NAMED:
        log.get().warning("spool.set_aside", files=len(moved))
    return spool


def _set_aside(directory: Path) -> list[Path]:
    """Move every strange file and folder into the folder `aside`; returns where each was, below the directory.

    Call it before anything is read. Raises OSError.
    """
    moved = []
    for path in _strange(directory / "studies"):
        where = path.relative_to(directory)
        target = directory / _ASIDE / where.relative_to("studies")
        with suppress(FileNotFoundError):  # another process has moved it
            files.make_folder(target.parent)
            path.rename(_free(target))
            files.sync_folder(target.parent)
            files.sync_folder(path.parent)
            moved.append(where)
    return moved


def _strange(studies: Path) -> Iterator[Path]:
    for study in _entries(studies):
        if study.name.startswith("."):  # a file that is being written, or a study that is being removed
            continue
        if not (is_uid(study.name) and study.is_dir(follow_symlinks=False)):
            yield Path(study.path)
            continue
        for folder in (folder for folder in _entries(Path(study.path)) if folder.name in _NAMES):
            for entry in _entries(Path(folder.path)):
                is_known = _NAMES[folder.name].fullmatch(entry.name) is not None and entry.is_file()
                if not is_known and not entry.name.startswith(files.TEMPORARY):
                    yield Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _free(path: Path) -> Path:
    """Return this path, or one with a number, that nothing has."""
    paths = (path, *(path.with_name(f"{path.name}.{number}") for number in range(1, 10_000)))
    return next(free for free in paths if not os.path.lexists(free))


def _printable(path: Path) -> str:
    """Return a path for a line of the log: a name that somebody gave may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(path))[:_LONGEST_NAME]
