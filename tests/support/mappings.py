"""What of a file is mapped into this process, as the system tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def mapped_kib(path: Path, *, counted: Literal["Rss", "Size"]) -> int:
    """KiB of a file; Rss: those whose pages are in memory; Size: all that is mapped."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.endswith(f" {path}"):
            found = True
        elif found and line.startswith(f"{counted}:"):
            found, total = False, total + int(line.split()[1])
    return total
