"""Runs decoders in processes of their own, so that a film can hurt only itself.

Decoders are foreign machine code that meets any bytes: one aborts its process, one blocks its interpreter for seconds,
one asks for gigabytes. Here each film is decoded in a child process with limits of memory, processor time and time.
What ends the child makes this film `undecodable`; the child is replaced, and no other film notices.

Children are forked from a server with one thread that has imported the decoders (multiprocessing, forkserver), and are
kept for the next film. A request and its answer are JSON, and pixels come back through memory that both share: nothing
that a child sends is executed. A child ends when its connection is closed, so `kill -9` leaves none behind.
"""

from __future__ import annotations

import atexit
import errno
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from math import prod
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from node.dicom.film_header import FilmHeader
from node.domain import Reason
from node.errors import InputError, Undecodable
from node.read import decoder_child, pixel_format
from node.read.codecs import Cells
from node.read.decoder_child import Answer, Limits, Request
from node.read.pixels import StoredPixels
from node.turns import Turns

_MOST: Final = 4
"""Films that are decoded at the same time."""

_START_SECONDS: Final = 60.0
_PROGRAM: Final = Path(__file__).parents[2]
_SERVER_ENVIRONMENT: Final = {
    "PYTHONPATH": str(_PROGRAM),
    "PYTHONSAFEPATH": "1",  # the working folder may hold packages of the same names
    "OPENBLAS_NUM_THREADS": "1",
    # After `kill -9` multiprocessing's own process warns of locks that were left, which is no line of the log.
    "PYTHONWARNINGS": "ignore",
}
"""The server of Python 3.11 does not get the `sys.path` of this process, and a fork copies one thread alone."""

PRELOADED: Final = (decoder_child.__name__, "node.__main__")
"""What the server imports before it forks the first child; each child looks at the main module of its parent, too."""

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(PRELOADED))


class _Ended(Exception):
    """A child ended while it decoded; the text says why."""


class DecoderProcesses:
    """The child processes of this process; thread-safe. Each is started when it is first needed.

    most: films that are decoded at the same time
    """

    def __init__(self, *, most: int = _MOST) -> None:
        self._places, self._turns = threading.Semaphore(most), Turns()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._starting = threading.Lock()

    @property
    def children(self) -> tuple[int, ...]:
        """The processes that run, by their id."""
        return tuple(child.pid for child in tuple(self._all))

    def start(self, *others: str) -> None:
        """Start the server that children are forked from; it imports the decoders meanwhile.

        others: modules that it imports, too, for processes of another kind
        """
        with self._starting, _environment(_SERVER_ENVIRONMENT):
            if others:
                _CONTEXT.set_forkserver_preload([*PRELOADED, *others])
            forkserver.ensure_running()

    def start_child(self) -> None:
        """Start a child and let it wait for a film, so that the first film need not wait for it."""
        with suppress(OSError), self._places, self._child():  # the first film tries again
            pass

    def decode_film(self, path: Path, film_header: FilmHeader) -> StoredPixels:
        """Decode the pixels of a film; its header allows them (`pixel_format.reason_against`).

        Raises Undecodable, and OSError for an error of the disk.
        """
        pixels = film_header.pixels
        shape = pixels.rows or 0, pixels.columns or 0
        request: Request = {
            "task": decoder_child.FILM,
            "path": str(path),
            "syntax": film_header.transfer_syntax_uid,
            "pixels": asdict(pixels),
        }
        cells, about = self._decode(request, Limits.of(prod(shape)))
        if cells.shape != shape:
            raise Undecodable(Reason.UNDECODABLE, "codestream and header differ in size")
        depth = about["depth"]
        return StoredPixels(
            cells=cells,
            is_longer=bool(about["is_longer"]),
            depth=None if depth is None else pixel_format.CodedDepth(bits=depth[0], is_signed=depth[1]),
        )

    def decode_picture(self, path: Path) -> npt.NDArray[np.uint8]:
        """Decode a PNG or JPEG picture as `gray_picture.read` does. Raises InputError."""
        request: Request = {"task": decoder_child.PICTURE, "path": str(path)}
        try:
            cells, _ = self._decode(request, Limits.of(pixel_format.MAX_PIXELS))
        except Undecodable as error:
            raise InputError(f"{path}: cannot be decoded ({error}); name a DICOM, PNG or JPEG file") from error
        return cells.astype(np.uint8, copy=False)

    def close(self) -> None:
        """End all children, also those that decode."""
        for child in tuple(self._all):
            self._end(child)

    def _decode(self, request: Request, limits: Limits) -> tuple[Cells, Answer]:
        """Decode in a child; what ends it is tried once more, while nothing else is decoded. Raises Undecodable."""
        try:
            with self._places, self._turns.together(), self._child() as child:
                return child.decode(request, limits)
        except _Ended:
            pass
        try:
            with self._turns.alone(), self._child() as child:
                return child.decode(request, limits)
        except _Ended as end:
            raise Undecodable(Reason.UNDECODABLE, str(end)) from None

    @contextmanager
    def _child(self) -> Iterator[_Child]:
        child = self._living() or self._new()
        try:
            yield child
        finally:
            if child.is_usable:
                self._idle.append(child)
            else:
                self._end(child)

    def _living(self) -> _Child | None:
        """Take an idle child that nobody has ended meanwhile."""
        while self._idle:
            with suppress(IndexError):  # another thread took the last one
                child = self._idle.pop()
                if not child.has_ended:
                    return child
                self._end(child)
        return None

    def _new(self) -> _Child:
        self.start()
        child = _Child(self._starting)
        self._all.add(child)
        return child

    def _end(self, child: _Child) -> None:
        self._all.discard(child)
        child.end()


@cache
def of_this_process() -> DecoderProcesses:
    """Return the children of this process, which all its threads share; they end with it."""
    processes = DecoderProcesses()
    atexit.register(processes.close)
    return processes


class _Child:
    """A child process, and the memory through which its pixels come back.

    starting: held while processes are started and waited for, which multiprocessing does not let two threads do at once
    Raises OSError if it does not start, which is no fault of a film.
    """

    def __init__(self, starting: threading.Lock) -> None:
        self._starting, self.is_usable = starting, True
        with starting:
            self._connection, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=decoder_child.serve, args=(theirs,), name="decoder", daemon=True)
            self._process.start()
            theirs.close()
        self._shared = -1
        try:
            if not self._connection.poll(_START_SECONDS):
                raise EOFError
            self._shared = reduction.recv_handle(self._connection)
        except (EOFError, ConnectionError) as error:
            self.end()
            raise OSError(errno.EAGAIN, "a decoder process did not start") from error

    def decode(self, request: Request, limits: Limits) -> tuple[Cells, Answer]:
        """Decode one film. Raises _Ended, Undecodable, InputError, and OSError for an error of the disk."""
        self.is_usable = False
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(limits.seconds):
                raise _Ended(f"decoding takes more than {limits.seconds:.0f} s")
            answer: Answer = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise _Ended(self._why(limits)) from None
        self.is_usable = True
        if "input" in answer:
            raise InputError(answer["input"])
        if "number" in answer:
            raise OSError(answer["number"], answer["message"])
        if "reason" in answer:
            raise Undecodable(answer["reason"], answer["message"])
        return self._received(answer["shape"], answer["dtype"]), answer

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid or 0

    @property
    def has_ended(self) -> bool:
        """Whether the idle process has ended: it says nothing unless it is asked."""
        return self._connection.poll(0)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        with self._starting:
            self._process.join()
        self._connection.close()
        if self._shared >= 0:
            os.close(self._shared)

    def _received(self, shape: tuple[int, ...], dtype: str) -> Cells:
        """Copy pixels out of the shared memory. Raises Undecodable for more than a film has."""
        kind = np.dtype(dtype)
        if len(shape) != 2 or prod(shape) > pixel_format.MAX_PIXELS or kind.kind not in "iu":
            raise Undecodable(Reason.UNDECODABLE, "the decoder returned no film")
        cells = np.empty(shape, dtype=kind)
        if os.preadv(self._shared, [cells.data], 0) != cells.nbytes:
            raise Undecodable(Reason.UNDECODABLE, "the decoder returned too few pixels")
        return cells

    def _why(self, limits: Limits) -> str:
        """Say why the process ended."""
        with self._starting:
            self._process.join(1.0)
            code = self._process.exitcode
        if code == -signal.SIGXCPU:
            return f"decoding takes more than {limits.processor_seconds:.0f} s of processor time"
        return "the decoder ended its process"


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Change the environment of processes that are started within."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
