"""Files of ours that must survive a power cut: written aside, synced, renamed, and their folder synced.

A file still under its temporary name was never acknowledged to anybody.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from node.domain import JsonObject

TEMPORARY: Final = ".incoming-"
"""How the name of a file begins that is not complete."""


def write(path: Path, *parts: bytes) -> None:
    """Write a file into a folder that exists. On any failure nothing is left behind."""
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.rename(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder (mode 0700) whose own entry, and those of its new parents, survive a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Let what was renamed or removed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(content: Mapping[str, object]) -> bytes:
    """Return the content of a file that `read_json` reads."""
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def read_json(path: Path) -> JsonObject | None:
    """Read a file of ours; one that is missing or damaged counts as absent, so that its work is done again."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
