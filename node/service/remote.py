"""The bucket of `storage.s3` in one process: tried, locked and levelled at the start, and watched after that.

One process uses a prefix of a bucket. Its name is in the object `owner`, and in a file of its storage folder, so it
starts again at once on that folder; a node with another folder is refused until a person removes the object.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from node import log
from node.config import StorageSettings
from node.errors import BucketAway, InputError, Stopped
from node.periodic import Periodic
from node.store import files, spool_format, strange_files
from node.store.bucket import Bucket, BucketRefuses
from node.store.folder_probe import require_honest
from node.store.mirror import Mirror
from node.store.spool import Spool

_OWNER_FILE: Final = "s3-owner"
_LOOK_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 2.0
_MOST_NAMED: Final = 100
_LONGEST_NAME: Final = 200

_T = TypeVar("_T")


class Remote:
    """The bucket of a process, and whether it may use it. The process must end once `is_lost`."""

    def __init__(self, mirror: Mirror, owner: str, stop: threading.Event) -> None:
        self.mirror, self.is_lost = mirror, False
        self._owner, self._stop = owner, stop

    @property
    def is_away(self) -> bool:
        """Whether the bucket did not answer the last call."""
        return self.mirror.is_away

    @property
    def reason(self) -> str:
        """Why it is away; blank if it is not."""
        return self.mirror.reason

    def level(self) -> None:
        """Make folder and bucket hold the same files. Raises InputError, or Stopped while it waits for the bucket."""
        waiting(self._require_known_format, self.mirror.bucket, self._stop)
        done = waiting(self.mirror.level, self.mirror.bucket, self._stop)
        say = log.get().error if done.damaged else log.get().info
        say("bucket.levelled", fetched=done.fetched, sent=done.sent, damaged=done.damaged)

    def _require_known_format(self) -> None:
        """Raise InputError if the bucket has files of a form that this program does not know; mark one without."""
        bucket = self.mirror.bucket
        known = bucket.get(spool_format.NAME)
        if known is None:
            if next(iter(bucket.list(f"{spool_format.STUDIES}/")), None) is not None:
                raise InputError(spool_format.unnumbered(bucket.place))
            bucket.put(spool_format.NAME, spool_format.CONTENT, modified_ns=time.time_ns())
        else:
            spool_format.require_known_content(known.content, bucket.place)

    def look(self) -> None:
        """Ask the bucket who holds it."""
        if not self.is_lost and not self.mirror.look(self._owner):
            self.is_lost = True
            log.get().error("bucket.lost")


def open_remote(storage: StorageSettings, *, stop: threading.Event, parts: ExitStack) -> Remote | None:
    """Try and lock the bucket of the settings; None if there is none. Waits while the bucket cannot be reached.

    Raises InputError when it cannot be used, Stopped when `stop` is set meanwhile.
    """
    if storage.s3 is None:
        return None
    bucket, owner = Bucket(storage.s3), _owner_of(storage.directory)
    if not waiting(lambda: bucket.lock(owner), bucket, stop):
        raise InputError(
            f"{bucket.place}: another node holds the prefix {storage.s3.prefix}, or this folder is new; "
            f"make sure that no other node runs, then remove the object {storage.s3.prefix}/owner"
        )
    if (fault := bucket.fault()) is not None:
        raise InputError(f"{bucket.place}: {fault}")
    remote = Remote(Mirror(storage.directory, bucket), owner, stop)
    parts.callback(Periodic(remote.look, name="bucket", pause_seconds=_LOOK_SECONDS).close)
    return remote


def open_spool(storage: StorageSettings, remote: Remote | None, *, character_set: str) -> Spool:
    """Open the spool of the service; character_set: as in `Spool`.

    Raises InputError if the folder is not honest, and as `Remote.level`.
    """
    require_honest(storage.directory, is_shared=bool(storage.database_url))
    place = None if remote is None else remote.mirror
    spool = Spool(storage.directory, min_free_mib=storage.min_free_mib, place=place, character_set=character_set)
    swept = spool.sweep(is_shared=bool(storage.database_url))
    if swept:
        log.get().info("spool.swept", files=swept)
    if remote is not None:
        remote.level()
    moved = strange_files.set_aside(storage.directory, place=spool.place)
    for path in moved[:_MOST_NAMED]:
        log.get().warning("spool.set_aside", name=_printable(path))
    if len(moved) > _MOST_NAMED:
        log.get().warning("spool.set_aside", files=len(moved))
    return spool


def waiting(work: Callable[[], _T], bucket: Bucket, stop: threading.Event) -> _T:
    """Do work as soon as the bucket can be reached. Raises InputError when the server refuses, and Stopped."""
    is_said = False
    while True:
        try:
            return work()
        except BucketRefuses as error:
            raise InputError(f"{bucket.place}: {error.strerror}") from error
        except BucketAway as error:
            if not is_said:
                log.get().warning("bucket.delayed", reason=error.strerror)
                is_said = True
        if stop.wait(_WAIT_SECONDS):
            raise Stopped("stopped while the bucket could not be reached")


def _owner_of(directory: Path) -> str:
    """Return the name that this folder has for the bucket; it is made at the first start."""
    path = directory / _OWNER_FILE
    files.write_new(path, uuid4().hex.encode())
    return path.read_text(encoding="ascii")


def _printable(path: Path) -> str:
    """Return a path for a line of the log: a name that somebody gave may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(path))[:_LONGEST_NAME]
