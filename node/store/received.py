"""Received objects and studies, as files: their names, and whether their bytes are still those that were received.

    <SOP Instance UID>~<version>~<SHA-256 of the dataset>.dcm

The dataset is stored byte for byte as received, so its hash also shows whether an object was received before. The file
meta information in front of it is the node's own. Its SHA-256 is in the first 32 bytes of the preamble, which PS3.10
7.1 leaves to implementations.

The modification time of an empty file records the last damage that was found, for all processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from models.documents import decode
from node.domain import Film, JsonObject, is_uid
from node.errors import is_of_file
from node.store import files

FILE_NAME: Final = re.compile(r"[0-9.]+~[0-9]+~[0-9a-f]{64}\.dcm")
_PREAMBLE_BYTES: Final = 128
_HASH_BYTES: Final = 32
_PREFIX: Final = b"DICM"
_GROUP_LENGTH: Final = b"\x02\0\0\0UL\x04\0"
"""Tag, value representation and length of File Meta Information Group Length, the first element (PS3.10 7.1)."""
_LONGEST_META: Final = 64 * 1024
_DAMAGED: Final = "found-damaged-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One received object, stored byte for byte; number counts the versions of one UID from 1."""

    study_uid: str
    sop_instance_uid: str
    number: int
    sha256: str
    path: Path
    received_at: datetime

    def __post_init__(self) -> None:
        for uid in (self.study_uid, self.sop_instance_uid):
            if not is_uid(uid):
                raise ValueError("an instance needs valid UIDs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A received object that is safely on disk.

    is_new: false when the same bytes were received before
    is_conflict: it has other pixels than the newest version, and is stored beside it
    """

    instance: Instance
    is_new: bool
    is_conflict: bool = False

    @property
    def outcome(self) -> str:
        """The outcome for the metrics: kept, repeated or conflict."""
        if not self.is_new:
            return "repeated"
        return "conflict" if self.is_conflict else "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The stored answers about a study's objects, by every model, with their times.

    intact: oldest first; damaged: files that cannot be read, so that nobody knows their object
    """

    intact: tuple[tuple[datetime, JsonObject], ...]
    damaged: tuple[tuple[datetime, Path], ...]


def sop_instance_uid_of(file: str) -> str:
    """Return the SOP Instance UID in a file's name."""
    return file.split("~")[0]


def file_name(sop_instance_uid: str, *, number: int, sha256: str) -> str:
    """Return the file name of one version of an object."""
    return f"{sop_instance_uid}~{number:04d}~{sha256}.dcm"


def instance_of(path: Path) -> Instance:
    """Return the received object that a file's path and modification time describe."""
    sop_instance_uid, number, sha256 = path.stem.split("~")
    return Instance(
        study_uid=path.parent.parent.name,
        sop_instance_uid=sop_instance_uid,
        number=int(number),
        sha256=sha256,
        path=path,
        received_at=datetime.fromtimestamp(_modified_at(path), UTC),
    )


def instances(paths: Iterable[Path]) -> Iterator[Instance]:
    """Yield the received objects of some paths; files that were removed meanwhile are left out."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield instance_of(path)


def versions(folder: Path, sop_instance_uid: str) -> list[Instance]:
    """Return every version of one object in a folder, oldest first."""
    return list(instances(sorted(listed(folder, f"{sop_instance_uid}~*.dcm"), key=_version)))


def listed(folder: Path, pattern: str = "*~*.dcm") -> list[Path]:
    """Return the received objects in a folder, by name; files with other names are ignored."""
    return [path for path in files.listed(folder, pattern) if FILE_NAME.fullmatch(path.name)]


def newest(folder: Path) -> list[Path]:
    """Return the newest version of each object, by the numbers in the names, because clocks may be set back."""
    paths = sorted(listed(folder), key=_version)
    return list({sop_instance_uid_of(path.name): path for path in paths}.values())


def answer_in(reading: JsonObject, instance: Instance) -> Film:
    """Return the answer in a reading of an object. Raises OtherForm."""
    return files.made(partial(decode, Film), reading, place=f"the reading of {instance.path}")


def newest_arrival(studies: Path) -> datetime | None:
    """Return when the newest file below a folder of studies was received; None if there is none."""
    times = [_modified_at(path) for path in studies.glob("*/received/*~*.dcm")]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def with_hash(meta: bytes) -> bytes:
    """Write the hash of file meta information into the preamble.

    meta: preamble, prefix and file meta information (PS3.10 7.1)
    """
    preamble, rest = meta[:_PREAMBLE_BYTES], meta[_PREAMBLE_BYTES:]
    return hashlib.sha256(rest).digest() + preamble[_HASH_BYTES:] + rest


def is_intact(path: Path) -> bool:
    """Whether a received object's bytes match their hash; false also for a missing file.

    Raises OSError when the disk fails as a whole.
    """
    try:
        with path.open("rb") as file:
            if not _read_meta(file):
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == path.stem.split("~")[2]
    except FileNotFoundError:
        if not path.parent.is_dir():  # the disk is not mounted: no evidence about this file
            raise
        return False
    except OSError as error:
        if is_of_file(error):
            return False
        raise


def has_intact_meta(path: Path) -> bool:
    """Whether the file meta information of a received object matches its hash."""
    try:
        with path.open("rb") as file:
            return _read_meta(file)
    except OSError:
        return False


def _read_meta(file: BinaryIO) -> bool:
    """Read a file up to its dataset; return whether its file meta information matches the hash in its preamble."""
    preamble, head = file.read(_PREAMBLE_BYTES), file.read(len(_PREFIX) + len(_GROUP_LENGTH) + 4)
    length = int.from_bytes(head[-4:], "little")
    if not head.startswith(_PREFIX + _GROUP_LENGTH) or length > _LONGEST_META:
        return False
    return preamble[:_HASH_BYTES] == hashlib.sha256(head + file.read(length)).digest()


def _modified_at(path: Path) -> float:
    """Return when a file was written, in seconds since the epoch; 0 when the disk has lost the time."""
    try:
        return path.stat().st_mtime
    except OSError as error:
        if is_of_file(error):
            return 0.0
        raise


def _version(path: Path) -> tuple[int, str]:
    """Sort key: the order of arrival of one object's versions."""
    _, number, sha256 = path.stem.split("~")
    return (int(number), sha256)


def note_damage(directory: Path, what: str) -> None:
    """Record that a stored film or output was found damaged now; a disk that is not writable is ignored."""
    with suppress(OSError):
        (directory / f"{_DAMAGED}{what}").touch(mode=0o600)


def found_damaged(directory: Path) -> Mapping[str, datetime]:
    """Return when damage was last found, by kind of stored data. Raises OSError."""
    return {
        path.name.removeprefix(_DAMAGED): datetime.fromtimestamp(path.stat().st_mtime, UTC)
        for path in sorted(directory.glob(f"{_DAMAGED}*"))
    }
