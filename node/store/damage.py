"""When stored data were found damaged last, as empty files that tell it by their time: all processes see them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_PREFIX: Final = "found-damaged-"


def note(directory: Path, what: str) -> None:
    """Note that a stored film or output was found damaged now; a disk that takes no file changes nothing else."""
    with suppress(OSError):
        (directory / f"{_PREFIX}{what}").touch(mode=0o600)


def found(directory: Path) -> Mapping[str, datetime]:
    """Return when each kind of stored data was found damaged last. Raises OSError."""
    return {
        path.name.removeprefix(_PREFIX): datetime.fromtimestamp(path.stat().st_mtime, UTC)
        for path in sorted(directory.glob(f"{_PREFIX}*"))
    }
