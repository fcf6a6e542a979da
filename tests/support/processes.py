"""What processes take of the machine: processor time, memory, descriptors (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def core_seconds(process: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def core_seconds_below(process: int) -> float:
    """Return the processor time of the processes below one: of its children, and of theirs."""
    total = 0.0
    for child in _below(process):
        with suppress(OSError):  # it has ended
            total += core_seconds(child)
    return total


def memory_mib(process: int) -> int:
    """Return what a process and all below it have in memory; what they share counts once (Pss)."""
    total = 0
    for each in (process, *_below(process)):
        with suppress(OSError, IndexError):  # it has ended
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text(encoding="ascii")
            total += int(rollup.split("\nPss:")[1].split()[0])
    return total // 1024


def mapped_kib(path: Path) -> int:
    """KiB of a file that this process has mapped and whose pages are in memory."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.endswith(f" {path}"):
            found = True
        elif found and line.startswith("Rss:"):
            found, total = False, total + int(line.split()[1])
    return total


def descriptors(process: int) -> int:
    """Count the files that a process holds open; 0 when it has ended."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{process}/fd"))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a process needs at one moment."""

    resident_kib: int
    threads: int
    descriptors: int


def vitals_of(process: int) -> Vitals:
    """Read them. Raises FileNotFoundError when there is no such process."""
    resident, threads = status_of(process, "VmRSS"), status_of(process, "Threads")
    return Vitals(resident_kib=resident, threads=threads, descriptors=descriptors(process))


def status_of(process: int, key: str) -> int:
    """A number that a process's status tells: of memory, in KiB (VmHWM is the most that it had)."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.split(f"\n{key}:")[1].split()[0])


def _below(process: int) -> Iterator[int]:
    waiting = [process]
    while waiting:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [*map(int, (task / "children").read_text(encoding="ascii").split())]
                waiting += children
                yield from children
