"""A folder whose files a bucket holds, too: each file is put into the bucket before it gets its name in the folder.

So the bucket has everything that the folder has, and what was acknowledged outlives the disk. The folder is the cache
that everything is read from, and it is complete. Where both differ, the bucket is right: the process ended between its
two writes. A PUT without an answer may have stored its object; its path is in doubt until the bucket was asked.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from node.errors import BucketAway
from node.store import begun, files
from node.store.bucket import Bucket, BucketRefuses, Listed, Stored
from node.store.place import SyncedFile

_FOLDERS: Final = ("studies", "orders")
_NAMED_BY_HASH: Final = frozenset(("received", "conflicts", "outputs"))
_AT_ONCE: Final = 8
_PATIENCE_SECONDS: Final = 600.0
_PAUSE_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 2.0
"""While the bucket is away, one write in so many seconds tries it, and the others fail at once."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Levelled:
    """How many files were brought from the bucket, put into it, and are damaged there."""

    fetched: int
    sent: int
    damaged: int


class Mirror:
    """A folder and its bucket, for one process; may be used from any thread. See `place.SafePlace`."""

    def __init__(self, directory: Path, bucket: Bucket) -> None:
        self.bucket = bucket
        self._directory = directory
        self._state = threading.Lock()
        self._writing = [threading.Lock() for _ in range(16)]  # a file's two writes are not mixed with another's
        self._doubts: set[Path] = set()
        self._away_since: float | None = None
        self._tried_at = 0.0
        self.reason = ""

    @property
    def is_away(self) -> bool:
        """Whether the last call to the bucket failed; `reason` says why."""
        return self._away_since is not None

    def publish(self, synced: SyncedFile, path: Path) -> None:
        """Put an object and give it its final name; if the bucket has other good bytes of this name, they stay."""
        content = synced.path.read_bytes()
        modified_ns = synced.path.stat().st_mtime_ns
        with self._one_writer(path):
            name = self._name(path)
            if not self._put_new(path, content, modified_ns):
                known = self._asked(lambda: self.bucket.get(name))
                if known is not None and known.is_intact:
                    if known.content != content:
                        _bring(path, known)
                        return
                else:
                    self._put(path, content, modified_ns)
            synced.publish(path)

    def write(self, path: Path, content: bytes) -> None:
        """Put a file, and write it."""
        with self._one_writer(path):
            self._put(path, content, time.time_ns())
            files.write(path, content)

    def write_new(self, path: Path, content: bytes) -> bool:
        """Put a file and write it, unless its name is taken in the folder or in the bucket."""
        with self._one_writer(path):
            if path.exists():
                return False
            is_new = self._put_new(path, content, time.time_ns())
            if is_new:
                files.write(path, content)
                return True
            known = self._asked(lambda: self.bucket.get(self._name(path)))
            if known is None or not known.is_intact:
                raise BucketAway("the bucket changed meanwhile; try again")
            _bring(path, known)
            return False

    def withdraw(self, paths: Iterable[Path]) -> None:
        """Remove files from the bucket."""
        for path in paths:
            if self._is_mirrored(path):
                self._asked(partial(self.bucket.delete, self._name(path)))

    def put_back(self, folder: Path) -> None:
        """Put all files below a folder that the bucket does not have."""
        for path in self._files(folder):
            self._put_new(path, path.read_bytes(), path.stat().st_mtime_ns)

    def settle_doubts(self, folder: Path) -> None:
        """Bring files of a folder whose PUT was not answered and has stored them."""
        with self._state:
            doubts = [path for path in self._doubts if path.parent == folder]
        for path in doubts:
            known = self._asked(partial(self.bucket.get, self._name(path)))
            if known is not None and known.is_intact and not path.exists():
                files.make_folder(path.parent)
                _bring(path, known)
            with self._state:
                self._doubts.discard(path)

    def patiently(self, work: Callable[[], _T]) -> _T:
        """Do work that may be repeated; waits ten minutes for a bucket that is away, then raises BucketAway."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return work()
            except BucketAway:
                if time.monotonic() > end:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def look(self, owner: str) -> bool:
        """Ask the bucket whether this owner still holds its lock; true as long as it does not answer."""
        try:
            return self._asked(lambda: self.bucket.is_held_by(owner))
        except BucketAway:
            return True

    def level(self) -> Levelled:
        """Bring what the folder lacks, and put what the bucket lacks; only before anything else is written.

        Sizes are compared, and of files that may be replaced the hash. What is brought is checked by its hash.
        Raises BucketAway.
        """
        there = {item.name: item for folder in _FOLDERS for item in self.bucket.list(folder)}
        here = {self._name(path): path for folder in _FOLDERS for path in self._files(self._directory / folder)}
        wanted = [name for name, item in there.items() if name not in here or _is_other(here[name], item)]
        missing = [path for name, path in here.items() if name not in there]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3") as pool:
            good = list(pool.map(self._fetch, wanted))
            sent = list(pool.map(lambda path: self._put_new(path, path.read_bytes(), path.stat().st_mtime_ns), missing))
        return Levelled(fetched=good.count(True), sent=sent.count(True), damaged=good.count(False))

    def _fetch(self, name: str) -> bool | None:
        """Bring one file; false if it is damaged in the bucket, None if it was removed there meanwhile."""
        known = self.bucket.get(name)
        if known is None:
            return None
        path = self._directory / name
        if ".." in Path(name).parts or not known.is_intact:
            return False
        files.make_folder(path.parent)
        _bring(path, known)
        return True

    def _put(self, path: Path, content: bytes, modified_ns: int) -> None:
        self._in_doubt(path, lambda: self.bucket.put(self._name(path), content, modified_ns=modified_ns))

    def _put_new(self, path: Path, content: bytes, modified_ns: int) -> bool:
        return self._in_doubt(path, lambda: self.bucket.put_new(self._name(path), content, modified_ns=modified_ns))

    def _in_doubt(self, path: Path, work: Callable[[], _T]) -> _T:
        """Write to the bucket; after a failure it is unknown whether the file is there."""
        self._require_hope()
        try:
            result = self._asked(work)
        except BucketRefuses:
            raise
        except BucketAway:
            with self._state:
                self._doubts.add(path)
            raise
        with self._state:
            self._doubts.discard(path)
        return result

    def _require_hope(self) -> None:
        """Raise BucketAway at once if the bucket was away a moment ago."""
        with self._state:
            now = time.monotonic()
            if self._away_since is not None and now - self._tried_at < _AGAIN_SECONDS:
                raise BucketAway(self.reason)
            self._tried_at = now

    def _asked(self, work: Callable[[], _T]) -> _T:
        """Call the bucket, and note whether it is there."""
        try:
            result = work()
        except BucketAway as error:
            with self._state:
                self.reason, self._tried_at = str(error.strerror), time.monotonic()
                self._away_since = self._away_since or self._tried_at
            raise
        with self._state:
            self.reason, self._away_since = "", None
        return result

    def _one_writer(self, path: Path) -> threading.Lock:
        return self._writing[hash(path) % len(self._writing)]

    def _files(self, folder: Path) -> Iterator[Path]:
        for place, _, names in os.walk(folder):
            yield from (path for name in names if self._is_mirrored(path := Path(place, name)))

    def _is_mirrored(self, path: Path) -> bool:
        parts = path.relative_to(self._directory).parts
        return parts[0] in _FOLDERS and not any(part.startswith(".") for part in parts) and path.suffix != begun.SUFFIX

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()


def _is_other(path: Path, item: Listed) -> bool:
    """Say whether a file and its object differ; a file that is never replaced differs only in its size."""
    if path.stat().st_size != item.size:
        return True
    return path.parent.name not in _NAMED_BY_HASH and _md5(path) != item.e_tag


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _bring(path: Path, stored: Stored) -> None:
    """Write a file with the bytes of the bucket, synced, and with the time of the file that was put."""
    aside = files.Aside(path.parent)
    try:
        aside.write(stored.content)
        aside.sync()
        os.utime(aside.path, ns=(stored.modified_ns, stored.modified_ns))
        aside.publish(path)
    finally:
        aside.discard()
