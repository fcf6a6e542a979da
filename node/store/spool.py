"""The spool: received objects, readings, outputs and marks of rounds, as files that survive a power cut.

A file is written under a temporary name, synced, renamed, and its folder synced; only then is anything acknowledged.
The start removes files with temporary names, which were never acknowledged. A received object's file name contains its
version and the hash of its bytes. The same object again is the same file. Other bytes under the same UID are the next
version, unless their pixels differ: that is a conflict, which is stored and reported, but not read. A file whose bytes
do not match its hash is damaged: it is neither read nor sent; the same object replaces it.

    studies/<study>/received/<sop instance>~<version>~<hash>.dcm     as received, PS3.10 file meta in front
    studies/<study>/conflicts/<sop instance>~<number>~<hash>.dcm     the same, with other pixels than the stored version
    studies/<study>/readings/<key>.json                              the answers about one film
    studies/<study>/outputs/<uid>~<hash>.<kind>.dcm, .hl7            the outputs
    studies/<study>/rounds/<number>.json                             mark of a finished round
    studies/<study>/urgent                                           the study is STAT
    studies/<study>/readings/<key>.begun, writing.begun              counts of interrupted readings and writings
    studies/<study>/corrections/, questions/, objects/               corrections, and questions of people and objects
    studies/<study>/sent/                                            answers that a person sends, see `questions`
    studies/<study>/released/                                        which corrections may be sent, see `correction`
    index/<digits>/<uid>~<study>                                     to find the study of a UID, see `index`
    format                                                           the format number, see `folders`

Files with other names, such as a person's copy or note, are ignored.
"""

from __future__ import annotations

import errno
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from node.domain import Delivery, Film, JsonObject, OutputObject, is_uid
from node.errors import Refused
from node.store import correction, files, interrupted_work, received, rounds
from node.store.correction import Correction, Release
from node.store.folders import STUDIES, Folders, mark_format, require_known_format
from node.store.incoming import Incoming, full, has_other_pixels
from node.store.index import Index
from node.store.interrupted_work import BegunWork
from node.store.received import Instance, Readings
from node.store.rounds import RoundMark

_MIB = 1024 * 1024
_REMOVING = ".removing-"
_LOCKS = 64
_LEFTOVER_SECONDS = 3600.0
DocumentKind = Literal["corrections", "released", "questions", "sent", "objects"]
_T = TypeVar("_T")


class Spool:
    """The files of one node below one directory (mode 0700).

    character_set: for text of films that fits neither their declared set nor UTF-8; "" for none
    reserve_bytes: free space below which no object is accepted
    Raises InputError if the directory has files of a format that this program does not know.
    """

    def __init__(self, directory: Path, *, min_free_mib: int = 0, character_set: str = "") -> None:
        self.directory, self.character_set = directory, character_set
        self._studies = directory / STUDIES
        self.reserve_bytes = min_free_mib * _MIB
        self._keeping = directory / "keeping"
        self._folders = Folders(directory, locks=self._keeping)
        self.index = Index(directory / "index", self._studies)
        self.work = BegunWork()
        require_known_format(directory)
        files.make_folder(directory)
        mark_format(directory)  # before its studies: a folder with studies and no number is refused
        for folder in (self._studies, self._keeping):
            files.make_folder(folder)

    @property
    def has_room(self) -> bool:
        """Whether the disk is above its reserve."""
        return shutil.disk_usage(self.directory).free >= self.reserve_bytes

    def receive(self, meta: bytes) -> Incoming:
        """Begin to store an object, with preamble and file meta information. Raises SpoolFull."""
        return Incoming(self._studies, meta=meta, has_room=lambda: self.has_room)

    def settle(self, incoming: Incoming, *, study_uid: str, sop_instance_uid: str) -> received.Kept:
        """Store one received object and sync it to disk before returning.

        Raises Refused when a UID is not valid, SpoolFull when the disk cannot store the object.
        """
        if not (is_uid(study_uid) and is_uid(sop_instance_uid)):
            raise Refused("Study or SOP Instance UID is not a valid UID; correct it at the sender")
        try:
            incoming.sync()
            with files.lock(self._keeping / _lock_of(study_uid)):  # one at a time, among all processes
                return self._settle(incoming, self._folder(study_uid), sop_instance_uid)
        except OSError as error:
            raise full(error) from error

    def _settle(self, incoming: Incoming, folder: Path, sop_instance_uid: str) -> received.Kept:
        """Publish a synced object; depends on the newest version only, so that a crash changes nothing."""
        place = folder / "received"
        known = received.versions(place, sop_instance_uid)
        is_conflict = bool(known) and _contradicts(known[-1], incoming)
        if is_conflict:
            place = folder / "conflicts"
            known = received.versions(place, sop_instance_uid)
        same = [instance for instance in (known if is_conflict else known[-1:]) if instance.sha256 == incoming.sha256]
        if same and received.is_intact(same[0].path):
            files.sync_folder(place)  # its writer may not have synced it yet
            return received.Kept(instance=same[0], is_new=False, is_conflict=is_conflict)
        number = same[0].number if same else known[-1].number + 1 if known else 1
        path = place / received.file_name(sop_instance_uid, number=number, sha256=incoming.sha256)
        self._folders.make(place)
        self.index.add(sop_instance_uid, folder.name)
        incoming.publish(path)
        new = received.instance_of(path)
        return received.Kept(instance=new, is_new=True, is_conflict=is_conflict)

    def conflicts(self, study_uid: str) -> list[Instance]:
        """Return the objects of a study with other pixels than the stored version of their UID."""
        return list(received.instances(received.listed(self._folder(study_uid) / "conflicts")))

    def mark_stat(self, study_uid: str) -> None:
        """Mark a study as STAT, synced. Raises SpoolFull when the disk cannot store the mark."""
        path = self._folder(study_uid) / "urgent"
        try:
            if path.exists():
                files.sync_folder(path.parent)  # its writer may not have synced it yet
            else:
                self._write(path)
        except OSError as error:
            raise full(error) from error

    def is_stat(self, study_uid: str) -> bool:
        """Whether a study is marked as STAT."""
        return (self._folder(study_uid) / "urgent").exists()

    def instances(self, study_uid: str) -> tuple[Instance, ...]:
        """Return the newest version of each received object of a study, in order of arrival."""
        newest = received.instances(received.newest(self._folder(study_uid) / "received"))
        return tuple(sorted(newest, key=lambda instance: (instance.received_at, instance.sop_instance_uid)))

    def stamp(self, study_uid: str, folders: Iterable[str]) -> str:
        """Return a text that changes whenever a file is stored in some folders of a study, such as "readings"."""
        return " ".join(str(files.stamp(self._folder(study_uid) / name)) for name in folders)

    def versions(self, study_uid: str) -> list[Instance]:
        """Return every version of each received object of a study, in order of arrival."""
        kept = received.instances(received.listed(self._folder(study_uid) / "received"))
        return sorted(kept, key=lambda instance: (instance.received_at, instance.sop_instance_uid, instance.number))

    def studies(self) -> Iterator[str]:
        """Return the UIDs of all studies on disk, also of removed studies, whose marks of rounds remain."""
        return (folder.name for folder in sorted(self._studies.iterdir()) if is_uid(folder.name))

    def find_studies(self, uid: str) -> list[str]:
        """Return the study with this UID, or those with an object of this UID; removed objects count if none exists.

        A sender may give one UID to objects of several studies.
        """
        if not is_uid(uid):
            return []
        return [uid] if (self._studies / uid).is_dir() else self.index.find(uid)

    @contextmanager
    def counted(self, study_uid: str, key: str = "") -> Iterator[None]:
        """Count work as begun until it returns or raises; the count remains only if the process ends.

        Work with a count runs alone in this process (`interrupted_work`).
        key: of the film that is read; "" for one part of writing the study's outputs
        """
        path = self._count_file(study_uid, key)
        self._folders.make(path.parent)
        with self.work.counted(path, is_part=not key):
            yield

    def end_writing(self, study_uid: str) -> None:
        """Reset the count of interrupted writings of a study: all its outputs are written."""
        self._count_file(study_uid).unlink(missing_ok=True)

    def interruptions(self, study_uid: str, key: str = "") -> int:
        """Return the number of process ends during the reading of a film, or the writing, since that last completed."""
        return interrupted_work.count(self._count_file(study_uid, key))

    def count_begun_readings(self, study_uid: str) -> int:
        """Count the films of a study whose reading is running or was interrupted."""
        return len(files.listed(self._folder(study_uid) / "readings", "*.begun"))

    def forget_interrupted_readings(self, study_uid: str) -> None:
        """Reset the counts of interruptions of a study and remove damaged readings, so that what failed is tried again.

        Intact readings stay.
        """
        counts = (*files.listed(self._folder(study_uid) / "readings", "*.begun"), self._count_file(study_uid))
        for path in (*counts, *(path for _, path in self.readings(study_uid).damaged)):
            path.unlink(missing_ok=True)

    def received_path(self, study_uid: str, file: str) -> Path:
        """Return the path of a received object."""
        return self._folder(study_uid) / "received" / file

    def keep_reading(self, study_uid: str, key: str, content: JsonObject) -> None:
        """Store the answers about one film."""
        self._write(self._folder(study_uid) / "readings" / f"{key}.json", files.to_json(content))

    def reading(self, study_uid: str, key: str) -> Film | None:
        """Return the answer to one film; None if there is none under this key, or it cannot be read."""
        return files.read_known(Film, self._folder(study_uid) / "readings" / f"{key}.json")

    def readings(self, study_uid: str) -> Readings:
        """Return all stored answers about a study's films."""
        intact, damaged = [], []
        for path in files.documents(self._folder(study_uid) / "readings"):
            at, content = files.changed_at(path), files.read_json(path)
            if at is not None and content is not None:
                intact.append((at, content))
            elif at is not None and path.exists():
                damaged.append((at, path))
        return Readings(intact=tuple(sorted(intact, key=lambda reading: reading[0])), damaged=tuple(damaged))

    def keep_document(self, study_uid: str, kind: DocumentKind, name: str, content: JsonObject) -> None:
        """Store a document of a study, synced; a released correction makes its films unread until a round follows it.

        Raises FileNotFoundError if the study was removed: retention would not remove a re-created folder.
        """
        if kind == "questions":
            self.index.add(name, study_uid)
        folder = self._folder(study_uid)
        with self._folders.of(folder) as make:
            (folder / "received").stat()
            make(folder / kind)
        files.write(folder / kind / f"{name}.json", files.to_json(content))

    def drop_document(self, study_uid: str, kind: DocumentKind, name: str) -> None:
        """Remove a document, if it exists. Raises OSError."""
        path = self._folder(study_uid) / kind / f"{name}.json"
        path.unlink(missing_ok=True)
        files.sync_folder(path.parent)

    def document(self, study_uid: str, kind: DocumentKind, name: str) -> JsonObject | None:
        """Return a document of a study; None if it is missing or damaged."""
        return files.read_json(self._folder(study_uid) / kind / f"{name}.json")

    def documents(self, study_uid: str, kind: DocumentKind) -> list[JsonObject]:
        """Return all documents of a study of one kind."""
        return self.documents_as(lambda content: content, study_uid, kind)

    def documents_as(self, make: Callable[[JsonObject], _T], study_uid: str, kind: DocumentKind) -> list[_T]:
        """Return all documents of a study of one kind as values; see `files.read_as`."""
        paths = files.documents(self._folder(study_uid) / kind)
        return [found for path in paths if (found := files.read_as(make, path)) is not None]

    def corrections(self, study_uid: str) -> list[Correction]:
        """Return the corrections of a study, withdrawn ones included. Raises OtherForm."""
        return self.documents_as(correction.from_json, study_uid, "corrections")

    def keep_output(self, output: OutputObject | Delivery, content: bytes) -> None:
        """Store one output; an existing one stays unchanged, so that one UID never has two contents."""
        folder = self._outputs(output)
        self._folders.make(folder)
        self.index.add(output.sop_instance_uid, output.study_uid)
        with files.lock(self._keeping / _lock_of(output.study_uid)):
            rounds.keep_output(folder, output, content)

    def has_output(self, output: OutputObject | Delivery) -> bool:
        """Whether an output exists, damaged or not."""
        return rounds.output_path(self._outputs(output), output) is not None

    def output(self, output: OutputObject | Delivery) -> bytes | None:
        """Return the content of an output; None when it is missing or damaged. Raises OSError when the disk fails."""
        if not self._studies.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder of studies is gone", str(self._studies))
        path = rounds.output_path(self._outputs(output), output)
        return None if path is None else rounds.intact_content(path)

    def mark_round(self, study_uid: str, mark: RoundMark) -> None:
        """Mark a round as finished; its files are not read again. If its number is taken, the next one is used."""
        folder = self._folder(study_uid) / "rounds"
        self._folders.make(folder)
        rounds.keep(folder, mark)

    def rounds(self, study_uid: str) -> list[RoundMark]:
        """Return the marks of all finished rounds, oldest first."""
        return rounds.marks(self._folder(study_uid) / "rounds")

    def uncover(self, study_uid: str) -> None:
        """Make the next round of a study cover all its files again, because its outputs are lost."""
        marks = self.rounds(study_uid)
        names = [instance.path.name for instance in self.instances(study_uid)]
        mark = RoundMark(
            number=max((mark.number for mark in marks), default=0) + 1,
            created_at=datetime.now(UTC).replace(microsecond=0),
            files=(),
            outputs=(),
            parked=dict.fromkeys(names, rounds.AGAIN),
        )
        self.mark_round(study_uid, mark)

    def unread(self, study_uid: str) -> list[Instance]:
        """Return the newest version of each object that no round covers; all, if a released correction is new."""
        folder = self._folder(study_uid)
        return [received.instance_of(path) for path in _unread(folder, rounds.marks(folder / "rounds"))]

    def has_unread(self, study_uid: str) -> bool:
        """Whether a study has a file that no finished round covers, or a waiting correction."""
        return _has_unread(self._folder(study_uid))

    def releases(self, study_uid: str) -> list[Release]:
        """Return the corrections of a study that may be sent, with the time of each release."""
        return list(correction.releases_in(self._folder(study_uid)))

    def sweep(self, *, is_shared: bool = False) -> int:
        """Remove files that were never acknowledged; only at start. Return their number.

        is_shared: other processes may be writing, so only old files are removed
        """
        for aside in self._studies.glob(f"{_REMOVING}*"):
            folder = self._studies / aside.name.removeprefix(_REMOVING)
            with self._folders.of(folder) as make:
                if not (folder / "rounds").exists():  # the check for unread files did not finish
                    files.merge(aside, folder, make=make)
                shutil.rmtree(aside, ignore_errors=True)  # another process may be removing it
        youngest = time.time() - (_LEFTOVER_SECONDS if is_shared else 0.0)
        leftovers = [
            path
            for path in files.unfinished(self._studies)
            if (changed := files.changed_at(path)) is not None and changed.timestamp() <= youngest
        ]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def remove_study(self, study_uid: str, *, although_unread: Collection[str] = ()) -> bool:
        """Remove a study's objects, readings and outputs; return false when it has unread files, or no files.

        although_unread: names of files to remove unread, because a person wants it
        The marks of its rounds stay, a few hundred bytes: their files are never read or sent again, even if they are
        received again, so no UID gets other bytes. The folder is renamed before the last check for unread files: who
        sends at this moment fails, and sends again.
        """
        folder, aside = self._folder(study_uid), self._studies / f"{_REMOVING}{study_uid}"
        with files.lock(self._keeping / _lock_of(study_uid)):
            if not (folder / "received").exists() or _has_unread(folder, but=although_unread):
                return False
            with self._folders.of(folder) as make:
                folder.rename(aside)
                if _has_unread(aside, but=although_unread):
                    aside.rename(folder)
                    return False
                if (aside / "rounds").exists():  # without marks there were no files to read
                    make(folder)
                    (aside / "rounds").rename(folder / "rounds")
                    files.sync_folder(folder)
        with suppress(FileNotFoundError):  # a starting process may sweep it, too
            shutil.rmtree(aside)
        return True

    def _write(self, path: Path, content: bytes = b"") -> None:
        """Write a file under a temporary name, synced, and rename it. A failure leaves nothing behind."""
        self._folders.make(path.parent)
        files.write(path, content)

    def _count_file(self, study_uid: str, key: str = "") -> Path:
        name = f"readings/{key}" if key else "writing"
        return self._folder(study_uid) / f"{name}{interrupted_work.SUFFIX}"

    def _outputs(self, output: OutputObject | Delivery) -> Path:
        return self._folder(output.study_uid) / "outputs"

    def _folder(self, study_uid: str) -> Path:
        if not is_uid(study_uid):
            raise Refused("the Study Instance UID is not a valid UID")
        return self._studies / study_uid


def _lock_of(study_uid: str) -> str:
    """Return the lock file of a study; studies share a few, because a lock file that may be held cannot be removed."""
    return f"{zlib.crc32(study_uid.encode()) % _LOCKS:02d}.lock"


def _contradicts(known: Instance, arrived: Incoming) -> bool:
    """Whether an object has other pixels than the known version; a damaged version cannot be compared."""
    is_other = known.sha256 != arrived.sha256 and received.is_intact(known.path)
    return is_other and has_other_pixels(known.path, arrived.path)


def _has_unread(folder: Path, *, but: Collection[str] = ()) -> bool:
    """Whether a study's folder, at any path, has a file that no round covers, or a waiting correction.

    but: names of objects' files to ignore
    """
    marks = rounds.marks(folder / "rounds")
    return bool(_waiting(folder, marks)) or any(path.name not in but for path in _unread(folder, marks))


def _unread(folder: Path, marks: list[RoundMark]) -> Iterator[Path]:
    followed = _names(folder / "corrections") - _waiting(folder, marks)
    covered = rounds.covered(marks, corrections=followed)
    return (path for path in received.newest(folder / "received") if path.name not in covered)


def _waiting(folder: Path, marks: list[RoundMark]) -> frozenset[str]:
    made = _names(folder / "corrections")
    return correction.waiting(made, marks, correction.releases_in(folder)) if made else frozenset()


def _names(folder: Path) -> set[str]:
    return {path.stem for path in files.documents(folder)}
