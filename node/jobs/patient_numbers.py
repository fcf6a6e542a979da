"""Says which studies have films of a patient, by an index on disk, so that no header is read twice.

    index/patients.json      by study: when its folders changed last, and hashes of the numbers of its patients

A study is looked at again when a film or an update of a patient came to it. The file is a cache: without it, or with a
damaged one, or one of another version of the program or another character set of the site, which may read other
numbers, every header is read once more. Its hashes can be undone by trying all numbers: keep it like the films.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from node.dicom.identity import VERSION
from node.domain import Json, JsonObject
from node.outputs.patient import whole_text
from node.outputs.patient_update import header_of
from node.store import files, received, stored_updates
from node.store.spool import Spool

_Known = tuple[int, int, frozenset[str]]
"""When the folders of films and of updates changed last, in ns, 0 for one that is missing; the hashes."""

_FOLDERS: Final = ("received", "patients")
_FORMAT: Final = "whole"
"""What the numbers are; before, they were cut at 64 characters, and their blanks were merged."""
_SETTLED_NS: Final = 2_000_000_000
_READ_BY: Final = "read_by"
"""The key of the file that is no study: the version and the character set that its numbers were read with."""


class PatientNumbers:
    """The numbers of patients in the studies of a spool. May be called from any thread."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._path = spool, spool.directory / "index" / "patients.json"
        self._read_by: Json = [VERSION, spool.character_set]
        self._lock = threading.Lock()
        self._known: dict[str, _Known] | None = None

    def prepare(self) -> None:
        """Look at every study, so that the first message need not wait for it; a failing disk is met later."""
        with suppress(OSError):
            self.studies_of(())

    def studies_of(self, numbers: Iterable[str]) -> list[str]:
        """Return the studies with a film, or an update, that names one of the numbers. Raises OSError."""
        wanted = set(map(_hash, numbers))
        with self._lock:
            known = self._read() if self._known is None else self._known
            self._known = {study: self._look(study, known.get(study)) for study in self._spool.studies()}
            if self._known != known:
                files.make_folder(self._path.parent)
                files.write(self._path, files.to_json({_READ_BY: self._read_by, **_to_json(self._known)}))
            return [study for study, (_, _, hashes) in self._known.items() if not wanted.isdisjoint(hashes)]

    def _read(self) -> dict[str, _Known]:
        content = files.read_json(self._path) or {}
        return dict(_entries(content)) if content.get(_READ_BY) == self._read_by else {}

    def _look(self, study: str, known: _Known | None) -> _Known:
        """Return what is known of a study, and look at it again if it has changed."""
        folder = self._spool.received_path(study, "").parent
        times = [_changed_ns(folder / name) for name in _FOLDERS]
        if known is not None and [*known[:2]] == times:
            return known
        read = partial(header_of, character_set=self._spool.character_set)
        headers = map(read, received.newest(folder / "received"))
        updates = stored_updates.of_study(self._spool, study)
        numbers = {whole_text(header, "PatientID") for header in headers if header}
        numbers |= {update.changes.get("PatientID", "") for update in updates}
        # A folder that changed in this moment may change again within the same tick of the file system's clock.
        is_settled = time.time_ns() - max(times) > _SETTLED_NS
        return *(times if is_settled else (0, 0)), frozenset(map(_hash, numbers - {""}))


def _hash(number: str) -> str:
    return hashlib.sha256(number.encode()).hexdigest()[:16]


def _changed_ns(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return 0


def _to_json(known: dict[str, _Known]) -> JsonObject:
    return {study: [_FORMAT, films, updates, *sorted(hashes)] for study, (films, updates, hashes) in known.items()}


def _entries(content: JsonObject) -> Iterator[tuple[str, _Known]]:
    for study, entry in content.items():
        match entry:
            case [str(version), int(films), int(updates), *hashes] if version == _FORMAT:
                yield study, (films, updates, frozenset(map(str, hashes)))
