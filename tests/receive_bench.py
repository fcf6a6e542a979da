"""Runnable: how many films of 10 MB the listener keeps in a second, beside dcmtk's `storescp --fork`.

    python -m tests.receive_bench [--films N] [--rounds N]

Four of dcmtk's `storescu` send at once, each its own films over one association. The node's listener is a process of
its own and syncs every film before it answers; `storescp` forks a process for each association and syncs nothing. They
take turns. The last line is one JSON object: medians in films a second, and whether the node keeps LEAST_PER_SECOND.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from node import log
from node.config import ListenerSettings
from tests import films
from tests.listening import connect, listening
from tests.peers import LOOPBACK, free_port, require, wait_until

SENDERS = 4
ROWS, COLUMNS = 2320, 2240
"""10.4 MB at 16 bits, a common size of a chest film."""

LEAST_PER_SECOND = 12.0
REPOSITORY = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0 when the node is fast enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=8, help="how many each sender sends in one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--listen", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.listen is not None:
        return listen(options.listen)
    with tempfile.TemporaryDirectory(prefix="receive-bench-") as folder:
        figures = measure(Path(folder), count=options.films, rounds=options.rounds)
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


def measure(folder: Path, *, count: int, rounds: int) -> dict[str, float | int | bool]:
    """Let the node and storescp take turns."""
    outboxes = [write_films(folder / f"outbox-{number}", count) for number in range(SENDERS)]
    speeds: dict[str, list[float]] = {"node": [], "storescp": []}
    for number in range(1, rounds + 1):
        for name, serving in (("node", node(folder / "node")), ("storescp", storescp(folder / "storescp"))):
            with serving as port:
                speeds[name].append(SENDERS * count / send_all(outboxes, port))
            received = len([*(folder / name).rglob("*.dcm")])
            if received != SENDERS * count:
                raise SystemExit(f"failed: {name} keeps {received} of {SENDERS * count} films")
            shutil.rmtree(folder / name)
        print(f"round {number}: " + ", ".join(f"{name} {taken[-1]:.1f} films/s" for name, taken in speeds.items()))
    medians = {name: statistics.median(taken) for name, taken in speeds.items()}
    return {
        "passed": medians["node"] >= LEAST_PER_SECOND,
        "node_films_per_second": round(medians["node"], 2),
        "storescp_films_per_second": round(medians["storescp"], 2),
        "ratio": round(medians["node"] / medians["storescp"], 3),
        "film_bytes": next(outboxes[0].iterdir()).stat().st_size,
        "senders": SENDERS,
        "films": SENDERS * count * rounds,
    }


def write_films(folder: Path, count: int) -> Path:
    """Write films whose pixels are no two alike; what they show does not matter to a listener."""
    folder.mkdir()
    pixels = np.random.default_rng(6).integers(0, 4096, (ROWS, COLUMNS), dtype=np.uint16)
    film = films.with_pixels(films.thumbnail(), pixels, bits=12)
    for number in range(count):
        name = f"{folder.name}-{number}"
        (folder / f"{name}.dcm").write_bytes(films.file_bytes(films.as_another(film, name, study=name)))
    return folder


def send_all(outboxes: Sequence[Path], port: int) -> float:
    """Send the films of every sender at once; how many seconds that took."""
    command = [require("storescu"), "+sd", "-aet", "TESTER", "-aec", "CHEX", "-pdu", "131072", LOOPBACK, str(port)]
    began = time.monotonic()
    senders = [subprocess.Popen([*command, str(outbox)], stderr=subprocess.DEVNULL) for outbox in outboxes]
    codes = [sender.wait(timeout=600) for sender in senders]
    if any(codes):
        raise SystemExit(f"failed: storescu ended with {codes}")
    return time.monotonic() - began


@contextmanager
def node(folder: Path) -> Iterator[int]:
    """Run the listener as a process of its own; its port."""
    command = [sys.executable, "-m", "tests.receive_bench", "--listen", str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int((process.stdout.readline() if process.stdout else "") or 0)
        finally:
            process.terminate()


def listen(folder: Path) -> int:
    """Be that process: say the port, and keep what comes until SIGTERM."""
    log.mute()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    with open("/dev/null", "w", encoding="utf-8") as nowhere, listening(folder, settings=ListenerSettings()) as running:
        print(running.listener.port, flush=True)
        sys.stdout = nowhere  # a line of the log for every film, as a service writes them, for nobody
        log.configure()
        stop.wait()
        sys.stdout = sys.__stdout__
    return 0


@contextmanager
def storescp(folder: Path) -> Iterator[int]:
    """Run dcmtk's receiver; its port."""
    folder.mkdir()
    port = free_port()
    command = [
        require("storescp"),
        "--fork",
        "-pdu",
        "131072",
        "-aet",
        "CHEX",
        "-fe",
        ".dcm",
        "-od",
        str(folder),
        str(port),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port), what="storescp listens")
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
