"""Runnable: films whose compressed pixels are damaged, against a running node that decodes them.

    python -m tests.drills.decoder_fuzz [--cases 10000] [--seed N] [--first K]

Two films are in hand all the time, and every tenth of each kind is whole. A scripted reader answers. The node's process
must not end, `/live` must answer within a second, only damaged films may be undecodable, and the node with its children
must stay within 1 GiB above what it took before. Mutant K depends on seed and K alone, so a stopped run goes on
with `--first K`. The last line is one JSON object with `passed`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import imagecodecs
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from tests.support import films
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service, settings_for

KINDS = (
    RLELossless,
    JPEGLSLossless,
    JPEGLosslessSV1,
    JPEGBaseline8Bit,
    JPEG2000Lossless,
    DeflatedExplicitVRLittleEndian,
)
EMPTY = b"\0\0"
IN_HAND = 2
WHOLE_EACH = 10
MOST_LIVE_SECONDS = 1.0
MOST_MIB = 1024
LIMIT_SECONDS = 120.0
SECTOR = 512


@dataclass(kw_only=True)
class Tally:
    """What came of the films, by kind; faults: the first words of each, by the number of the mutant."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)
    live_seconds: float = 0.0
    more_mib: int = 0
    is_alive: bool = True

    @property
    def passed(self) -> bool:
        """Whether only damaged films were hurt."""
        is_bounded = self.live_seconds <= MOST_LIVE_SECONDS and self.more_mib <= MOST_MIB
        return is_bounded and self.is_alive and not self.faults

    @property
    def figures(self) -> dict[str, object]:
        """The figures, for the last line."""
        return {
            "outcomes": dict(sorted(self.outcomes.items())),
            "faults": self.faults,
            "live_seconds": round(self.live_seconds, 3),
            "more_mib": self.more_mib,
            "is_alive": self.is_alive,
            "passed": self.passed,
        }


@cache
def whole(syntax: UID) -> tuple[bytes, bytes]:
    """A film in a transfer syntax: what comes before its compressed bytes, and these."""
    if syntax == DeflatedExplicitVRLittleEndian:
        film = films.thumbnail()
        film.file_meta.TransferSyntaxUID = syntax
        content = films.file_bytes(film)
        body = films.body_of(content)
        return content[: -len(body)], body
    if syntax in (JPEGLosslessSV1, JPEGBaseline8Bit):
        film = films.thumbnail() if syntax == JPEGLosslessSV1 else films.at_depth(8)
        pixels, is_lossless = film.pixel_array, syntax == JPEGLosslessSV1
        frame = bytes(imagecodecs.jpeg8_encode(pixels, lossless=is_lossless, predictor=1 if is_lossless else None))
    else:
        film = films.compressed(films.thumbnail(), syntax)
        frame = next(generate_frames(film.PixelData, number_of_frames=1))
    film.PixelData = encapsulate([EMPTY])
    film["PixelData"].is_undefined_length, film["PixelData"].VR = True, "OB"
    film.file_meta.TransferSyntaxUID = syntax
    return films.file_bytes(films.changed(film, {"DataSetTrailingPadding": None})), frame


def file_of(syntax: UID, compressed: bytes) -> bytes:
    """A file with compressed bytes, whole or not."""
    head, _ = whole(syntax)
    if syntax == DeflatedExplicitVRLittleEndian:
        return head + compressed
    empty = encapsulate([EMPTY])
    return head.replace(empty, encapsulate([compressed]))


def mutant(seed: int, number: int) -> tuple[UID, bytes]:
    """Make the film of a number: its syntax and its file."""
    drawn, syntax = random.Random(f"{seed}/{number}"), KINDS[number % len(KINDS)]
    content = bytearray(whole(syntax)[1])
    drawn.choice((_change, _change, _change, _change_head, _zero, _cut, _insert, _repeat))(drawn, content)
    return syntax, file_of(syntax, bytes(content))


def _change(drawn: random.Random, content: bytearray) -> None:
    for _ in range(drawn.choice((1, 2, 8, 20))):
        content[drawn.randrange(len(content))] = drawn.randrange(256)


def _change_head(drawn: random.Random, content: bytearray) -> None:
    for _ in range(drawn.choice((1, 2, 4))):
        content[drawn.randrange(min(len(content), 128))] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)))


def _zero(drawn: random.Random, content: bytearray) -> None:
    at = drawn.randrange(len(content)) // SECTOR * SECTOR
    content[at : at + SECTOR] = bytes(len(content[at : at + SECTOR]))


def _cut(drawn: random.Random, content: bytearray) -> None:
    del content[drawn.randrange(2, len(content)) :]


def _insert(drawn: random.Random, content: bytearray) -> None:
    at = drawn.randrange(len(content))
    content[at:at] = drawn.randbytes(drawn.randrange(1, 64))


def _repeat(drawn: random.Random, content: bytearray) -> None:
    start = drawn.randrange(len(content))
    content[start:start] = content[start : start + drawn.randrange(1, 4096)] * drawn.choice((1, 2, 50))


def run(service: Service, *, numbers: range, seed: int, say: Callable[[str], None]) -> Tally:
    """Show a node the mutants of some numbers."""
    tally, lock = Tally(), threading.Lock()

    def show(number: int) -> None:
        is_whole = number // len(KINDS) % WHOLE_EACH == 0
        syntax, content = mutant(seed, number)
        if is_whole:
            content = file_of(syntax, whole(syntax)[1])
        outcome = _looked_at(service.http_port, content)
        with lock:
            tally.outcomes[f"{syntax.name}, {'whole' if is_whole else 'damaged'}: {outcome}"] += 1
            if outcome.startswith("fault") or (is_whole and outcome != "read"):
                tally.faults[number] = outcome
        if number % 500 == 0:
            say(f"{number}: {json.dumps(tally.figures)}")

    _looked_at(service.http_port, file_of(RLELossless, whole(RLELossless)[1]))  # the first film waits for imports
    with _watched(service, tally), ThreadPoolExecutor(IN_HAND) as pool:
        for outcome in [pool.submit(show, number) for number in numbers]:
            outcome.result()
    tally.is_alive = Path(f"/proc/{service.pid}").exists() and not service.logged("page.failed")
    return tally


def _looked_at(port: int, content: bytes) -> str:
    """Have a film read that is in no study; what came of it."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=LIMIT_SECONDS)
    try:
        connection.request("POST", "/api/v1/looks", body=content, headers={"Content-Type": "application/dicom"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"fault: {type(error).__name__}"
    finally:
        connection.close()
    if answer.status == 422:
        return "no film"
    if answer.status != 201:
        return f"fault: status {answer.status}"
    film = said["film"]
    return "read" if film["status"] == "read" else str(film["reason"])


@contextmanager
def _watched(service: Service, tally: Tally) -> Iterator[None]:
    """Ask all the time whether the node lives; keep the longest time that it took to say so, and its memory."""
    is_over, before = threading.Event(), memory_mib(service.pid)

    def ask() -> None:
        for number in itertools.count():
            if is_over.wait(0.05):
                return
            if number % 10 == 0:
                tally.more_mib = max(tally.more_mib, memory_mib(service.pid) - before)
            began = time.monotonic()
            connection = http.client.HTTPConnection(LOOPBACK, service.http_port, timeout=LIMIT_SECONDS)
            try:
                connection.request("GET", "/live")
                connection.getresponse().read()
            except OSError:
                return  # the node has ended, which the films notice
            finally:
                connection.close()
            tally.live_seconds = max(tally.live_seconds, time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def memory_mib(pid: int) -> int:
    """Return what a process and all below it have in memory; what they share counts once (proc(5), Pss)."""
    total, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            rollup = (process / "smaps_rollup").read_text(encoding="ascii")
            total += int(rollup.split("\nPss:")[1].split()[0])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
        except (OSError, IndexError):
            continue  # it has ended
    return total // 1024


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tests.drills.decoder_fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant")
    arguments = parser.parse_args()
    _say(f"seed {arguments.seed}, from {arguments.first}")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as service:
        numbers = range(arguments.first, arguments.first + arguments.cases)
        tally = run(service, numbers=numbers, seed=arguments.seed, say=_say)
    _say(json.dumps({"seed": arguments.seed, "first": arguments.first, "cases": arguments.cases, **tally.figures}))
    return 0 if tally.passed else 1


@contextmanager
def running(folder: Path) -> Iterator[Service]:
    """Run a node."""
    with (
        ReceivingArchive() as archive,
        Service(settings_for(folder / "node", archive_port=archive.port)) as service,
    ):
        yield service


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
