"""Checks whether the disk of films has room: below its reserve the node accepts nothing."""

from __future__ import annotations

import shutil
from typing import Final

from node.checks import Check, fault, note, ok
from node.config import StorageSettings

_NAME: Final = "storage"
_MIB, _GIB = 2**20, 2**30


def check_room(storage: StorageSettings) -> Check:
    """Compare the free space with `storage.min_free_mib`. Raises OSError."""
    free, reserve = shutil.disk_usage(storage.directory).free, storage.min_free_mib * _MIB
    sizes = f"{_size(free)} free, storage.min_free_mib keeps {_size(reserve)}"
    if free < reserve:
        return fault(_NAME, f"{storage.directory} is full: {sizes}; films are refused until space is freed")
    if free < 2 * reserve:
        return note(_NAME, f"{storage.directory} is nearly full: {sizes}; free space or lower storage.keep_days")
    return ok(_NAME, f"{_size(free)} free")


def _size(count: float) -> str:
    return f"{count / _GIB:.{0 if count >= 10 * _GIB else 1}f} GiB"
