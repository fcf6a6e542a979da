"""What calls a node: films and laterals, known ones and new ones, and everything that is not a caller at all.

Each way takes one connection, and some leave it half-open for a while: a node must get rid of it by itself.
"""

from __future__ import annotations

import copy
import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Self

from pydicom.dataset import Dataset
from pydicom.uid import UID
from pynetdicom import AE, build_context
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import A_ASSOCIATE, ImplementationClassUIDNotification, MaximumLengthNotification

from tests.support import films, peers

CALLER = "TESTER"
_LONGEST_HOLD_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_STUBBORN = 0.1
_LIMIT_SECONDS = 90.0
_APPLICATION_CONTEXT = "1.2.840.10008.3.1.1.1"

_NUMBERS = itertools.count(1)
"""Of the calls of all `Callers` of a process: what is new has a number, and so a UID, that no earlier call had."""


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    sources = [films.as_another(_film(), f"{study} {n}", study=study) for n in range(draw.randint(1, 2))]
    return _unless_taken(peers.send_all(sources, port=port, calling_ae=CALLER))


def send_again(port: int, _draw: random.Random, _number: int) -> str | None:
    """Send the film that all send."""
    return _unless_taken([peers.send(_film(), port=port, calling_ae=CALLER)])


def send_a_lateral(port: int, _draw: random.Random, number: int) -> str | None:
    """Send a film that is answered and not read."""
    film = films.as_another(films.lateral(), f"lateral {number}", study=f"lateral {number}")
    return _unless_taken([peers.send(film, port=port, calling_ae=CALLER)])


def send_without_uids(port: int, _draw: random.Random, _number: int) -> str | None:
    """Send what cannot be kept; it must be refused."""
    status = peers.send(films.changed(_film(), {"StudyInstanceUID": ""}), port=port, calling_ae=CALLER)
    return f"answered by {status}" if status in (0, None) else None


def call_as_a_stranger(port: int, _draw: random.Random, _number: int) -> str | None:
    """Call by a title that nobody gave; the association must be refused."""
    return _unless_refused(peers.send(_film(), port=port, calling_ae="STRANGER"))


def call_somebody_else(port: int, _draw: random.Random, _number: int) -> str | None:
    """Ask for another than the node; the association must be refused."""
    return _unless_refused(peers.send(_film(), port=port, calling_ae=CALLER, called_ae="OTHER"))


def abort(port: int, draw: random.Random, _number: int) -> str | None:
    """Associate, wait, and abort."""
    film, entity = _thumbnail(), AE(ae_title=CALLER)
    contexts = [build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)]
    association = entity.associate(peers.LOOPBACK, port, contexts=contexts, ae_title="CHEX")
    time.sleep(draw.uniform(0.0, _LONGEST_HOLD_SECONDS))
    association.abort()
    return None


def leave_without_a_word(port: int, draw: random.Random, _number: int) -> str | None:
    """Connect, wait, and be gone."""
    return _say(port, b"", draw)


def leave_in_the_request(port: int, draw: random.Random, _number: int) -> str | None:
    """Send a part of an association request."""
    content = _request()
    return _say(port, content[: draw.randrange(len(content))], draw)


def leave_in_an_object(port: int, draw: random.Random, _number: int) -> str | None:
    """Associate, announce an object, send a part of it."""
    fragment = struct.pack(">BxL", 0x04, 100_000) + bytes(draw.randrange(1, 90_000))
    return _say(port, _request(), draw, afterwards=fragment)


def send_garbage(port: int, draw: random.Random, _number: int) -> str | None:
    """Send what is no DICOM."""
    return _say(port, draw.randbytes(draw.randrange(1, 65536)), draw)


WAYS: Mapping[str, Callable[[int, random.Random, int], str | None]] = {
    "study": send_a_study,
    "again": send_again,
    "lateral": send_a_lateral,
    "without uids": send_without_uids,
    "stranger": call_as_a_stranger,
    "somebody else": call_somebody_else,
    "abort": abort,
    "silence": leave_without_a_word,
    "half a request": leave_in_the_request,
    "half an object": leave_in_an_object,
    "garbage": send_garbage,
}

NEW = ("study", "lateral")
"""What a node has to read; everything else costs it little."""


def _unless_taken(statuses: list[int | None]) -> str | None:
    return None if all(status == 0 for status in statuses) else f"answered by {statuses}"


def _unless_refused(status: int | None) -> str | None:
    return None if status is None else f"answered by {status}"


def _film() -> Dataset:
    return copy.deepcopy(_thumbnail())


@cache
def _thumbnail() -> Dataset:
    return films.thumbnail()


def _request() -> bytes:
    """An association request as bytes (PS3.8 9.3.2)."""
    film, primitive = _thumbnail(), A_ASSOCIATE()
    primitive.application_context_name = _APPLICATION_CONTEXT
    primitive.calling_ae_title, primitive.called_ae_title = CALLER, "CHEX"
    context = build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)
    context.context_id = 1
    primitive.presentation_context_definition_list = [context]
    length, implementation = MaximumLengthNotification(), ImplementationClassUIDNotification()
    length.maximum_length_received = 16384
    implementation.implementation_class_uid = UID("1.2.3.4")
    primitive.user_information = [length, implementation]
    request = A_ASSOCIATE_RQ()
    request.from_primitive(primitive)
    return request.encode()


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
