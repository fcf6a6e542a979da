"""Index from the name of an object, output or question to its studies, without a walk through all studies.

    index/<three digits>/<name>~<study>      an empty file; name: a UID, or the id of a question

A process makes an entry before it writes the file that the entry is for; the entry stays as long as the marks of
rounds. A killed process leaves at most an entry without a file. Entries are not synced: the first look-up of each
process adds entries that a power cut or a restored copy lost.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.domain import is_uid
from node.store import files

_SHARDS: Final = 0x1000
_UID: Final = re.compile(r"[0-9.]*[0-9]")
_MARKED: Final = re.compile(rb'"([0-9]+(?:\.[0-9]+)+)[~"]')
_NAMED: Final = ("received", "conflicts", "outputs", "questions")
_OBJECTS: Final = _NAMED[:3]


class Index:
    """The index of one spool; studies: its folder of studies. Thread-safe."""

    def __init__(self, folder: Path, studies: Path) -> None:
        self._folder, self._studies = folder, studies
        self._completing, self._is_complete = threading.Lock(), False

    def add(self, name: str, study_uid: str) -> None:
        """Add the entry of a file that is about to be written. Raises OSError."""
        path = self._shard(name) / f"{name}~{study_uid}"
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)

    def find(self, name: str) -> list[str]:
        """Return the studies that contain a name; only those that still have the object, if any has it."""
        with self._completing:
            if not self._is_complete:
                self._complete()
                self._is_complete = True
        found = self.noted(name)
        return [study for study in found if self._has(study, name)] or found if len(found) > 1 else found

    def noted(self, name: str) -> list[str]:
        """Return the studies in a name's entries, without adding missing entries first."""
        return [study for study in _studies_in(self._shard(name), name) if (self._studies / study).is_dir()]

    def _complete(self) -> None:
        """Add every missing entry."""
        known = {entry.name for shard in _entries(self._folder) for entry in _entries(Path(shard.path))}
        for name, study_uid in self._walk():
            if f"{name}~{study_uid}" not in known:
                self.add(name, study_uid)

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the files of all studies, then the names in the marks of their rounds."""
        studies = [Path(study.path) for study in _entries(self._studies) if is_uid(study.name)]
        for study in studies:
            for file in (file for place in _NAMED for file in _entries(study / place)):
                name = _name_of(file.name)
                if name is not None:
                    yield name, study.name
        for study in studies:
            for mark in _entries(study / "rounds"):
                for name in set(_MARKED.findall(files.content_of(Path(mark.path)))):
                    yield name.decode(), study.name

    def _has(self, study_uid: str, name: str) -> bool:
        folders = (self._studies / study_uid / place for place in _OBJECTS)
        return any(_name_of(file.name) == name for folder in folders for file in _entries(folder))

    def _shard(self, name: str) -> Path:
        return self._folder / f"{zlib.crc32(name.encode()) % _SHARDS:03x}"


def _studies_in(shard: Path, name: str) -> list[str]:
    return sorted(entry.name.partition("~")[2] for entry in _entries(shard) if entry.name.startswith(f"{name}~"))


def _name_of(file: str) -> str | None:
    """Return the UID or id in a file's name."""
    if file.endswith(".json"):
        return file.removesuffix(".json")
    found = _UID.match(file)
    return None if found is None else found.group()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's entries; none if it is missing, or removed at this moment."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
