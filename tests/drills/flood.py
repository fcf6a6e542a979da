"""Runnable: a node with thousands of idle HTTP connections, while films come and probes ask `/ready`.

    python -m tests.drills.flood [--connections 2000] [--minutes 5] [--descriptors 1024] [--pause 1.0]

Every film must be taken, every probe and every scrape answered, and the node must stay below its limit on descriptors.
The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from models import progress
from models.progress import ProgressReport
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.processes import descriptors
from tests.support.service import Service, settings_for

_PATIENCE_SECONDS: Final = 5.0
_TRICKLE_SECONDS: Final = 1.0
_OWN_DESCRIPTORS: Final = 100


class Way(NamedTuple):
    """What an idle client sends: `first` once it is connected, `later` every second after that."""

    first: bytes
    later: bytes = b""


WAYS: Final[Mapping[str, Way]] = {
    "silent": Way(b""),
    "half a request": Way(b"GET /re"),
    "a byte a second": Way(b"GET /ready HTTP/1.1\r\nHost: node\r\nX-Slow: ", later=b"x"),
    "idle after an answer": Way(b"GET /live HTTP/1.1\r\nHost: node\r\n\r\n"),
}
MIXED: Final = (*["silent", "half a request"] * 7, *["a byte a second"] * 4, *["idle after an answer"] * 2)
"""Of 20 clients 7 are silent, 7 send half a request, 4 send slowly, and 2 idle after an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """How many idle connections there are, for how long, and how many descriptors the node may have.

    pause_seconds: how long an idle client waits before it connects again
    """

    connections: int
    seconds: float
    descriptors: int
    pause_seconds: float = 1.0


@dataclass(slots=True, kw_only=True)
class Probing:
    """Answers to one kind of question: seconds of each that was good, and what was wrong with the others."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """The counts, with the median and the longest time in seconds."""
        return {
            "answered": len(self.seconds),
            "failed": len(self.failures),
            "failures": sorted(set(self.failures))[:5],
            "median_seconds": round(statistics.median(self.seconds), 4) if self.seconds else None,
            "longest_seconds": round(max(self.seconds), 4) if self.seconds else None,
        }

    @property
    def is_good(self) -> bool:
        """Whether something was asked and everything was answered."""
        return bool(self.seconds) and not self.failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.flood", description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--descriptors", type=int, default=1024, help="soft limit of the node")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before a client connects again")
    arguments = parser.parse_args()
    flood = Flood(
        connections=arguments.connections,
        seconds=arguments.minutes * 60.0,
        descriptors=arguments.descriptors,
        pause_seconds=arguments.pause,
    )
    _raise_limit(flood.connections + _OWN_DESCRIPTORS)
    with tempfile.TemporaryDirectory(prefix="flood-") as folder, progress.on(sys.stdout) as say:
        figures = run(flood, Path(folder), say=say)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if figures["passed"] else 1


def run(flood: Flood, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Flood a node; the figures, with `passed`."""
    with peers.ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port)
        with (
            Service(settings, descriptors=flood.descriptors) as node,
            idle_clients(port=node.http_port, count=flood.connections, pause_seconds=flood.pause_seconds) as idle,
        ):
            before = descriptors(node.pid)
            numbers = iter(range(10**9))
            kept = http.client.HTTPConnection(LOOPBACK, node.http_port, timeout=_PATIENCE_SECONDS)
            with (
                repeating(lambda: probe(node.http_port, "/ready"), every_seconds=0.25) as probes,
                repeating(lambda: _scrape(kept), every_seconds=2.0) as scrapes,
                repeating(lambda: _send(node.dicom_port, next(numbers)), every_seconds=1.0) as sent,
            ):
                most = _watch(flood, node.pid, say)
            kept.close()
            lines = [str(line["event"]) for line in list(node.lines)]
            exit_code = node.stop()
    return {
        "passed": all(asked.is_good for asked in (probes, scrapes, sent))
        and most < flood.descriptors
        and sum(idle["opened"].values()) >= flood.connections
        and exit_code == 0,
        "connections": flood.connections,
        **idle,
        "ready": probes.figures(),
        "metrics": scrapes.figures(),
        "films": sent.figures(),
        "descriptors": {"limit": flood.descriptors, "before": before, "most": most},
        "log_lines_about_connections": lines.count("connection.closed"),
        "exit_code": exit_code,
    }


def _watch(flood: Flood, pid: int, say: ProgressReport) -> int:
    """Wait as long as the flood lasts; the most descriptors that the node held."""
    began, most = time.monotonic(), 0
    while (passed := time.monotonic() - began) < flood.seconds:
        say("flooded", min(int(passed), int(flood.seconds)), int(flood.seconds))
        most = max(most, descriptors(pid))
        time.sleep(0.1)
    return most


@contextmanager
def idle_clients(*, port: int, count: int, pause_seconds: float) -> Iterator[dict[str, Counter[str]]]:
    """Hold connections open that complete no request, while the block runs; a closed one is opened again.

    A process of its own holds them: pynetdicom, which sends the films, uses select(2), which fails on descriptors above
    1023.
    pause_seconds: how long a client waits before that
    Yields how many were opened, and how many the node closed, by their way; filled when the block ends.
    """
    context, figures = multiprocessing.get_context("spawn"), dict[str, Counter[str]]()
    here, there = context.Pipe()
    process = context.Process(target=_hold_idle, args=(there, port, count, pause_seconds), daemon=True)
    process.start()
    try:
        yield figures
    finally:
        here.send(None)
        assert here.poll(60), "the idle clients sent no figures"
        figures.update(here.recv())
        process.join(timeout=60)


def _hold_idle(end: Connection, port: int, count: int, pause_seconds: float) -> None:
    """Be the idle clients until something comes by `end`; then send the figures by it."""
    figures = {"opened": Counter[str](), "closed_by_the_node": Counter[str]()}

    async def hold(number: int) -> None:
        name = MIXED[number % len(MIXED)]
        await asyncio.sleep(number / count)  # all within a second: more at once fit into no listen queue
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                figures["opened"][name] += 1
                try:
                    await _until_closed(reader, writer, WAYS[name])
                finally:
                    writer.close()
                figures["closed_by_the_node"][name] += 1
            await asyncio.sleep(pause_seconds)

    async def hold_all() -> None:
        clients = [asyncio.create_task(hold(number)) for number in range(count)]
        await asyncio.to_thread(end.recv)
        for client in clients:
            client.cancel()

    asyncio.run(hold_all())
    end.send(figures)


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
    """Be one client until the node closes its connection, or resets it."""
    writer.write(way.first)
    with suppress(ConnectionError):
        while True:
            with suppress(TimeoutError):
                if not await asyncio.wait_for(reader.read(65536), _TRICKLE_SECONDS if way.later else None):
                    return
            writer.write(way.later)


def _raise_limit(wanted: int) -> None:
    """Let this process hold so many connections. Exits where the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    except (ValueError, OSError):
        sys.exit(f"error: {wanted} descriptors are needed here and {hard} are allowed; raise `ulimit -Hn`")


@contextmanager
def repeating(ask: Callable[[], None], *, every_seconds: float) -> Iterator[Probing]:
    """Ask again and again in a thread while the block runs, and note how long each answer took."""
    probing, closing = Probing(), threading.Event()

    def go_on() -> None:
        while not closing.wait(every_seconds):
            began = time.monotonic()
            try:
                ask()
            except (OSError, http.client.HTTPException, AssertionError) as error:
                probing.failures.append(f"{type(error).__name__}: {error}")
            else:
                probing.seconds.append(time.monotonic() - began)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield probing
    finally:
        closing.set()
        thread.join(timeout=60)


def probe(port: int, path: str) -> None:
    """Ask as the kubelet does: a connection of its own for each probe, and no second try."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, f"{path} answered {answer.status}"
    finally:
        connection.close()


def _scrape(connection: http.client.HTTPConnection) -> None:
    """Ask as Prometheus does: on a kept connection, and once more on a new one where the node has closed that."""
    try:
        try:
            _get_metrics(connection)
        except ConnectionError:
            connection.close()
            _get_metrics(connection)
    except (OSError, http.client.HTTPException):
        connection.close()
        raise


def _get_metrics(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, f"/metrics answered {answer.status}"
    assert "cxr_ready" in text, "/metrics is not whole"


def _send(port: int, number: int) -> None:
    film = films.as_another(films.thumbnail(), f"flood {number}", study=f"flood {number}")
    status = peers.send(film, port=port)
    assert status == 0, f"C-STORE answered {status}"


if __name__ == "__main__":
    sys.exit(main())
