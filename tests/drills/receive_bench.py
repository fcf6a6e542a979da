"""Runnable: how many films of 10 MB, and objects of 39 kB, the listener keeps in a second, beside `storescp --fork`.

    python -m tests.drills.receive_bench [--films N] [--rounds N]

Four of dcmtk's `storescu` send at once, each its own films over one association. The node's listener is a process of
its own and syncs every film before it answers; `storescp` forks a process for each association and syncs nothing. They
take turns, and each round has its ratio, so other work on the machine changes the objects a second more than the ratio.
A table shows medians; the last line is one JSON object. `passed`: the median ratio is at least LEAST_FILM_RATIO for
films and LEAST_SMALL_RATIO for small objects.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from node import log
from node.config import ListenerSettings
from tests.paths import REPOSITORY
from tests.support import films
from tests.support.listening import connect, listening
from tests.support.peers import LOOPBACK, free_port, require, wait_until

SENDERS = 4
FILM = (2320, 2240)
"""Rows and columns; 10.4 MB at 16 bits, a common size of a chest film."""

SMALL = (137, 137)
"""39 kB with its header: what each object costs, however small."""

SMALL_PER_FILM = 6

LEAST_FILM_RATIO = 1.0
LEAST_SMALL_RATIO = 0.5
"""Objects a second of the node, which syncs them, for each of storescp."""


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


def measure(folder: Path, *, count: int, rounds: int) -> dict[str, object]:
    """Measure films, and then small objects; every figure of the node stands beside storescp's."""
    films_ = compare(folder / "films", FILM, count=count, rounds=rounds)
    small = compare(folder / "small", SMALL, count=SMALL_PER_FILM * count, rounds=rounds)
    print("| objects | node, a second | storescp, a second | ratio, least to greatest | core seconds of an object |")
    print("|---|---|---|---|---|")
    for figures in (films_, small):
        print(row(figures))
    return {
        "passed": films_["ratio"] >= LEAST_FILM_RATIO and small["ratio"] >= LEAST_SMALL_RATIO,
        "senders": SENDERS,
        "films": {**films_, "limit": LEAST_FILM_RATIO},
        "small": {**small, "limit": LEAST_SMALL_RATIO},
    }


def row(figures: dict[str, float]) -> str:
    """Return a line of the table in the documents."""
    size, speeds = (
        figures["object_bytes"],
        [
            f"{figures[f'{name}_per_second']:.1f} ({figures[f'{name}_least']:.1f} to {figures[f'{name}_greatest']:.1f})"
            for name in ("node", "storescp")
        ],
    )
    name = f"{size / 1e6:.1f} MB" if size > 1e6 else f"{size / 1e3:.0f} kB"
    ratio = f"{figures['ratio']:.2f} ({figures['ratio_least']:.2f} to {figures['ratio_greatest']:.2f})"
    costs = f"{figures['node_core_seconds']:.4f}, storescp {figures['storescp_core_seconds']:.4f}"
    return f"| {name}, {figures['objects']:.0f} | {speeds[0]} | {speeds[1]} | {ratio} | {costs} |"


def compare(folder: Path, size: tuple[int, int], *, count: int, rounds: int) -> dict[str, float]:
    """Let the node and storescp take turns with objects of one size: rows, columns."""
    folder.mkdir()
    outboxes = [write_films(folder / f"outbox-{number}", size, count=count) for number in range(SENDERS)]
    speeds, costs = ({"node": list[float](), "storescp": list[float]()} for _ in range(2))
    total = SENDERS * count
    for number in range(1, rounds + 1):
        for name, serving in (("node", node(folder / "node")), ("storescp", storescp(folder / "storescp"))):
            with serving as (port, process):
                before = core_seconds(process)
                speeds[name].append(total / send_all(outboxes, port))
                costs[name].append((core_seconds(process) - before) / total)
            received = len([*(folder / name).rglob("*.dcm")])
            if received != total:
                raise SystemExit(f"failed: {name} keeps {received} of {total} objects")
            shutil.rmtree(folder / name)
        print(f"round {number}: " + ", ".join(f"{name} {taken[-1]:.1f} a second" for name, taken in speeds.items()))
    ratios = [ours / theirs for ours, theirs in zip(speeds["node"], speeds["storescp"], strict=True)]
    return {
        **{
            f"{name}_{what}": round(of(speeds[name]), 2)
            for name in speeds
            for what, of in (("per_second", statistics.median), ("least", min), ("greatest", max))
        },
        "ratio": round(statistics.median(ratios), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_greatest": round(max(ratios), 3),
        "node_core_seconds": round(statistics.median(costs["node"]), 5),
        "storescp_core_seconds": round(statistics.median(costs["storescp"]), 5),
        "object_bytes": next(outboxes[0].iterdir()).stat().st_size,
        "objects": total * rounds,
    }


def core_seconds(process: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def core_seconds_below(process: int) -> float:
    """Return the processor time of the processes below one: of its children, and of theirs."""
    parents = dict[int, list[int]]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0.0, [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        waiting += children
        for child in children:
            with suppress(OSError):
                total += core_seconds(child)
    return total


def write_films(folder: Path, size: tuple[int, int], *, count: int) -> Path:
    """Write films whose pixels are no two alike; what they show does not matter to a listener."""
    folder.mkdir()
    pixels = np.random.default_rng(6).integers(0, 4096, size, dtype=np.uint16)
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
def node(folder: Path) -> Iterator[tuple[int, int]]:
    """Run the listener as a process of its own; its port, and the process."""
    command = [sys.executable, "-m", "tests.drills.receive_bench", "--listen", str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int((process.stdout.readline() if process.stdout else "") or 0), process.pid
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
def storescp(folder: Path) -> Iterator[tuple[int, int]]:
    """Run dcmtk's receiver; its port, and the process."""
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
            yield port, process.pid
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
