"""Files that must survive a power cut: received objects, readings, outputs and the marks of finished rounds.

A file is written under a temporary name, synced, renamed, and its folder synced; only then is anything acknowledged.
A file still under its temporary name was never acknowledged and is removed at start. A received object's file name
carries its version and the hash of its bytes: the same object again is the same file, and other bytes under the same
UID are the next version, unless they show other pixels: that is a conflict, which is kept and reported and not read.

    studies/<study>/received/<sop instance>~<version>~<hash>.dcm     as received, PS3.10 file meta in front
    studies/<study>/conflicts/<sop instance>~<number>~<hash>.dcm     the same, with other pixels than the version kept
    studies/<study>/readings/<key>.json                              what was said about one film
    studies/<study>/outputs/<sop instance>.<kind>.dcm                what leaves the node
    studies/<study>/outputs/<uid>.hl7                                the same as a message
    studies/<study>/rounds/<number>.json                             mark of a finished round
    studies/<study>/urgent                                           the study is not to wait for others
    windows/<name>.json                                              what films of late were answered, without a patient
"""

from __future__ import annotations

import math
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from node import durable, rounds
from node.conflict import has_other_pixels
from node.domain import MESSAGE_KIND, Delivery, Instance, JsonObject, OutputObject, Study, is_uid
from node.errors import Refused
from node.incoming import Incoming, full
from node.rounds import RoundMark

_MIB = 1024 * 1024
_REMOVING = ".removing-"
_LOCKS = 64
_LEFTOVER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A received object that is safe on disk.

    is_new: false when the same bytes were kept before
    is_conflict: whether it is kept beside the newest version, which shows other pixels
    """

    instance: Instance
    is_new: bool
    is_conflict: bool = False

    @property
    def outcome(self) -> str:
        """Name what became of it: kept, repeated, conflict."""
        if not self.is_new:
            return "repeated"
        return "conflict" if self.is_conflict else "kept"


class Spool:
    """The files of one node below one directory (mode 0700)."""

    def __init__(self, directory: Path, *, min_free_mib: int = 0) -> None:
        self.directory = directory
        self._studies, self._windows = directory / "studies", directory / "windows"
        self._min_free_bytes = min_free_mib * _MIB
        self._folders_lock = directory / "folders.lock"
        self._keeping = directory / "keeping"
        for folder in (self._studies, self._keeping):
            durable.make_folder(folder)

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

    def receive(self, meta: bytes) -> Incoming:
        """Begin to receive an object: preamble and file meta information come first. Raises SpoolFull."""
        return Incoming(self._studies, meta=meta, has_room=lambda: self.has_room)

    def keep(self, *, study_uid: str, sop_instance_uid: str, meta: bytes, body: bytes) -> Kept:
        """Keep one object that is at hand as a whole; like `settle`."""
        incoming = self.receive(meta)
        try:
            incoming.write(body)
            return self.settle(incoming, study_uid=study_uid, sop_instance_uid=sop_instance_uid)
        finally:
            incoming.discard()

    def settle(self, incoming: Incoming, *, study_uid: str, sop_instance_uid: str) -> Kept:
        """Keep one received object and sync it to disk before returning.

        Raises Refused when a UID cannot be one, SpoolFull when the disk cannot take it.
        """
        if not (is_uid(study_uid) and is_uid(sop_instance_uid)):
            raise Refused("Study or SOP Instance UID is not a valid UID; correct it at the sender")
        try:
            incoming.seal()
            with durable.lock(self._keeping / _lock_of(study_uid)):  # one after the other, of all processes
                return self._settle(incoming, self._folder(study_uid), sop_instance_uid)
        except OSError as error:
            raise full(error) from error

    def _settle(self, incoming: Incoming, folder: Path, sop_instance_uid: str) -> Kept:
        """Give a sealed object its place, by the newest version alone: so it is the same again after a crash."""
        place = folder / "received"
        known = _versions(place, sop_instance_uid)
        is_conflict = False
        if known and known[-1].sha256 != incoming.sha256:
            is_conflict = has_other_pixels(known[-1].path, incoming.path)
        if is_conflict:
            place = folder / "conflicts"
            known = _versions(place, sop_instance_uid)
        same = [one for one in (known if is_conflict else known[-1:]) if one.sha256 == incoming.sha256]
        if same:
            durable.sync_folder(place)  # whoever wrote it may not have come that far yet
            return Kept(instance=same[0], is_new=False, is_conflict=is_conflict)
        number = known[-1].number + 1 if known else 1
        path = place / f"{sop_instance_uid}~{number:04d}~{incoming.sha256}.dcm"
        self._make_folder(place)
        incoming.publish(path)
        return Kept(instance=_instance(path), is_new=True, is_conflict=is_conflict)

    def conflicts(self, study_uid: str) -> list[Instance]:
        """The objects of one study that came with other pixels under a known UID."""
        return [_instance(path) for path in sorted((self._folder(study_uid) / "conflicts").glob("*~*.dcm"))]

    def mark_urgent(self, study_uid: str) -> None:
        """Note, synced, that a study is not to wait for others. Raises SpoolFull when the disk cannot take it."""
        path = self._folder(study_uid) / "urgent"
        try:
            if path.exists():
                durable.sync_folder(path.parent)  # whoever wrote it may not have come that far yet
            else:
                self._write(path)
        except OSError as error:
            raise full(error) from error

    def is_urgent(self, study_uid: str) -> bool:
        """Whether a study is not to wait for others."""
        return (self._folder(study_uid) / "urgent").exists()

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
            self._make_folder(path.parent)
            durable.write_new(path, content)

    def mark_round(self, study_uid: str, mark: RoundMark) -> None:
        """Mark a round as finished; its files are not looked at again. A number that is taken becomes the next one."""
        folder = self._folder(study_uid) / "rounds"
        self._make_folder(folder)
        rounds.keep(folder, mark)

    def rounds(self, study_uid: str) -> list[RoundMark]:
        """The marks of all finished rounds, oldest first."""
        return rounds.marks(self._folder(study_uid) / "rounds")

    def unread(self, study_uid: str) -> list[Instance]:
        """The newest version of each object that no finished round covers."""
        return [_instance(path) for path in _unread(self._folder(study_uid))]

    def has_unread(self, study_uid: str) -> bool:
        """Whether a study holds a file that no finished round covers."""
        return _has_unread(self._folder(study_uid))

    @contextmanager
    def changing_windows(self) -> Iterator[None]:
        """Be the only one of all processes who looks at windows and keeps new ones."""
        with durable.lock(self.directory / "windows.lock"):
            yield

    def keep_window(self, name: str, content: JsonObject) -> None:
        """Keep what is known of many films together."""
        self._write(self._windows / f"{name}.json", durable.to_json(content))

    def window(self, name: str) -> JsonObject | None:
        """What is kept under a name, or None."""
        return durable.read_json(self._windows / f"{name}.json")

    def sweep(self, *, is_shared: bool = False) -> int:
        """Remove files that were never acknowledged; only at start. Returns how many.

        is_shared: other processes may be writing now, so that only what is old is left over
        """
        with durable.lock(self._folders_lock):
            for aside in self._studies.glob(f"{_REMOVING}*"):
                folder = self._studies / aside.name.removeprefix(_REMOVING)
                if not (folder / "rounds").exists():  # the last look was not over
                    _merge(aside, folder)
                shutil.rmtree(aside, ignore_errors=True)  # another process may be at it
        youngest = time.time() - (_LEFTOVER_SECONDS if is_shared else 0.0)
        leftovers = [
            path
            for folder in (self._studies, self._windows)
            for path in durable.unfinished(folder)
            if _changed_at(path) <= youngest
        ]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def remove_study(self, study_uid: str) -> bool:
        """Remove what was received, said and written of a study; false when there is something unread, or nothing.

        The marks of its rounds stay, a few hundred bytes: what they cover is never read or sent again, also when the
        same films come back, so no UID gets other bytes. The folder is taken out of the way before the last look:
        a sender that writes at this moment fails, and sends again.
        """
        folder, aside = self._folder(study_uid), self._studies / f"{_REMOVING}{study_uid}"
        with durable.lock(self._folders_lock):
            if not (folder / "received").exists():
                return False
            folder.rename(aside)
            if _has_unread(aside):
                aside.rename(folder)
                return False
            if (aside / "rounds").exists():  # without them there was nothing to be read
                durable.make_folder(folder)
                (aside / "rounds").rename(folder / "rounds")
                durable.sync_folder(folder)
        with suppress(FileNotFoundError):  # a process that starts sweeps what it finds aside, too
            shutil.rmtree(aside)
        return True

    def _write(self, path: Path, content: bytes = b"") -> None:
        """Write aside, sync, rename, sync the folder. On any failure nothing is left behind."""
        self._make_folder(path.parent)
        durable.write(path, content)

    def _make_folder(self, folder: Path) -> None:
        with durable.lock(self._folders_lock):  # what somebody else has made is used only after its entry is synced
            durable.make_folder(folder)

    def _folder(self, study_uid: str) -> Path:
        if not is_uid(study_uid):
            raise Refused("the Study Instance UID is not a valid UID")
        return self._studies / study_uid


def sop_instance_uid_of(file: str) -> str:
    """The SOP Instance UID of a received object, from its file name."""
    return file.split("~")[0]


def _lock_of(study_uid: str) -> str:
    """The lock's name for what is kept of a study; a few for all, for nobody can remove one that may be held."""
    return f"{zlib.crc32(study_uid.encode()) % _LOCKS:02d}.lock"


def _merge(source: Path, target: Path) -> None:
    """Put back what a removal took aside and left behind; a film may have come meanwhile, which stays."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_file() and not place.exists():
            durable.make_folder(place.parent)
            path.rename(place)
            durable.sync_folder(place.parent)


def _changed_at(path: Path) -> float:
    """When a file was last written, in seconds since the epoch; infinity when it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _has_unread(folder: Path) -> bool:
    """Whether a study's folder, wherever it lies, holds the newest version of an object that no round covers."""
    return any(True for _ in _unread(folder))


def _unread(folder: Path) -> Iterator[Path]:
    covered = {name for mark in rounds.marks(folder / "rounds") for name in mark.files}
    return (path for path in _newest(folder) if path.name not in covered)


def _newest(folder: Path) -> list[Path]:
    """The newest version of each object, by the numbers in the names: the clock may have been set back in between."""
    paths = sorted((folder / "received").glob("*~*.dcm"), key=_version)
    return list({sop_instance_uid_of(path.name): path for path in paths}.values())


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
