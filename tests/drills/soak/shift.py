"""One shift of a node: some load to warm up, a rest, the load that counts, a rest; then what it needs is compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from models.progress import ProgressReport
from node.commands import operate
from node.config import Settings
from tests.drills.chaos.night import wait_until_idle
from tests.drills.soak.callers import CALLER, Callers
from tests.support import peers
from tests.support.processes import Vitals, vitals_of
from tests.support.service import Service, settings_for

CALLERS: Final = 10
_IDLE_SECONDS: Final = 3.0
_REST_LIMIT_SECONDS: Final = 120.0
_MOST_BEHIND: Final = 20
_SAMPLE_SECONDS: Final = 0.5
_STEADY_SECONDS: Final = 3.0
_MORE_CALLS_LIMIT_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How long the load lasts, at least, and how much may grow.

    most_growth: of the memory, from the second third of the load to its last
    room: threads, and descriptors, by which the engine's pools may still grow after the warm-up; they have a largest
        size. Every way to call is gone oftener than that, so one that leaves something behind is found.
    """

    warm_up_seconds: float
    seconds: float
    most_growth: float
    room: int
    seed: int


def run(shift: Shift, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Work one shift; the figures, with `passed`."""
    with peers.ReceivingArchive() as archive:
        plain = settings_for(folder / "node", archive_port=archive.port, callers=(CALLER,))
        settings = replace(plain, listener=replace(plain.listener, idle_seconds=_IDLE_SECONDS))
        with Service(settings) as node:
            samples: list[Vitals] = []

            def load(stage: str, seconds: float, *, seed: int, calls: int) -> Callers:
                began = time.monotonic()
                with Callers(port=node.dicom_port, count=CALLERS, seed=seed) as callers:
                    while (passed := time.monotonic() - began) < seconds or callers.fewest < calls:
                        if passed > seconds + _MORE_CALLS_LIMIT_SECONDS:
                            break
                        say(stage, min(int(passed), int(seconds)), int(seconds))
                        samples.append(vitals_of(node.pid))
                        callers.is_behind = unread(settings) > _MOST_BEHIND
                        time.sleep(_SAMPLE_SECONDS)
                wait_until_idle(settings, patience_seconds=_REST_LIMIT_SECONDS)
                return callers

            # As many calls as under load: what pools keep open depends on how many come at once.
            load("warming up", shift.warm_up_seconds, seed=shift.seed, calls=shift.room + 1)
            before = at_rest(node.pid)
            samples.clear()
            callers = load("under load", shift.seconds, seed=shift.seed + CALLERS, calls=shift.room + 1)
            after = at_rest(node.pid)
            exit_code = node.stop()
    grown, is_thorough = growth(samples), callers.fewest > shift.room
    is_good = (
        grown <= shift.most_growth and is_flat(before, after, room=shift.room) and is_thorough and not callers.failures
    )
    return {
        "passed": is_good and exit_code == 0,
        "seed": shift.seed,
        "memory_growth": round(grown, 4),
        "most_memory_growth": shift.most_growth,
        "at_rest_before": asdict(before),
        "at_rest_after": asdict(after),
        "calls": dict(callers.calls),
        "unexpected": callers.failures,
        "exit_code": exit_code,
    }


def unread(settings: Settings) -> int:
    """How many studies a node has not finished."""
    studies = operate.status(settings)["studies"]
    return studies["receiving"] + studies["reading"]


def growth(samples: Sequence[Vitals]) -> float:
    """Return the memory of the last third of the samples over that of the second, by their medians, less one."""
    third = len(samples) // 3
    second, last = (
        median(sample.resident_kib for sample in part) for part in (samples[third : 2 * third], samples[2 * third :])
    )
    return last / second - 1.0


def is_flat(before: Vitals, after: Vitals, *, room: int) -> bool:
    """Whether a process that has nothing to do holds no more threads and descriptors than it did, pools aside."""
    return after.threads <= before.threads + room and after.descriptors <= before.descriptors + room


def at_rest(pid: int) -> Vitals:
    """Wait until the process has held the same threads and descriptors for a while, however long its timeouts are."""
    end, since, last = time.monotonic() + _REST_LIMIT_SECONDS, time.monotonic(), vitals_of(pid)
    while time.monotonic() - since < _STEADY_SECONDS and time.monotonic() < end:
        time.sleep(_SAMPLE_SECONDS)
        now = vitals_of(pid)
        if (now.threads, now.descriptors) != (last.threads, last.descriptors):
            since = time.monotonic()
        last = now
    return last
