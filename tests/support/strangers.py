"""Runnable: how much slower known senders are while a stranger asks for associations again and again.

    python -m tests.support.strangers [--megabytes-per-second R] [--syntaxes N] [--seconds S] [--rounds N]

The listener, the stranger and the known senders are three processes. The stranger calls from another address than the
senders, 127.0.0.2, over several connections at once, does not wait for answers, and names so many transfer syntaxes in
each request. Rounds without and with the stranger take turns, so other work on the machine changes the seconds more
than their ratio. The last line is one JSON object; `passed`: a film takes at most MOST_SLOWER times as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

from tests.drills.bench import receiving
from tests.paths import REPOSITORY
from tests.support import films, pdus, processes
from tests.support.pdus import Recording

MOST_SLOWER: Final = 2.0
ELSEWHERE: Final = "127.0.0.2"
"""An address that no setting names."""

_CONNECTIONS: Final = 8
_SENDERS: Final = 2
_MOST_CONTEXTS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the stranger sends: bytes a second in all, transfer syntaxes in each request; seconds of each round."""

    bytes_per_second: float
    syntaxes: int
    seconds: float
    rounds: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0 when known senders are fast enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes-per-second", type=float, default=1.0)
    parser.add_argument("--syntaxes", type=int, default=14_000, help="in each request of the stranger")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="with the stranger, and as many without")
    parser.add_argument("--flood", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    plan = Plan(
        bytes_per_second=options.megabytes_per_second * 1e6,
        syntaxes=options.syntaxes,
        seconds=options.seconds,
        rounds=options.rounds,
    )
    if options.flood is not None:
        return flood(plan, port=options.flood)
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        figures = measure(plan, Path(folder))
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


def measure(plan: Plan, folder: Path) -> dict[str, object]:
    """Send films with and without the stranger, by turns; seconds are those from a film's request to its end."""
    alone, beside, core_seconds = list[float](), list[float](), 0.0
    with receiving.node(folder) as (port, process):
        recording = pdus.record(films.thumbnail(), port=port)
        send_films(recording, port, seconds=1.0)
        for _ in range(plan.rounds):
            alone += send_films(recording, port, seconds=plan.seconds)
            before = processes.core_seconds(process)
            with stranger(plan, port):
                beside += send_films(recording, port, seconds=plan.seconds)
            core_seconds += processes.core_seconds(process) - before
    ratio = statistics.fmean(beside) / statistics.fmean(alone)
    return {
        "passed": ratio <= MOST_SLOWER,
        "ratio": round(ratio, 2),
        "alone": summary(alone),
        "beside": summary(beside),
        "core_seconds_beside": round(core_seconds, 2),
        "seconds_beside": plan.seconds * plan.rounds,
        "limit": MOST_SLOWER,
    }


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """The count of films, and the seconds that they took."""
    return {
        "films": len(seconds),
        "mean_seconds": round(statistics.fmean(seconds), 4),
        "longest_seconds": round(max(seconds), 3),
    }


def send_films(recording: Recording, port: int, *, seconds: float) -> list[float]:
    """Let several known senders send films, each in an association of its own; how long each took."""
    with ThreadPoolExecutor(_SENDERS) as senders:
        taken = senders.map(_send_films, *([value] * _SENDERS for value in (recording, port, seconds)))
        return [each for several in taken for each in several]


def _send_films(recording: Recording, port: int, seconds: float) -> list[float]:
    end, taken = time.monotonic() + seconds, list[float]()
    while not taken or time.monotonic() < end:
        began = time.monotonic()
        with pdus.associate(recording, port=port) as sender:
            sender.sendall(b"".join(recording.store))
            status = pdus.status_of(pdus.read_pdu(sender))
            sender.sendall(recording.release)
            pdus.read_pdu(sender)
        if status != 0x0000:
            raise SystemExit(f"failed: the listener answered {status}")
        taken.append(time.monotonic() - began)
    return taken


@contextmanager
def stranger(plan: Plan, port: int) -> Iterator[None]:
    """Flood a port from another process until the block ends."""
    command = [sys.executable, "-m", "tests.support.strangers", "--flood", str(port)]
    command += ["--megabytes-per-second", str(plan.bytes_per_second / 1e6), "--syntaxes", str(plan.syntaxes)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not process.stdout.readline():
                raise SystemExit("failed: the stranger did not begin")
            yield
        finally:
            process.terminate()


def flood(plan: Plan, *, port: int) -> int:
    """Be the stranger: send requests at this rate, until the process is ended."""
    request = request_of(plan.syntaxes)
    pause = len(request) * _CONNECTIONS / plan.bytes_per_second
    callers = [
        threading.Thread(target=_call_for_ever, args=(request, port, pause), daemon=True) for _ in range(_CONNECTIONS)
    ]
    for caller in callers:
        caller.start()
    print("began", flush=True)
    for caller in callers:
        caller.join()
    return 0


def _call_for_ever(request: bytes, port: int, pause: float) -> None:
    due = time.monotonic()
    for _ in repeat(None):
        with suppress(OSError), pdus.calling_from(ELSEWHERE, port) as connection:
            connection.sendall(request)
        due = max(due + pause, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def request_of(syntaxes: int) -> bytes:
    """An association request that names so many transfer syntaxes, in as many contexts as there can be."""
    contexts = min(syntaxes, _MOST_CONTEXTS)
    names = [b"1.2.%d" % number for number in range(max(1, syntaxes // contexts))]
    offered = b"".join(pdus.context(2 * number + 1, b"1.2", names) for number in range(contexts))
    return pdus.request(calling=b"STRANGER", contexts=offered)


if __name__ == "__main__":
    sys.exit(main())
