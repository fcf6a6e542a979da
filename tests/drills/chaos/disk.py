"""A disk that is full to the last byte while films come."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from models.progress import ProgressReport
from tests.drills.chaos import night
from tests.drills.chaos.senders import Senders, caller_names
from tests.drills.chaos.verdict import judge
from tests.support import peers
from tests.support.service import settings_for

_DISK_MIB: Final = 96
_BALLAST: Final = "ballast"
_BLOCK: Final = bytes(65536)
_LIMIT_SECONDS: Final = 300.0


class CannotMountError(Exception):
    """This machine or container lets nobody mount a file system."""


def run(folder: Path, *, films: int, seconds: float, seed: int, say: ProgressReport) -> dict[str, object]:
    """Fill the node's disk for some seconds under load, and give room again. Raises CannotMountError."""
    began, port, third = time.monotonic(), peers.free_port(), films // 3
    with small_disk(folder / "node", mib=_DISK_MIB) as disk, peers.ReceivingArchive() as archive:
        callers = caller_names(night.SENDERS)
        settings = settings_for(disk, archive_port=archive.port, dicom_port=port, callers=callers, min_free_mib=0)
        with night.one_process(settings) as node:
            sending = Senders(port=port, count=night.SENDERS, films=films, draw=random.Random(seed))
            with closing(sending) as senders:
                senders.allow(third)
                senders.wait_for(third, limit_seconds=_LIMIT_SECONDS)
                fill(disk)
                say("the disk is full")
                senders.allow(films)
                time.sleep(seconds)
                free, ends = shutil.disk_usage(disk).free, list(node.crashes)
                (disk / _BALLAST).unlink()
                is_taken = senders.wait_for(films, limit_seconds=_LIMIT_SECONDS)
            is_idle = night.wait_until_idle(settings, patience_seconds=_LIMIT_SECONDS)
            excused = night.IN_HAND * node.ends
        verdict = judge(archive, senders.acknowledged, excused=excused)
    return {
        "passed": verdict.passed and is_taken and is_idle and free == 0,
        "acknowledged": senders.done,
        "idle_at_the_end": is_idle,
        "free_bytes_meanwhile": free,
        "ends_meanwhile": ends,
        "archive": verdict.figures(),
        "seconds": round(time.monotonic() - began, 1),
    }


def fill(disk: Path) -> None:
    """Leave not one byte."""
    with (disk / _BALLAST).open("ab", buffering=0) as ballast:
        while True:
            try:
                ballast.write(_BLOCK)
            except OSError:
                return


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[Path]:
    """Mount one while the block runs. Raises CannotMountError."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        raise CannotMountError(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
