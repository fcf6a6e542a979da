"""HTTP clients beside a node under load: thousands of idle connections, and probes that ask again and again."""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import resource
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from tests.support.peers import LOOPBACK

_PATIENCE_SECONDS: Final = 5.0
_TRICKLE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 10.0
"""For which an idle client waits before it connects again."""
_AT_ONCE: Final = 400
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


@contextmanager
def idle_clients(*, port: int, count: int) -> Iterator[Counter[str]]:
    """Hold connections open that complete no request, while the block runs; a closed one is opened again.

    A process of its own holds them: pynetdicom, which sends the films, uses select(2), which fails on descriptors above
    1023.
    Yields how many were opened, by their way; filled when the block ends.
    """
    context, opened = multiprocessing.get_context("spawn"), Counter[str]()
    here, there = context.Pipe()
    process = context.Process(target=_hold_idle, args=(there, port, count), daemon=True)
    process.start()
    try:
        yield opened
    finally:
        here.send(None)
        assert here.poll(60), "the idle clients sent no figures"
        opened.update(here.recv())
        process.join(timeout=60)


def _hold_idle(end: Connection, port: int, count: int) -> None:
    """Be the idle clients until something comes by `end`; then send the figures by it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + _OWN_DESCRIPTORS), hard))
    opened = Counter[str]()

    async def hold(number: int) -> None:
        name = MIXED[number % len(MIXED)]
        await asyncio.sleep(number / _AT_ONCE)  # more in a second fit into no listen queue
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                opened[name] += 1
                try:
                    await _until_closed(reader, writer, WAYS[name])
                finally:
                    writer.close()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def hold_all() -> None:
        clients = [asyncio.create_task(hold(number)) for number in range(count)]
        await asyncio.to_thread(end.recv)
        for client in clients:
            client.cancel()

    asyncio.run(hold_all())
    end.send(opened)


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
    """Be one client until the node closes its connection, or resets it."""
    writer.write(way.first)
    with suppress(ConnectionError):
        while True:
            with suppress(TimeoutError):
                if not await asyncio.wait_for(reader.read(65536), _TRICKLE_SECONDS if way.later else None):
                    return
            writer.write(way.later)


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
