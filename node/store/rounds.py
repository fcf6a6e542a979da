"""Finished rounds: their marks, which outlive all other data of a study, and their outputs.

An output is written once, and read only while its bytes match its hash:

    <UID>~<SHA-256 of the file>.<kind>.dcm      a DICOM object
    <UID>~<SHA-256 of the file>.hl7             a message
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Final

from models.documents import encode
from node.domain import Delivery, OutputObject
from node.output_kinds import MESSAGES
from node.store import files
from node.store.received import sop_instance_uid_of

_HASHED: Final = re.compile(r"~[0-9a-f]{64}\.")
AGAIN: Final = "again"
"""The reason of files that a person has queued for another reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMark:
    """A finished round: the files it covered, when it began, and its outputs.

    parked: files of parked films, with their reasons; they count as unread again, whatever earlier rounds covered
    corrections: ids of all corrections that its answers follow
    parts: the films of each part of the study, by SOP Instance UID, if it had several (patients or accession numbers)
    destinations: by name, the outputs for each destination
    """

    number: int
    created_at: datetime
    files: tuple[str, ...]
    outputs: tuple[OutputObject, ...]
    parked: Mapping[str, str] = field(default_factory=dict)
    corrections: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    destinations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def films_beside(self, output: OutputObject) -> frozenset[str]:
        """Return the films of the part of the study that an output is about; all, if the study was not divided."""
        if 0 <= output.part < len(self.parts):
            return frozenset(self.parts[output.part])
        return frozenset(map(sop_instance_uid_of, (*self.files, *self.parked)))


def marks(folder: Path) -> list[RoundMark]:
    """Return the marks in a folder, oldest first; without damaged ones, so that their films are read again."""
    found = (files.read_known(RoundMark, path) for path in files.documents(folder) if path.stem.isdecimal())
    return [mark for mark in found if mark is not None]


def covered(marks: Collection[RoundMark], *, corrections: Iterable[str] = ()) -> set[str]:
    """Return the files that rounds have covered; none if there is a correction that no round follows.

    marks: oldest first
    corrections: their ids
    """
    answered: set[str] = set()
    if not {*chain.from_iterable(mark.corrections for mark in marks)}.issuperset(corrections):
        return answered
    for mark in marks:
        answered |= set(mark.files)
        answered -= mark.parked.keys()
    return answered


def coverage(marks: Iterable[RoundMark]) -> dict[str, tuple[int, str | None]]:
    """Return by file its newest round's number, and why the file is parked there; None if it is not.

    marks: oldest first
    """
    found: dict[str, tuple[int, str | None]] = {}
    for mark in marks:
        found |= {file: (mark.number, None) for file in mark.files}
        found |= {file: (mark.number, reason) for file, reason in mark.parked.items()}
    return {file: known for file, known in found.items() if known[1] != AGAIN}


def keep(folder: Path, mark: RoundMark) -> None:
    """Write a mark into an existing folder, synced.

    If another round has the number (two ran at once after a loss of the ledger), the next number is used; so it is if
    the disk has lost the content of a mark.
    """
    while not files.write_new(path := folder / f"{mark.number:06d}.json", _content(mark)):
        if files.content_of(path) == _content(mark):
            return
        mark = replace(mark, number=mark.number + 1)


def _content(mark: RoundMark) -> bytes:
    return files.to_json(encode(mark))


def keep_output(folder: Path, output: OutputObject | Delivery, content: bytes) -> None:
    """Write an output into an existing folder; an existing file stays, so that one UID never has two contents.

    A damaged file is replaced only by its original bytes.
    """
    path = folder / f"{output.sop_instance_uid}~{hashlib.sha256(content).hexdigest()}.{_ending(output)}"
    known = output_path(folder, output)
    if known is None or (known == path and intact_content(known) is None):
        files.write(path, content)


def intact_content(path: Path) -> bytes | None:
    """Return the content of an output, None if it is missing or damaged. Raises OSError when the disk fails."""
    content = files.content_of(path)
    return content if path.name.partition("~")[2].startswith(hashlib.sha256(content).hexdigest()) else None


def output_path(folder: Path, output: OutputObject | Delivery) -> Path | None:
    """Return the file of an output, damaged or not; None if there is none."""
    paths = files.listed(folder, f"{output.sop_instance_uid}~*.{_ending(output)}")
    return next((path for path in paths if _HASHED.search(path.name)), None)


def _ending(output: OutputObject | Delivery) -> str:
    return MESSAGES[output.kind].ending if output.kind in MESSAGES else f"{output.kind}.dcm"
