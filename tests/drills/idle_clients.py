"""Clients that hold HTTP connections open and complete no request: silent, halfway through a header, or idle.

A connection that the node closes is opened again after a pause, so the number of clients stays the same.

    python -m tests.drills.idle_clients PORT COUNT PAUSE_SECONDS

does it in a process of its own until its standard input ends, and then says in one line of JSON what happened.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, cast

from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK

_TICK_SECONDS: Final = 0.02
_TRICKLE_SECONDS: Final = 1.0
_TICKS_TO_OPEN_ALL: Final = 50
_OWN_DESCRIPTORS: Final = 100
_FEWEST_AT_ONCE: Final = 4
"""So few that they fit into any listen queue: a connection that does not is delayed by a second or more."""


class Way(NamedTuple):
    """What a client sends: `first` once it is connected, `later` every second after that."""

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


class IdleClients:
    """Keeps `count` connections to one port open.

    pause_seconds: how long a client waits before it connects again
    """

    def __init__(self, *, port: int, count: int, pause_seconds: float) -> None:
        self._port, self._pause_seconds = port, pause_seconds
        self._at_once = max(count // _TICKS_TO_OPEN_ALL, _FEWEST_AT_ONCE)
        self._clients = deque((0.0, way) for way in itertools.islice(itertools.cycle(MIXED), count))
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, str] = {}
        self._opening: set[socket.socket] = set()
        self.opened: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def run(self, end: threading.Event) -> None:
        """Open connections, and open again what is closed, until `end` is set."""
        trickled_at = time.monotonic()
        while not end.wait(_TICK_SECONDS):
            self._connect_who_is_due()
            for key, _ in self._selector.select(0.0):
                self._act(cast(socket.socket, key.fileobj))
            if time.monotonic() - trickled_at >= _TRICKLE_SECONDS:
                trickled_at = time.monotonic()
                self._trickle()
        for connection in list(self._open):
            connection.close()
        self._selector.close()

    def _connect_who_is_due(self) -> None:
        now = time.monotonic()
        for _ in range(self._at_once):
            if not self._clients or self._clients[0][0] > now:
                return
            _, way = self._clients.popleft()
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex((LOOPBACK, self._port))
            self._open[connection] = way
            self._opening.add(connection)
            self._selector.register(connection, selectors.EVENT_WRITE)

    def _act(self, connection: socket.socket) -> None:
        """Send the first bytes on a new connection; on an old one, see whether the node has closed it."""
        way = self._open[connection]
        try:
            if connection in self._opening:
                self._opening.discard(connection)
                connection.send(WAYS[way].first)
                self.opened[way] += 1
                self._selector.modify(connection, selectors.EVENT_READ)
            elif not connection.recv(65536):
                self._close(connection)
        except OSError:
            self._close(connection)

    def _trickle(self) -> None:
        for connection, way in list(self._open.items()):
            if WAYS[way].later and connection not in self._opening:
                with suppress(OSError):
                    connection.send(WAYS[way].later)

    def _close(self, connection: socket.socket) -> None:
        way = self._open.pop(connection)
        self.closed[way] += 1
        self._selector.unregister(connection)
        connection.close()
        self._clients.append((time.monotonic() + self._pause_seconds, way))


@contextmanager
def idle_clients(*, port: int, count: int, pause_seconds: float) -> Iterator[dict[str, dict[str, int]]]:
    """Run `IdleClients` in another process while the block runs. Its counts are there when the block has ended."""
    command = [sys.executable, "-m", "tests.drills.idle_clients", str(port), str(count), str(pause_seconds)]
    figures: dict[str, dict[str, int]] = {}
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield figures
        said, _ = process.communicate(timeout=60)
        figures.update(json.loads(said))
    finally:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.idle_clients", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("pause_seconds", type=float)
    arguments = parser.parse_args()
    _raise_limit(arguments.count + _OWN_DESCRIPTORS)
    clients = IdleClients(port=arguments.port, count=arguments.count, pause_seconds=arguments.pause_seconds)
    end = threading.Event()
    threading.Thread(target=_wait_for_input_to_end, args=(end,), daemon=True).start()
    clients.run(end)
    sys.stdout.write(json.dumps({"opened": clients.opened, "closed_by_the_node": clients.closed}) + "\n")
    return 0


def _wait_for_input_to_end(end: threading.Event) -> None:
    sys.stdin.read()
    end.set()


def _raise_limit(wanted: int) -> None:
    """Let this process hold so many connections. Exits where the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
    except (ValueError, OSError):
        sys.exit(f"error: {wanted} descriptors are needed here and {hard} are allowed; raise `ulimit -Hn`")


if __name__ == "__main__":
    sys.exit(main())
