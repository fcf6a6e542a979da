"""Built engines on disk: `<graph hash>-<gpu>-<version>.engine`, used only as they were written and for what they are.

A file is written aside and renamed, so it is there whole or not at all. Its first line names what it was built for and
the SHA-256 of the rest; with anything else in it, or when the runtime does not take it, it is built again. An engine is
never refitted: whether one with other weights still fits would be a guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TypeVar

from models.engines import EngineUnavailable
from models.engines.profiles import RANGES

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Compiler(Protocol[T_co]):
    """Makes engines for the GPU at hand."""

    @property
    def gpu(self) -> str:
        """The GPU's name, as its driver says it."""

    @property
    def version(self) -> str:
        """The runtime's version; an engine of another one is of no use."""

    def build(self, graph: bytes, *, timings: bytes) -> tuple[bytes, bytes]:
        """Build an engine; gives it, and the timings that make the next build faster.

        Raises EngineUnavailable with everything that the runtime says against the graph.
        """

    def load(self, engine: bytes) -> T_co | None:
        """Load an engine; None where the runtime does not take it."""


class EngineFiles:
    """The engines in one folder, which appears when the first of them is built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, graph: Path, compiler: Compiler[T]) -> T | None:
        """Load the engine of a graph, and build it first where no good one is kept; None where it cannot be loaded.

        Raises EngineUnavailable as `Compiler.build` does, and where the folder cannot be written: that is found out
        before a build, which takes minutes.
        """
        content = graph.read_bytes()
        path = self.path(content, compiler)
        facts = _facts(compiler) | {"graph": hashlib.sha256(content).hexdigest()}
        kept = _read(path, facts)
        loaded = compiler.load(kept) if kept is not None else None
        return loaded if loaded is not None else compiler.load(self._build(content, compiler, path, facts))

    def path(self, graph: bytes, compiler: Compiler[T]) -> Path:
        """Where the engine of a graph lies (DESIGN.md 4)."""
        return self._folder / f"{hashlib.sha256(graph).hexdigest()}-{_device(compiler)}.engine"

    def _build(self, graph: bytes, compiler: Compiler[T], path: Path, facts: Mapping[str, object]) -> bytes:
        timings = self._folder / f"timings-{_device(compiler)}.cache"
        with self._writing():
            _try_to_write(self._folder)
        engine, learned = compiler.build(graph, timings=_read(timings, _facts(compiler)) or b"")
        with self._writing():
            _write(path, facts, engine)
        with suppress(OSError):  # the next build takes longer without them, and that is all
            _write(timings, _facts(compiler), learned)
        return engine

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say what to do about a folder that cannot be written."""
        try:
            yield
        except OSError as error:
            message = f"{self._folder}: cannot be used ({error.strerror}); make it a folder the node may write"
            raise EngineUnavailable("not_built", message) from error


def _facts(compiler: Compiler[T]) -> dict[str, object]:
    """Say what an engine is built for. With other ranges it would refuse what the reader asks."""
    ranges = {axis: asdict(RANGES[axis]) for axis in RANGES}
    return {"gpu": compiler.gpu, "version": compiler.version, "ranges": ranges}


def _device(compiler: Compiler[T]) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", compiler.gpu.lower()).strip("-")
    return f"{gpu}-{compiler.version}"


def _read(path: Path, facts: Mapping[str, object]) -> bytes | None:
    """Read what follows the first line; None where the file is missing, for something else, or damaged."""
    try:
        line, _, content = path.read_bytes().partition(b"\n")
        claimed = json.loads(line)
    except (OSError, ValueError):
        return None
    return content if claimed == {**facts, "sha256": hashlib.sha256(content).hexdigest()} else None


def _try_to_write(folder: Path) -> None:
    """Make the folder, and a file in it that is gone again. Raises OSError."""
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")


def _write(path: Path, facts: Mapping[str, object], content: bytes) -> None:
    """Write a file whole or not at all. Somebody else may write the same one: each has a file of its own aside."""
    line = json.dumps({**facts, "sha256": hashlib.sha256(content).hexdigest()}, sort_keys=True)
    number, aside = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(number, "wb") as file:
            file.write(line.encode() + b"\n" + content)
            file.flush()
            os.fsync(number)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
