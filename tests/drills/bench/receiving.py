"""How many films of 10 MB, and smaller objects, the listener keeps in a second, beside its peers: part `receive`.

Four of dcmtk's `storescu` send at once, each its own films over one association. The node's listener is a process of
its own and syncs every film and its name before it answers. So does Orthanc with the film, not with its name;
dcmtk's `storescp --fork` starts a process for each association and syncs nothing. They take turns, and each round has
its ratios, so other work on the machine changes the objects a second more than the ratios.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from node import log
from node.config import ListenerSettings
from tests.drills.bench.results import Found
from tests.drills.bench.turns import ratios
from tests.paths import REPOSITORY
from tests.support import films
from tests.support.listening import connect, listening
from tests.support.orthanc import Orthanc
from tests.support.peers import LOOPBACK, free_port, require, wait_until

SENDERS = 4
SIZES: Final = {"films": ((2320, 2240), 1), "small": ((137, 137), 6)}
"""Rows and columns, and how many are sent for each film: of 10.4 MB, a common size of a chest film, and of 39 kB, for
what an object costs at least."""


def measure(folder: Path, *, count: int, rounds: int) -> Found:
    """Measure each size of objects; every figure of the node stands beside its peers'."""
    figures = {
        name: compare(folder / name, size, count=each * count, rounds=rounds) for name, (size, each) in SIZES.items()
    }
    held = {
        f"receive_{size}_{peer}_ratio": figures[size][peer]["ratio"]
        for size in figures
        for peer in ("storescp", "orthanc")
    }
    return Found(figures=figures, held=held)


def compare(folder: Path, size: tuple[int, int], *, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Let the receivers take turns with objects of one size: rows, columns. Returns the figures of each."""
    folder.mkdir()
    outboxes = [write_films(folder / f"outbox-{number}", size, count=count) for number in range(SENDERS)]
    receivers: dict[str, Callable[[Path], AbstractContextManager[int]]] = {
        "node": node,
        "storescp": storescp,
        "orthanc": orthanc,
    }
    speeds, total = {name: list[float]() for name in receivers}, SENDERS * count
    for _ in range(rounds):
        for name, receiver in receivers.items():
            kept = folder / name
            with receiver(kept) as port:
                speeds[name].append(total / send_all(outboxes, port))
            received = sum(map(is_object, kept.rglob("*")))
            if received != total:
                raise RuntimeError(f"{name} keeps {received} of {total} objects")
            shutil.rmtree(kept)
    return {
        name: {
            "per_second": round(statistics.median(speeds[name]), 2),
            "objects": total * rounds,
            **({} if name == "node" else ratios(speeds["node"], speeds[name])),
        }
        for name in receivers
    }


def write_films(folder: Path, size: tuple[int, int], *, count: int) -> Path:
    """Write films whose pixels are no two alike; what they show does not matter to a listener."""
    folder.mkdir()
    pixels = np.random.default_rng(6).integers(0, 4096, size, dtype=np.uint16)
    film = films.with_pixels(films.thumbnail(), pixels, bits=12)
    for number in range(count):
        name = f"{folder.name}-{number}"
        (folder / f"{name}.dcm").write_bytes(films.file_bytes(films.as_another(film, name, study=name)))
    return folder


def is_object(path: Path) -> bool:
    """Say whether a receiver has written an object to this path, whatever its name is."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(132).endswith(b"DICM")


def send_all(outboxes: Sequence[Path], port: int) -> float:
    """Send the films of every sender at once; how many seconds that took."""
    command = [require("storescu"), "+sd", "-aet", "TESTER", "-aec", "CHEX", "-pdu", "131072", LOOPBACK, str(port)]
    began = time.monotonic()
    senders = [subprocess.Popen([*command, str(outbox)], stderr=subprocess.DEVNULL) for outbox in outboxes]
    codes = [sender.wait(timeout=600) for sender in senders]
    if any(codes):
        raise RuntimeError(f"storescu ended with {codes}")
    return time.monotonic() - began


@contextmanager
def node(folder: Path) -> Iterator[int]:
    """Run the listener as a process of its own; its port."""
    command = [sys.executable, "-m", "tests.drills.bench.receiving", str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int((process.stdout.readline() if process.stdout else "") or 0)
        finally:
            process.terminate()


def listen(folder: Path) -> None:
    """Be that process: say the port, and keep what comes until SIGTERM."""
    log.mute()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    with (
        open("/dev/null", "w", encoding="utf-8") as nowhere,
        listening(folder, settings=ListenerSettings()) as running,
    ):
        print(running.listener.port, flush=True)
        sys.stdout = nowhere  # a line of the log for every film, as a service writes them, for nobody
        log.configure()
        stop.wait()


@contextmanager
def storescp(folder: Path) -> Iterator[int]:
    """Run dcmtk's receiver; its port."""
    folder.mkdir()
    port = free_port()
    command = f"{require('storescp')} --fork -pdu 131072 -aet CHEX -fe .dcm -od".split()
    with subprocess.Popen([*command, str(folder), str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port), what="storescp listens")
            yield port
        finally:
            process.terminate()


@contextmanager
def orthanc(folder: Path) -> Iterator[int]:
    """Run Orthanc, which syncs each film, as fast as it can be set up: long PDUs, no scripts, no plugins."""
    settings = {"SyncStorageArea": True, "MaximumPduLength": 131072, "LuaScripts": [], "Plugins": []}
    folder.mkdir()
    with Orthanc(folder, node_port=free_port(), settings=settings) as running:
        yield running.dicom_port


def _listens(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return False
    return True


if __name__ == "__main__":
    listen(Path(sys.argv[1]))
