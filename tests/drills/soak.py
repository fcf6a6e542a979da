"""Runnable: all callers at once, good and bad, for as long as asked: what a node needs must not grow.

    python -m tests.drills.soak [--minutes 30] [--seed N]

Ten speak DICOM, each way to call over a connection of its own, and some leave it half-open for a while: a node must get
rid of it by itself. Meanwhile 2,000 HTTP clients complete no request, of a node that may open 1,024 files: every film
must be taken, and every probe and scrape answered. Some load to warm up, a rest, the load that counts, a rest; then
what the node needs is compared. The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Self

from pynetdicom import AE, build_context

from models import progress
from models.progress import ProgressReport
from node.commands import operate
from node.config import Settings
from tests.drills.chaos.night import wait_until_idle
from tests.drills.http_clients import Probing, idle_clients, probe, repeating
from tests.support import films, pdus, peers
from tests.support.processes import Vitals, vitals_of
from tests.support.service import Service, settings_for

CALLER = "TESTER"
CALLERS: Final = 10
_IDLE_SECONDS: Final = 3.0
_REST_LIMIT_SECONDS: Final = 120.0
_MOST_BEHIND: Final = 20
_SAMPLE_SECONDS: Final = 0.5
_STEADY_SECONDS: Final = 3.0
_MORE_CALLS_LIMIT_SECONDS: Final = 120.0
_LONGEST_HOLD_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_STUBBORN = 0.1
_LIMIT_SECONDS = 90.0

_NUMBERS = itertools.count(1)
"""Of the calls of all `Callers` of a process: what is new has a number, and so a UID, that no earlier call had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How long the load lasts, at least, and how much may grow.

    idle_clients, descriptors: HTTP connections that are idle under load, and how many files the node may open
    most_growth: of the memory, from the second third of the load to its last
    room: threads, and descriptors, by which the engine's pools may still grow after the warm-up; they have a largest
        size. Every way to call is gone oftener than that, so one that leaves something behind is found.
    """

    warm_up_seconds: float
    seconds: float
    seed: int
    idle_clients: int = 2000
    descriptors: int = 1024
    most_growth: float = 0.05
    room: int = 32


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60.0
    plan = Shift(warm_up_seconds=min(seconds / 10, 120.0), seconds=seconds, seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder, progress.on(sys.stdout) as say:
        figures = run(plan, Path(folder), say=say)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


class Called(NamedTuple):
    """Who called a node: DICOM callers, idle HTTP clients by their way, answers to probes and to scrapes."""

    callers: Callers
    idle: Counter[str]
    probed: Probing
    scraped: Probing


def run(shift: Shift, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Work one shift; the figures, with `passed`."""
    with peers.ReceivingArchive() as archive:
        plain = settings_for(folder / "node", archive_port=archive.port, callers=(CALLER,))
        settings = replace(plain, listener=replace(plain.listener, idle_seconds=_IDLE_SECONDS))
        with Service(settings, descriptors=shift.descriptors) as node:
            samples: list[Vitals] = []

            def load(stage: str, seconds: float, *, seed: int) -> Called:
                began = time.monotonic()
                with (
                    idle_clients(port=node.http_port, count=shift.idle_clients) as idle,
                    repeating(lambda: probe(node.http_port, "/ready"), every_seconds=0.25) as probed,
                    repeating(lambda: probe(node.http_port, "/metrics"), every_seconds=2.0) as scraped,
                    Callers(port=node.dicom_port, count=CALLERS, seed=seed) as callers,
                ):
                    # As many calls to warm up as under load: what pools keep open depends on how many come at once.
                    while (passed := time.monotonic() - began) < seconds or callers.fewest <= shift.room:
                        if passed > seconds + _MORE_CALLS_LIMIT_SECONDS:
                            break
                        say(stage, min(int(passed), int(seconds)), int(seconds))
                        samples.append(vitals_of(node.pid))
                        callers.is_behind = unread(settings) > _MOST_BEHIND
                        time.sleep(_SAMPLE_SECONDS)
                wait_until_idle(settings, patience_seconds=_REST_LIMIT_SECONDS)
                return Called(callers, idle, probed, scraped)

            load("warming up", shift.warm_up_seconds, seed=shift.seed)
            before = at_rest(node.pid)
            samples.clear()
            callers, idle, probed, scraped = load("under load", shift.seconds, seed=shift.seed + CALLERS)
            after = at_rest(node.pid)
            exit_code = node.stop()
    grown, most = growth(samples), max(sample.descriptors for sample in samples)
    return {
        "passed": grown <= shift.most_growth
        and is_flat(before, after, room=shift.room)
        and most < shift.descriptors
        and callers.fewest > shift.room
        and idle.total() >= shift.idle_clients
        and not callers.failures
        and probed.is_good
        and scraped.is_good
        and exit_code == 0,
        "seed": shift.seed,
        "memory_growth": round(grown, 4),
        "at_rest_before": asdict(before),
        "at_rest_after": asdict(after),
        "most_descriptors": most,
        "calls": dict(callers.calls),
        "unexpected": callers.failures,
        "idle_clients": idle,
        "ready": probed.figures(),
        "metrics": scraped.figures(),
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


class Callers:
    """Threads that call a node in every way, all ways equally often, in an order drawn anew, while the block runs.

    `failures` names the calls whose outcome was not what it should be, with what came instead.
    Set `is_behind` while the node has so much to read that whoever brings something new should wait.
    """

    def __init__(self, *, port: int, count: int, seed: int) -> None:
        self._port = port
        self.is_behind = False
        self.calls: Counter[str] = Counter()
        self.failures: list[str] = []
        self._draw, self._deck, self._drawing = random.Random(seed), list[str](), threading.Lock()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + number),), daemon=True)
            for number in range(1, count + 1)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout=60)

    @property
    def fewest(self) -> int:
        """How often the way was gone that was gone least."""
        return min(self.calls[name] for name in WAYS)

    def _run(self, draw: random.Random) -> None:
        while not self._closing.wait(draw.uniform(0.0, _PAUSE_SECONDS)):
            name = self._next()
            while name in NEW and self.is_behind and not self._closing.wait(_PAUSE_SECONDS):
                pass
            if wrong := WAYS[name](self._port, draw, next(_NUMBERS)):
                self.failures.append(f"{name}: {wrong}")
            self.calls[name] += 1

    def _next(self) -> str:
        with self._drawing:
            if not self._deck:
                self._deck = self._draw.sample(list(WAYS), len(WAYS))
            return self._deck.pop()


def send_a_study(port: int, draw: random.Random, number: int) -> str | None:
    """Send one or two new films."""
    study = f"soak {number}"
    sources = [films.as_another(films.thumbnail(), f"{study} {n}", study=study) for n in range(draw.randint(1, 2))]
    return _unless_taken(peers.send_all(sources, port=port, calling_ae=CALLER))


def send_a_lateral(port: int, _draw: random.Random, number: int) -> str | None:
    """Send a film that is answered and not read."""
    film = films.as_another(films.lateral(), f"lateral {number}", study=f"lateral {number}")
    return _unless_taken([peers.send(film, port=port, calling_ae=CALLER)])


def send_without_uids(port: int, _draw: random.Random, _number: int) -> str | None:
    """Send what cannot be kept; it must be refused."""
    status = peers.send(films.changed(films.thumbnail(), {"StudyInstanceUID": ""}), port=port, calling_ae=CALLER)
    return f"answered by {status}" if status in (0, None) else None


def abort(port: int, draw: random.Random, _number: int) -> str | None:
    """Associate, wait, and abort."""
    film, entity = films.thumbnail(), AE(ae_title=CALLER)
    contexts = [build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)]
    association = entity.associate(peers.LOOPBACK, port, contexts=contexts, ae_title="CHEX")
    time.sleep(draw.uniform(0.0, _LONGEST_HOLD_SECONDS))
    association.abort()
    return None


WAYS: Mapping[str, Callable[[int, random.Random, int], str | None]] = {
    "study": send_a_study,
    "the film that all send": lambda port, _draw, _number: _unless_taken([_sent(port)]),
    "lateral": send_a_lateral,
    "without uids": send_without_uids,
    "stranger": lambda port, _draw, _number: _unless_refused(_sent(port, calling_ae="STRANGER")),
    "somebody else": lambda port, _draw, _number: _unless_refused(_sent(port, called_ae="OTHER")),
    "abort": abort,
    "silence": lambda port, draw, _number: _say(port, b"", draw),
    "half a request": lambda port, draw, _number: _say(port, _request()[: draw.randrange(len(_request()))], draw),
    "half an object": lambda port, draw, _number: _say(port, _request(), draw, afterwards=_begun_object(draw)),
    "no DICOM": lambda port, draw, _number: _say(port, draw.randbytes(draw.randrange(1, 65536)), draw),
}

NEW = ("study", "lateral")
"""What a node has to read; everything else costs it little."""


def _unless_taken(statuses: list[int | None]) -> str | None:
    return None if all(status == 0 for status in statuses) else f"answered by {statuses}"


def _unless_refused(status: int | None) -> str | None:
    return None if status is None else f"answered by {status}"


def _sent(port: int, *, calling_ae: str = CALLER, called_ae: str = "CHEX") -> int | None:
    return peers.send(films.thumbnail(), port=port, calling_ae=calling_ae, called_ae=called_ae)


def _begun_object(draw: random.Random) -> bytes:
    """Announce an object, and begin it."""
    return struct.pack(">BxL", 0x04, 100_000) + bytes(draw.randrange(1, 90_000))


def _request() -> bytes:
    """An association request for the film, as bytes."""
    film = films.thumbnail()
    syntax = film.file_meta.TransferSyntaxUID.encode()
    return pdus.request(contexts=pdus.context(1, film.SOPClassUID.encode(), [syntax]))


def _say(port: int, content: bytes, draw: random.Random, *, afterwards: bytes = b"") -> str | None:
    """Send bytes as they are, more after an answer if wanted, hold the connection open for a while, and drop it."""
    with suppress(OSError), socket.create_connection((peers.LOOPBACK, port), timeout=_LIMIT_SECONDS) as connection:
        connection.sendall(content)
        if afterwards:
            connection.recv(65536)
            connection.sendall(afterwards)
        is_stubborn = draw.random() < _STUBBORN
        connection.settimeout(_LIMIT_SECONDS if is_stubborn else draw.uniform(0.01, _LONGEST_HOLD_SECONDS))
        with suppress(TimeoutError):
            while connection.recv(65536):  # a stubborn one waits until the node hangs up
                pass
        if draw.random() < 0.5:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return None


if __name__ == "__main__":
    sys.exit(main())
