"""Atomic file writes: a temporary file beside the target, synced and renamed, and the folder synced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete; otherwise as `beside`. Raises OSError if writing fails."""
    with beside(path) as aside, aside.open("wb") as file:
        yield file


@contextmanager
def beside(path: Path, *, mark: str = "") -> Iterator[Path]:
    """Give the path of a temporary file that takes the place of `path` when the block ends without an error.

    Until then an existing file of that name is unchanged. After a kill the temporary file stays until the same file is
    written again.

    mark: part of the temporary name; processes that may write the same path at once each need a mark of their own
    Raises OSError if writing fails.
    """
    aside = path.with_name(f"{path.name}{mark}.part")
    try:
        yield aside
        sync(aside)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Write a file or a folder from memory to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
