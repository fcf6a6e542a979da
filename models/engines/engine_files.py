"""Built engines on disk: `<graph hash>-<gpu>-<version>.engine`; each is used only intact and for what it was built for.

A file is written under a temporary name and renamed, so it exists completely or not at all. Its first line names what
it was built for, and the SHA-256 of the rest; if anything differs, or the runtime cannot load it, the engine is built
again. An engine is never refitted, because it is not certain that it fits other weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

from models.engines import EngineUnavailable
from models.engines.staged_engine import RANGES
from models.files import beside

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Compiler(Protocol[T_co]):
    """Builds engines for this machine's GPU."""

    @property
    def gpu(self) -> str:
        """The GPU's name, as the driver reports it."""

    @property
    def version(self) -> str:
        """The runtime's version; an engine of another version cannot be used."""

    def build(self, graph: bytes) -> bytes:
        """Build an engine. Raises EngineUnavailable with all errors that the runtime reports about the graph."""

    def load(self, engine: bytes) -> T_co:
        """Load an engine. Raises EngineUnavailable with all errors that the runtime reports."""


class EngineFiles:
    """The engines in a folder, which is created with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, graph: Path, compiler: Compiler[T]) -> T:
        """Load the engine of a graph, building it first if there is no valid one.

        Raises EngineUnavailable with the graph's name, as `Compiler.build` and `Compiler.load` do, and if the folder
        cannot be written: this is checked before the build, which takes minutes.
        """
        content = graph.read_bytes()
        sha256, gpu = hashlib.sha256(content).hexdigest(), re.sub(r"[^a-z0-9]+", "-", compiler.gpu.lower()).strip("-")
        path = self._folder / f"{sha256}-{gpu}-{compiler.version}.engine"
        # With other ranges an engine would refuse the reader's inputs.
        ranges = {axis: asdict(span) for axis, span in RANGES.items()}
        facts = {"graph": sha256, "gpu": compiler.gpu, "version": compiler.version, "ranges": ranges}
        kept = _read(path, facts)
        try:
            if kept is not None:
                with suppress(EngineUnavailable):
                    return compiler.load(kept)
            return compiler.load(self._build(content, compiler, path, facts))
        except EngineUnavailable as error:
            raise EngineUnavailable(error.reason, f"{graph.name}: {error}") from error

    def _build(self, graph: bytes, compiler: Compiler[T], path: Path, facts: Mapping[str, object]) -> bytes:
        with self._writing():
            _try_to_write(self._folder)
        engine = compiler.build(graph)
        with self._writing():
            _write(path, facts, engine)
        return engine

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an OSError in the folder into EngineUnavailable."""
        try:
            yield
        except OSError as error:
            message = f"{self._folder}: cannot be used ({error.strerror}); make it a folder that the node may write to"
            raise EngineUnavailable("not_built", message) from error


def _read(path: Path, facts: Mapping[str, object]) -> bytes | None:
    """Read what follows the first line; None if the file is missing, damaged, or was built for another target."""
    try:
        line, _, content = path.read_bytes().partition(b"\n")
        claimed = json.loads(line)
    except (OSError, ValueError):
        return None
    return content if claimed == {**facts, "sha256": hashlib.sha256(content).hexdigest()} else None


def _try_to_write(folder: Path) -> None:
    """Create the folder and write a temporary file in it. Raises OSError."""
    for directory in (folder.parent, folder):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")


def _write(path: Path, facts: Mapping[str, object], content: bytes) -> None:
    """Write a file atomically. Another process may write the same file, so each uses its own temporary file."""
    head = {**facts, "sha256": hashlib.sha256(content).hexdigest()}
    with beside(path, mark=f".{uuid4().hex}") as aside:
        aside.write_bytes(json.dumps(head, sort_keys=True).encode() + b"\n" + content)
