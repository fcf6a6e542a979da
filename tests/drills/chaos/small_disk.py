"""A real disk that is small, so that it can truly be full: a tmpfs, mounted by root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BALLAST: Final = "ballast"
_BLOCK: Final = bytes(65536)


class CannotMountError(Exception):
    """This machine or container lets nobody mount a file system."""


class SmallDisk:
    """A mounted file system that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> int:
        """Leave not one byte; the bytes it took."""
        taken = 0
        with (self.path / _BALLAST).open("ab", buffering=0) as ballast:
            while True:
                try:
                    written = ballast.write(_BLOCK)
                except OSError:
                    return taken
                taken += written

    def relieve(self) -> None:
        """Give back what `fill` took."""
        (self.path / _BALLAST).unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return shutil.disk_usage(self.path).free


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """Mount one while the block runs. Raises CannotMountError."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        raise CannotMountError(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
