"""Files that must survive a power cut: received objects, readings, outputs and the marks of finished rounds.

A file is written under a temporary name, synced, renamed, and its folder synced; only then is anything acknowledged.
A file still under its temporary name was never acknowledged and is removed at start. A received object's file name
carries its version and the hash of its bytes: the same object again is the same file, and other bytes under the same
UID are the next version.

    studies/<study>/received/<sop instance>~<version>~<hash>.dcm     as received, PS3.10 file meta in front
    studies/<study>/readings/<key>.json                              what was said about one film
    studies/<study>/outputs/<sop instance>.<kind>.dcm                what leaves the node
    studies/<study>/outputs/<uid>.hl7                                the same as a message
    studies/<study>/rounds/<number>.json                             mark of a finished round
    windows/<name>.json                                              what films of late were answered, without a patient
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from node import durable
from node.domain import MESSAGE_KIND, Delivery, Instance, JsonObject, OutputObject, Study, is_uid
from node.errors import Refused, SpoolFull

_MIB = 1024 * 1024
_REMOVING = ".removing-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A received object that is safe on disk; `is_new` is false when the same bytes were kept before."""

    instance: Instance
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMark:
    """A finished round: which files it covered, when it began, what it wrote."""

    number: int
    created_at: datetime
    files: tuple[str, ...]
    outputs: tuple[OutputObject, ...]


class Spool:
    """The files of one node below one directory (mode 0700)."""

    def __init__(self, directory: Path, *, min_free_mib: int = 0) -> None:
        self.directory = directory
        self._studies, self._windows = directory / "studies", directory / "windows"
        self._min_free_bytes = min_free_mib * _MIB
        self._making_folders = threading.Lock()
        durable.make_folder(self._studies)

    @property
    def free_bytes(self) -> int:
        """Free space on the disk."""
        return shutil.disk_usage(self.directory).free

    @property
    def capacity_bytes(self) -> int:
        """Size of the disk."""
        return shutil.disk_usage(self.directory).total

    @property
    def reserve_bytes(self) -> int:
        """Free space below which nothing is accepted."""
        return self._min_free_bytes

    @property
    def has_room(self) -> bool:
        """Whether the disk is above its reserve."""
        return self.free_bytes >= self._min_free_bytes

    def keep(self, *, study_uid: str, sop_instance_uid: str, meta: bytes, body: bytes) -> Kept:
        """Keep one received object and sync it to disk before returning.

        meta: preamble and file meta information; body: the dataset, byte for byte as received
        Raises Refused when a UID cannot be one, SpoolFull when the disk cannot take it.
        """
        if not (is_uid(study_uid) and is_uid(sop_instance_uid)):
            raise Refused("Study or SOP Instance UID is not a valid UID; correct it at the sender")
        sha256 = hashlib.sha256(body).hexdigest()
        folder = self._folder(study_uid) / "received"
        try:
            versions = _versions(folder, sop_instance_uid)
            if versions and versions[-1].sha256 == sha256:
                durable.sync_folder(folder)  # whoever wrote it may not have come that far yet
                return Kept(instance=versions[-1], is_new=False)
            if not self.has_room:
                raise SpoolFull("the disk is below its reserve; send again later")
            number = versions[-1].number + 1 if versions else 1
            path = folder / f"{sop_instance_uid}~{number:04d}~{sha256}.dcm"
            self._write(path, meta, body)
        except OSError as error:
            raise SpoolFull(f"the object could not be written ({error.strerror}); send again later") from error
        return Kept(instance=_instance(path), is_new=True)

    def study(self, study_uid: str) -> Study:
        """Everything received of one study, the newest version of each object, in order of arrival."""
        newest = [_instance(path) for path in _newest(self._folder(study_uid))]
        ordered = sorted(newest, key=lambda one: (one.received_at, one.sop_instance_uid))
        return Study(uid=study_uid, instances=tuple(ordered))

    def studies(self) -> Iterator[str]:
        """The UIDs of all studies on disk, removed ones with marks of their rounds included."""
        return (folder.name for folder in sorted(self._studies.iterdir()) if is_uid(folder.name))

    def begin_reading(self, study_uid: str, key: str) -> int:
        """Count how often the reading of a film was begun and never ended. A film can end the process."""
        path = self._folder(study_uid) / "readings" / f"{key}.begun"
        begun = int(path.read_bytes() or b"0") + 1 if path.exists() else 1
        self._write(path, str(begun).encode())
        return begun

    def received_path(self, study_uid: str, file: str) -> Path:
        """Where a received object lies."""
        return self._folder(study_uid) / "received" / file

    def end_reading(self, study_uid: str, key: str) -> None:
        """Note that the reading of a film ended."""
        (self._folder(study_uid) / "readings" / f"{key}.begun").unlink(missing_ok=True)

    def keep_reading(self, study_uid: str, key: str, content: JsonObject) -> None:
        """Keep what was said about one film."""
        self._write(self._folder(study_uid) / "readings" / f"{key}.json", durable.to_json(content))

    def reading(self, study_uid: str, key: str) -> JsonObject | None:
        """What was said about one film, or None when nothing is kept under this key."""
        return durable.read_json(self._folder(study_uid) / "readings" / f"{key}.json")

    def output_path(self, output: OutputObject | Delivery) -> Path:
        """Where an output lies or will lie."""
        ending = "hl7" if output.kind == MESSAGE_KIND else f"{output.kind}.dcm"
        return self._folder(output.study_uid) / "outputs" / f"{output.sop_instance_uid}.{ending}"

    def keep_output(self, output: OutputObject, content: bytes) -> None:
        """Keep one output; an object that exists stays as it is, so one UID never carries two contents."""
        path = self.output_path(output)
        if not path.exists():
            self._write(path, content)

    def mark_round(self, study_uid: str, mark: RoundMark) -> None:
        """Mark a round as finished; its files are not looked at again."""
        content = {**asdict(mark), "created_at": mark.created_at.isoformat()}
        self._write(self._folder(study_uid) / "rounds" / f"{mark.number:06d}.json", durable.to_json(content))

    def rounds(self, study_uid: str) -> list[RoundMark]:
        """The marks of all finished rounds, oldest first."""
        return _marks(self._folder(study_uid))

    def has_unread(self, study_uid: str) -> bool:
        """Whether a study holds a file that no finished round covers."""
        return _has_unread(self._folder(study_uid))

    def keep_window(self, name: str, content: JsonObject) -> None:
        """Keep what is known of many films together."""
        self._write(self._windows / f"{name}.json", durable.to_json(content))

    def window(self, name: str) -> JsonObject | None:
        """What is kept under a name, or None."""
        return durable.read_json(self._windows / f"{name}.json")

    def sweep(self) -> int:
        """Remove files that were never acknowledged; only at start, while nobody writes. Returns how many."""
        for aside in self._studies.glob(f"{_REMOVING}*"):
            folder = self._studies / aside.name.removeprefix(_REMOVING)
            if (folder / "rounds").exists():  # the last look was over
                shutil.rmtree(aside)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                aside.rename(folder)
        leftovers = [*self._studies.rglob(f"{durable.TEMPORARY}*"), *self._windows.rglob(f"{durable.TEMPORARY}*")]
        for path in leftovers:
            path.unlink()
        return len(leftovers)

    def remove_study(self, study_uid: str) -> bool:
        """Remove what was received, said and written of a study; false when something unread had just come.

        The marks of its rounds stay, a few hundred bytes: what they cover is never read or sent again, also when the
        same films come back, so no UID gets other bytes. The folder is taken out of the way before the last look:
        a sender that writes at this moment fails, and sends again.
        """
        folder, aside = self._folder(study_uid), self._studies / f"{_REMOVING}{study_uid}"
        with self._making_folders:
            folder.rename(aside)
            is_read = not _has_unread(aside)
            if is_read:
                durable.make_folder(folder)
                (aside / "rounds").rename(folder / "rounds")
                durable.sync_folder(folder)
            else:
                aside.rename(folder)
        if is_read:
            shutil.rmtree(aside)
        return is_read

    def _write(self, path: Path, *parts: bytes) -> None:
        """Write aside, sync, rename, sync the folder. On any failure nothing is left behind."""
        with self._making_folders:  # a folder that another thread has made is used only after its entry is synced
            durable.make_folder(path.parent)
        durable.write(path, *parts)

    def _folder(self, study_uid: str) -> Path:
        if not is_uid(study_uid):
            raise Refused("the Study Instance UID is not a valid UID")
        return self._studies / study_uid


def sop_instance_uid_of(file: str) -> str:
    """The SOP Instance UID of a received object, from its file name."""
    return file.split("~")[0]


def _has_unread(folder: Path) -> bool:
    """Whether a study's folder, wherever it lies, holds the newest version of an object that no round covers."""
    covered = {name for mark in _marks(folder) for name in mark.files}
    return any(path.name not in covered for path in _newest(folder))


def _marks(folder: Path) -> list[RoundMark]:
    paths = sorted((folder / "rounds").glob("*.json"))
    return [_round_mark(content) for path in paths if (content := durable.read_json(path)) is not None]


def _newest(folder: Path) -> list[Path]:
    """The newest version of each object, by the numbers in the names: the clock may have been set back in between."""
    paths = sorted((folder / "received").glob("*~*.dcm"), key=_version)
    return list({sop_instance_uid_of(path.name): path for path in paths}.values())


def _round_mark(content: JsonObject) -> RoundMark:
    return RoundMark(
        number=int(str(content["number"])),
        created_at=datetime.fromisoformat(str(content["created_at"])),
        files=tuple(cast(list[str], content["files"])),
        outputs=tuple(OutputObject(**output) for output in cast(list[dict[str, str]], content["outputs"])),
    )


def _instance(path: Path) -> Instance:
    """Everything known of a received object from its place, name and time of arrival."""
    sop_instance_uid, number, sha256 = path.stem.split("~")
    return Instance(
        study_uid=path.parent.parent.name,
        sop_instance_uid=sop_instance_uid,
        number=int(number),
        sha256=sha256,
        path=path,
        received_at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )


def _version(path: Path) -> tuple[int, str]:
    """Order the versions of one object by arrival."""
    _, number, sha256 = path.stem.split("~")
    return (int(number), sha256)


def _versions(folder: Path, sop_instance_uid: str) -> list[Instance]:
    """Every version of one object, oldest first."""
    return [_instance(path) for path in sorted(folder.glob(f"{sop_instance_uid}~*.dcm"), key=_version)]
