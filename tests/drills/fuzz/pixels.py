"""Films whose compressed pixels are damaged, against a running node that decodes them.

Two films are in hand all the time, and every tenth of each kind is whole. A scripted reader answers. The node's process
must not end, `/live` must answer within a second, only damaged films may be undecodable, and the node with its children
must stay within 1 GiB above what it took before. Mutant K depends on seed and K alone.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import imagecodecs
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.uid import UID, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, JPEGLSLossless, RLELossless

from models.progress import ProgressReport
from tests.drills.encodings import with_frame
from tests.drills.fuzz import Tally, spoil
from tests.drills.http_clients import probe, repeating
from tests.support import films
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.processes import memory_mib
from tests.support.service import Service, settings_for

KINDS = (RLELossless, JPEGLSLossless, JPEGLosslessSV1, JPEGBaseline8Bit, JPEG2000Lossless)
IN_HAND = 2
WHOLE_EACH = 10
MOST_LIVE_SECONDS = 1.0
MOST_MIB = 1024
LIMIT_SECONDS = 120.0


@cache
def whole(syntax: UID) -> tuple[Dataset, bytes]:
    """A film, and its codestream in a transfer syntax."""
    film, is_lossless = films.thumbnail(), syntax == JPEGLosslessSV1
    if syntax == JPEGBaseline8Bit:
        film = films.at_depth(8)
    if syntax in (JPEGLosslessSV1, JPEGBaseline8Bit):
        predictor = 1 if is_lossless else None
        return film, bytes(imagecodecs.jpeg8_encode(film.pixel_array, lossless=is_lossless, predictor=predictor))
    return film, next(generate_frames(films.compressed(films.thumbnail(), syntax).PixelData, number_of_frames=1))


def file_of(syntax: UID, codestream: bytes) -> bytes:
    """A file with a codestream, whole or not."""
    film = with_frame(copy.deepcopy(whole(syntax)[0]), codestream, syntax)
    return films.file_bytes(films.changed(film, {"DataSetTrailingPadding": None}))


def mutant(seed: int, number: int) -> tuple[UID, bytes]:
    """Make the film of a number: its syntax and its file."""
    drawn, syntax = random.Random(f"{seed}/{number}"), KINDS[number % len(KINDS)]
    content = bytearray(whole(syntax)[1])
    spoil(drawn, content)
    return syntax, file_of(syntax, bytes(content))


def run(
    folder: Path, *, numbers: range, seed: int, say: ProgressReport, most_live_seconds: float = MOST_LIVE_SECONDS
) -> Tally:
    """Show a node the mutants of some numbers."""
    with (
        ReceivingArchive() as archive,
        Service(settings_for(folder / "node", archive_port=archive.port)) as service,
    ):
        tally = _shown(service, numbers, seed, say)
        if service.logged("page.failed") or not Path(f"/proc/{service.pid}").exists():
            tally.faults["node"] = "ended, or a page failed"
    for what, most in (("live_seconds", most_live_seconds), ("more_mib", MOST_MIB)):
        if tally.measured[what] > most:
            tally.faults[what] = f"{tally.measured[what]:g}, at most {most:g}"
    return tally


def _shown(service: Service, numbers: range, seed: int, say: ProgressReport) -> Tally:
    tally, lock = Tally(), threading.Lock()

    def show(number: int) -> None:
        is_whole = number // len(KINDS) % WHOLE_EACH == 0
        syntax, content = mutant(seed, number)
        if is_whole:
            content = file_of(syntax, whole(syntax)[1])
        outcome = _looked_at(service.http_port, content)
        with lock:
            tally.counts[f"{syntax.name}, {'whole' if is_whole else 'damaged'}: {outcome}"] += 1
            if outcome.startswith("fault") or (is_whole and outcome != "read"):
                tally.faults[str(number)] = outcome
        say("films with damaged pixels", number - numbers.start, len(numbers))

    _looked_at(service.http_port, file_of(RLELossless, whole(RLELossless)[1]))  # the first film waits for imports
    before, taken = memory_mib(service.pid), [0]
    with (
        repeating(lambda: probe(service.http_port, "/live"), every_seconds=0.05) as asked,
        repeating(lambda: taken.append(memory_mib(service.pid)), every_seconds=0.5),
        ThreadPoolExecutor(IN_HAND) as pool,
    ):
        for outcome in [pool.submit(show, number) for number in numbers]:
            outcome.result()
    tally.measured |= {
        "live_seconds": round(max(asked.seconds, default=0.0), 3),
        "more_mib": float(max(*taken, before) - before),
    }
    if asked.failures:
        tally.faults["live"] = asked.failures[0]
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
