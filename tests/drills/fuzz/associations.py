"""Bent associations and bent files against a listener; nothing may be lost, hang or be made up.

Real PDUs are sent with bytes spoiled, with other lengths, in another order, with another association's mixed in; and
real films whose bytes were bent before they became PDUs. After each round a good echo must be answered. Every Success
must have its file in the spool, byte for byte an object that was sent.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydicom import Dataset
from pydicom.uid import JPEG2000Lossless
from pynetdicom import AE, build_context

from node.config import ListenerSettings
from node.store.files import TEMPORARY
from tests.drills.fuzz import Tally, spoil
from tests.support import films, pdus
from tests.support.listening import Node, connect, listening
from tests.support.pdus import Recording
from tests.support.peers import LOOPBACK

SETTINGS: Final = ListenerSettings(idle_seconds=1.0, max_object_mib=1)
REQUEST_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 60.0
"""How long a good echo, or the end of a bad connection, may take; far beyond the listener's own limits."""

STREAMS_OF_A_ROUND: Final = 12
LEAST_ROUNDS: Final = 5
VERIFICATION: Final = "1.2.840.10008.1.1"

Stream = list[bytes]
_WAYS: Final = (
    *["spoil bytes"] * 2,
    "change a length",
    "end early",
    "repeat",
    "leave out",
    "exchange",
    "insert noise",
)


def run(folder: Path, *, seed: int, seconds: float) -> Tally:
    """Send bent streams to a listener in this process for a time."""
    tally, chance, rounds = Tally(), random.Random(seed), 0
    threads = threading.active_count()
    with listening(folder, settings=SETTINGS, request_seconds=REQUEST_SECONDS) as node:
        recordings = [pdus.record(film, port=node.listener.port) for film in _films()]
        bodies = [films.body_of(films.file_bytes(film)) for film in _films()]
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(STREAMS_OF_A_ROUND) as senders:
            while (time.monotonic() < end or rounds < LEAST_ROUNDS) and not tally.faults:
                rounds += 1
                bent = [bent_association(chance, recordings, bodies) for _ in range(STREAMS_OF_A_ROUND)]
                for stream, answers in zip(bent, senders.map(lambda sent: _send(sent, node), bent), strict=True):
                    tally.counts.update(["streams", *map(_kind, answers)])
                    _note(tally, rounds, _faults(node, stream, answers))
                _note(tally, rounds, _echo(node))
    _note(tally, rounds, (f"left over: {path.name}" for path in folder.rglob(f"{TEMPORARY}*")))
    if threading.active_count() > threads:
        _note(tally, rounds, [f"{threading.active_count() - threads} threads more than before"])
    tally.lacks("success", "refused")
    return tally


def _note(tally: Tally, number: int, faults: Iterable[str]) -> None:
    for fault in faults:
        tally.faults[f"round {number}, {len(tally.faults)}"] = fault


def _films() -> Iterator[Dataset]:
    yield films.thumbnail()
    yield films.as_another(films.compressed(films.thumbnail(), JPEG2000Lossless), "compressed")


def bent_association(chance: random.Random, recordings: Sequence[Recording], bodies: Sequence[bytes]) -> Stream:
    """One association that went wrong somewhere."""
    number = chance.randrange(len(recordings))
    recording = recordings[number]
    stream = [recording.request, *recording.store, *recording.store[: chance.choice((0, len(recording.store)))]]
    stream.append(recording.release)
    if chance.random() < 0.4:  # a bent film in good PDUs
        body = _spoiled(chance, bytearray(bodies[number]))
        return [recording.request, recording.store[0], *_fragments(chance, body), recording.release]
    if chance.random() < 0.2:
        other = chance.choice(recordings)
        stream = [
            pdu for pair in zip(stream, [other.request, *other.store, other.release], strict=False) for pdu in pair
        ]
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        _bend(chance, stream)
    return [pdu for pdu in stream if pdu] or [b""]  # where nothing is left, an association that never says anything


def _fragments(chance: random.Random, body: bytes) -> Iterator[bytes]:
    """A dataset as PDUs, each with a piece of any size."""
    at = 0
    while at < len(body):
        size = chance.choice((1, 1000, 16_000, 100_000))
        yield pdus.data(body[at : at + size], control=2 if at + size >= len(body) else 0)
        at += size


def _spoiled(chance: random.Random, content: bytearray) -> bytes:
    for _ in range(chance.randint(1, 6)):
        spoil(chance, content)
    return bytes(content)


def _bend(chance: random.Random, stream: Stream) -> None:
    """Let one thing go wrong with the PDUs of a stream, in place."""
    place, other = chance.randrange(len(stream)), chance.randrange(len(stream))
    match chance.choice(_WAYS):
        case "spoil bytes":
            stream[place] = _spoiled(chance, bytearray(stream[place]))
        case "change a length":  # of a PDU, or of the first item in it
            at = chance.choice((2, 6))
            length = chance.choice((0, 1, 5, 0x7FFFFFFF, 0xFFFFFFFF, chance.randrange(200_000)))
            stream[place] = stream[place][:at] + length.to_bytes(4, "big") + stream[place][at + 4 :]
        case "end early":
            stream[place:] = [stream[place][: chance.randrange(len(stream[place]) + 1)]]
        case "repeat":
            stream.insert(place, stream[other])
        case "leave out":
            if place:
                del stream[place]
        case "exchange":
            stream[place], stream[other] = stream[other], stream[place]
        case "insert noise":
            stream.insert(place, chance.randbytes(chance.choice((1, 6, 10, 5000))))


def _send(stream: Stream, node: Node) -> list[bytes]:
    """Send a stream as its modality would have, and read what comes until the node ends the connection."""
    with connect(node.listener.port) as connection:
        connection.settimeout(ANSWER_SECONDS)
        answers = []
        with suppress(ConnectionError):
            connection.sendall(stream[0])
            answers.append(pdus.read_pdu(connection))
            connection.sendall(b"".join(stream[1:]))
        while answer := pdus.read_pdu(connection):  # raises TimeoutError where a connection is never ended
            answers.append(answer)
            if answer[0] == pdus.RELEASE_ANSWER:
                break  # PS3.8 9.2.3: now it is on the caller to close
        return answers


def _kind(answer: bytes) -> str:
    status = pdus.status_of(answer)
    if status is None:
        return f"pdu {answer[0]}" if answer else "nothing"
    return "success" if status == 0x0000 else "refused"


def _faults(node: Node, stream: Stream, answers: Sequence[bytes]) -> Iterator[str]:
    """Name each Success that the spool does not bear out."""
    sent = _objects(b"".join(stream))
    for answer in answers:
        if pdus.status_of(answer) != 0x0000:
            continue
        uid = pdus.sop_instance_of(answer)
        kept = [
            *node.spool.directory.glob(f"studies/*/received/{uid}~*"),
            *node.spool.directory.glob(f"studies/*/conflicts/{uid}~*"),
        ]
        if not any(hashlib.sha256(films.body_of(path.read_bytes())).hexdigest() in sent for path in kept):
            yield f"acknowledged and not kept: {uid}"


def _objects(content: bytes) -> set[str]:
    """The hashes of every dataset that a stream may be said to carry, found by its framing alone (PS3.8 9.3, E)."""
    found, since_data, since_command = set(), b"", b""
    at = 0
    while at + 6 <= len(content):
        end = at + 6 + int.from_bytes(content[at + 2 : at + 6], "big")
        item = at + 6
        while content[at] == pdus.DATA and item + 6 <= min(end, len(content)):
            item_end = item + 4 + int.from_bytes(content[item : item + 4], "big")
            control, fragment = content[item + 5], content[item + 6 : item_end]
            if control & 1:
                since_command = b""
            else:
                since_data, since_command = since_data + fragment, since_command + fragment
                if control & 2:
                    found |= {hashlib.sha256(joined).hexdigest() for joined in (since_data, since_command)}
                    since_data = since_command = b""
            item = item_end
        at = end
    return found


def _echo(node: Node) -> Iterator[str]:
    """Ask whether the node still answers."""
    entity = AE(ae_title="TESTER")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ANSWER_SECONDS
    association = entity.associate(
        LOOPBACK, node.listener.port, ae_title="CHEX", contexts=[build_context(VERIFICATION)]
    )
    if not association.is_established:
        yield "a good association was not accepted"
        return
    if association.send_c_echo().get("Status") != 0x0000:
        yield "a good echo was not answered"
    association.release()
