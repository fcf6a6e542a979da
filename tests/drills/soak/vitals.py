"""What a process needs, read from /proc, and whether it stays the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a process needs at one moment."""

    resident_kib: int
    threads: int
    descriptors: int


def vitals_of(pid: int) -> Vitals:
    """Read them (proc_pid_status(5)). Raises FileNotFoundError when there is no such process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return Vitals(
        resident_kib=int(fields["VmRSS"]),
        threads=int(fields["Threads"]),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
    )


def growth(samples: Sequence[Vitals]) -> float:
    """The memory of the last third of the samples over that of the second, by their medians, less one."""
    third = len(samples) // 3
    second, last = (
        median(sample.resident_kib for sample in part) for part in (samples[third : 2 * third], samples[2 * third :])
    )
    return last / second - 1.0
