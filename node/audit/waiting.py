"""Audit messages that wait for the collector, in files that survive a power cut, oldest sent first.

All processes of a node share the folder; one of them sends at a time, so that the order holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

from node.store import files

_MIB: Final = 1024 * 1024
_FULL_FILE_BYTES: Final = 64 * 1024
_MOST_SENT_BYTES: Final = _MIB
_ABANDONED: Final = timedelta(minutes=1)
_END: Final = b"\n"


class WaitingMessages:
    """The folder of waiting messages; may be used by one writing and one sending thread."""

    def __init__(self, folder: Path, *, max_mib: int) -> None:
        self._folder, self._limit_bytes = folder, max_mib * _MIB
        self._lock = folder / "sending.lock"
        self._last: Path | None = None
        self._last_ns = 0
        self._counts: dict[tuple[str, int], int] = {}
        files.make_folder(folder)
        for path in files.unfinished(folder):  # another process may write one at this moment
            if (at := files.changed_at(path)) is not None and datetime.now(UTC) - at > _ABANDONED:
                path.unlink(missing_ok=True)

    def count(self) -> float:
        """Return how many messages wait; NaN if the disk fails."""
        try:
            sizes = self._sizes()
        except OSError:
            return math.nan
        known, self._counts = self._counts, {}
        for path, size in sizes.items():
            key = (path.name, size)
            self._counts[key] = known[key] if key in known else len(_lines(path))
        return float(sum(self._counts.values()))

    def add(self, lines: Sequence[bytes]) -> bool:
        """Keep messages, synced; returns False if there is no room. Raises OSError when the disk fails.

        A small last file is replaced by a longer one, unless it may be on its way to the collector.
        """
        content = _END.join(lines) + _END
        if sum(self._sizes().values()) + len(content) > self._limit_bytes:
            return False
        with files.try_lock(self._lock) as is_free:
            last = self._last
            if is_free and last is not None and last.exists() and last.stat().st_size < _FULL_FILE_BYTES:
                files.write(last, last.read_bytes() + content)
                return True
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        path = self._folder / f"{self._last_ns:020d}-{uuid4().hex[:8]}.log"
        files.write(path, content)
        self._last = path
        return True

    def send(self, deliver: Callable[[Sequence[bytes]], None], *, is_over: Callable[[], bool]) -> None:
        """Hand all messages on, oldest first, about a MiB at a time; what `deliver` returned for is removed.

        Raises what `deliver` raises; does nothing while another process sends.
        """
        with files.try_lock(self._lock) as is_free:
            while is_free and not is_over() and (batch := self._oldest()):
                deliver([line for path in batch for line in _lines(path)])
                for path in batch:
                    path.unlink(missing_ok=True)
                files.sync_folder(self._folder)

    def _oldest(self) -> list[Path]:
        batch: list[Path] = []
        total = 0
        for path, size in self._sizes().items():
            total += size
            if batch and total > _MOST_SENT_BYTES:
                break
            batch.append(path)
        return batch

    def _sizes(self) -> dict[Path, int]:
        """Return the files in their order; another process may remove some meanwhile."""
        found = {}
        for path in files.listed(self._folder, "*.log"):
            try:
                found[path] = path.stat().st_size
            except FileNotFoundError:
                continue
        return found


def _lines(path: Path) -> list[bytes]:
    """Return the messages of a file; none if another process has just removed it."""
    try:
        return [line for line in path.read_bytes().split(_END) if line]
    except FileNotFoundError:
        return []
