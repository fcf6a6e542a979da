"""Runs decoders in processes of their own, so that a film can hurt only itself.

Decoders are foreign machine code that meets any bytes: one aborts its process, one blocks its interpreter for seconds,
one asks for gigabytes. Here each film is decoded in a child process with limits of memory, processor time and time.
A film that ends its child is `undecodable`; the child is replaced, and other films are not affected. A film that ends
one by itself is not decoded again while this process runs.

Children are forked from a server with one thread that has imported the decoders (multiprocessing, forkserver), and are
kept for the next film. A request and its answer are JSON, and pixels come back through memory that both share: nothing
that a child sends is executed. A child ends when its connection is closed, so `kill -9` leaves none behind.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
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
from node.read.decoder_child import Answer, Limits, Request
from node.read.pixels import Cells, StoredPixels
from node.threads import Turns

_MOST: Final = 4
"""Films that are decoded at the same time."""

_START_SECONDS: Final = 60.0
_SERVER_ENDS_SECONDS: Final = 0.5
"""Wait after a server was killed: its files are closed before waitpid(2) reports its end and another one may start."""

_CODE_SECONDS: Final = 10.0
_UNKNOWN_CODE: Final = 255
"""Exit code that multiprocessing reports for a process whose server ended before it."""

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
"""Modules that the server imports before it forks the first child; a child imports its parent's main module, too."""

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(PRELOADED))
_MOST_HURTFUL: Final = 1000
"""Films that are remembered because they ended a child."""


class _Interrupted(Exception):
    """The decoding may have ended because of another film or the machine: it is tried once more, alone.

    outcome: the result if it ends like this again
    """

    def __init__(self, outcome: Undecodable | OSError) -> None:
        super().__init__()
        self.outcome = outcome


class _HurtfulFilms:
    """Why films that ended a child are undecodable, by size and SHA-256 of their files; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[tuple[int, bytes], str] = {}

    def refuse(self, path: Path) -> None:
        """Raise Undecodable for a film that is known. A file is hashed only if one of its size is."""
        size = path.stat().st_size
        with self._lock:
            known = {digest: reason for (length, digest), reason in self._reasons.items() if length == size}
        reason = known.get(_sha256(path)) if known else None
        if reason is not None:
            raise Undecodable(Reason.UNDECODABLE, reason)

    def remember(self, path: Path, reason: str) -> None:
        """Remember why a film is undecodable, in place of the oldest one if there are too many."""
        key = path.stat().st_size, _sha256(path)
        with self._lock:
            self._reasons[key] = reason
            if len(self._reasons) > _MOST_HURTFUL:
                del self._reasons[next(iter(self._reasons))]


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class _Hurt(Undecodable):
    """A film ended the child that decoded it."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.UNDECODABLE, message)


class DecoderProcesses:
    """The child processes of this process; thread-safe. Each is started when it is first needed."""

    def __init__(self) -> None:
        self._places, self._turns = threading.Semaphore(_MOST), Turns()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._starting = threading.Lock()
        self._hurtful = _HurtfulFilms()

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
        with suppress(OSError, _Interrupted), self._places, self._child():  # the first film tries again
            pass

    def decode_film(self, path: Path, film_header: FilmHeader) -> StoredPixels:
        """Decode the pixels of a film; its header allows them (`pixel_format.objection`).

        Raises Undecodable, and OSError for an error of the disk or of the processes, which is no fault of the film.
        """
        self._hurtful.refuse(path)
        pixels = film_header.pixels
        shape = pixels.rows or 0, pixels.columns or 0
        request: Request = {
            "task": decoder_child.FILM,
            "path": str(path),
            "syntax": film_header.transfer_syntax_uid,
            "pixels": asdict(pixels),
        }
        try:
            cells, about = self._decode(request, Limits.of(prod(shape)))
        except _Hurt as error:
            self._hurtful.remember(path, str(error))
            raise
        if cells.shape != shape:
            raise Undecodable(Reason.UNDECODABLE, "codestream and header differ in size")
        depth = about["depth"]
        return StoredPixels(
            cells=cells,
            is_longer=bool(about["is_longer"]),
            depth=None if depth is None else pixel_format.CodedDepth(bits=depth[0], is_signed=depth[1]),
        )

    def decode_picture(self, path: Path) -> npt.NDArray[np.uint8]:
        """Decode a PNG or JPEG picture as `decoder_child.read_picture` does. Raises InputError."""
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
        """Decode in a child; an interrupted film is tried once more, while nothing else is decoded."""
        with suppress(_Interrupted), self._places, self._turns.together(), self._child() as child:
            return child.decode(request, limits)
        try:
            with self._turns.alone(), self._child() as child:
                return child.decode(request, limits)
        except _Interrupted as again:
            raise again.outcome from None

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
        """Take an idle child that is still running."""
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
    Raises _Interrupted if it does not start, as where the server of children ended meanwhile.
    """

    def __init__(self, starting: threading.Lock) -> None:
        self._starting, self.is_usable, self._shared = starting, True, -1
        with starting:
            self._connection, theirs = _CONTEXT.Pipe()
            self._process = _CONTEXT.Process(target=decoder_child.serve, args=(theirs,), name="decoder", daemon=True)
            try:
                self._process.start()
            except (EOFError, OSError) as error:
                self._connection.close()
                time.sleep(_SERVER_ENDS_SECONDS)
                raise _Interrupted(_no_process()) from error
            finally:
                theirs.close()
        try:
            if not self._connection.poll(_START_SECONDS):
                raise EOFError
            self._shared = reduction.recv_handle(self._connection)
        except (EOFError, ConnectionError) as error:
            self.end()
            raise _Interrupted(_no_process()) from error

    def decode(self, request: Request, limits: Limits) -> tuple[Cells, Answer]:
        """Decode one film. Raises _Interrupted, Undecodable, InputError, and OSError for an error of the disk."""
        self.is_usable = False
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(limits.seconds):
                raise _Interrupted(_Hurt(f"decoding takes more than {limits.seconds:.0f} s"))
            answer: Answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._end_within(limits) from None
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
        """Whether the idle process has ended: an idle process writes nothing, so readable means closed."""
        try:
            return self._connection.poll(0)
        except OSError:  # another thread has closed it
            return True

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        with self._starting:
            self._process.join()
        self._connection.close()
        shared, self._shared = self._shared, -1
        if shared >= 0:
            os.close(shared)

    def _received(self, shape: tuple[int, ...], dtype: str) -> Cells:
        """Copy pixels out of the shared memory. Raises Undecodable for more than a film has."""
        kind = np.dtype(dtype)
        if len(shape) != 2 or prod(shape) > pixel_format.MAX_PIXELS or kind.kind not in "iu":
            raise Undecodable(Reason.UNDECODABLE, "the decoder returned no film")
        cells = np.empty(shape, dtype=kind)
        if os.preadv(self._shared, [cells.data], 0) != cells.nbytes:
            raise Undecodable(Reason.UNDECODABLE, "the decoder returned too few pixels")
        return cells

    def _end_within(self, limits: Limits) -> _Interrupted | _Hurt:
        """Return the outcome for a film whose process has ended."""
        with self._starting:
            self._process.join(_CODE_SECONDS)
            code = self._process.exitcode
        if code == -signal.SIGXCPU:
            return _Hurt(f"decoding takes more than {limits.processor_seconds:.0f} s of processor time")
        if code == -signal.SIGKILL:  # by a kernel without memory, or by a person
            message = "the decoder was killed twice; there may be too little memory for a film so large"
            return _Interrupted(Undecodable(Reason.UNDECODABLE, message))
        if code is None or code == _UNKNOWN_CODE:
            return _Interrupted(_no_process())
        return _Hurt("the decoder ended its process")


def _no_process() -> OSError:
    return OSError(errno.EAGAIN, "a decoder process did not start, or its server ended")


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
