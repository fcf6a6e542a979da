"""Built engines on disk: `<graph hash>-<gpu>-<version>.engine`; each is used only intact and for what it was built for.

A file is written under a temporary name and renamed, so it exists completely or not at all. Its first line names what
it was built for, the SHA-256 of the rest, and how far the engine was from the network with each driver; if anything but
the last differs, or the runtime cannot load it, the engine is built again. An engine is never refitted, because it is
not certain that it fits other weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

from models.contract import StageDifference
from models.engines import EngineUnavailable
from models.engines.staged_engine import RANGES
from models.files import beside

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProof:
    """How far an engine was from the network with a driver, by stage."""

    driver: str
    stages: Mapping[str, StageDifference]

    @property
    def passed(self) -> bool:
        """Whether every difference is within its tolerance."""
        return all(stage.passed for stage in self.stages.values())

    @property
    def share(self) -> float:
        """The largest difference as a share of its tolerance."""
        return max((stage.share for stage in self.stages.values()), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHead:
    """The header of an engine file: the name of its graph, its target, and its proofs."""

    name: str
    gpu: str
    version: str
    proofs: tuple[DriverProof, ...]


class Compiler(Protocol[T_co]):
    """Builds engines for this machine's GPU."""

    @property
    def gpu(self) -> str:
        """The GPU's name, as the driver reports it."""

    @property
    def version(self) -> str:
        """The runtime's version; an engine of another version cannot be used."""

    def build(self, graph: bytes, *, timings: bytes) -> tuple[bytes, bytes]:
        """Build an engine. Returns it, and timings that make the next build faster.

        Raises EngineUnavailable with all errors that the runtime reports about the graph.
        """

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
        path = self.path(content, compiler)
        facts = _facts(compiler) | {"name": graph.name, "graph": hashlib.sha256(content).hexdigest()}
        kept = _read(path, facts)
        try:
            if kept is not None:
                with suppress(EngineUnavailable):
                    return compiler.load(kept)
            return compiler.load(self._build(content, compiler, path, facts))
        except EngineUnavailable as error:
            raise EngineUnavailable(error.reason, f"{graph.name}: {error}") from error

    def path(self, graph: bytes, compiler: Compiler[T]) -> Path:
        """Return the path of a graph's engine (design §4)."""
        return self._folder / f"{hashlib.sha256(graph).hexdigest()}-{_device(compiler)}.engine"

    def proof(self, graph: Path, compiler: Compiler[T], *, driver: str) -> dict[str, StageDifference] | None:
        """Return how far a graph's engine was from the network with this driver; None if that was not measured."""
        head = _head(self.path(graph.read_bytes(), compiler))
        proof = next((proof for proof in head.proofs if proof.driver == driver), None) if head is not None else None
        return None if proof is None else dict(proof.stages)

    def keep_proof(self, graph: Path, compiler: Compiler[T], proof: DriverProof) -> None:
        """Write it into the first line of the engine's file; a folder that is not writable keeps none."""
        path = self.path(graph.read_bytes(), compiler)
        with suppress(OSError, ValueError):
            line, _, content = path.read_bytes().partition(b"\n")
            head = json.loads(line)
            kept = {
                **head.get("proofs", {}),
                proof.driver: {name: asdict(stage) for name, stage in proof.stages.items()},
            }
            _write_file(path, {**head, "proofs": kept}, content)

    def _build(self, graph: bytes, compiler: Compiler[T], path: Path, facts: Mapping[str, object]) -> bytes:
        timings = self._folder / f"timings-{_device(compiler)}.cache"
        with self._writing():
            _try_to_write(self._folder)
        engine, learned = compiler.build(graph, timings=_read(timings, _facts(compiler)) or b"")
        with self._writing():
            _write(path, facts, engine)
        with suppress(OSError):  # without them only the next build takes longer
            _write(timings, _facts(compiler), learned)
        return engine

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an OSError in the folder into EngineUnavailable."""
        try:
            yield
        except OSError as error:
            message = f"{self._folder}: cannot be used ({error.strerror}); make it a folder that the node may write to"
            raise EngineUnavailable("not_built", message) from error


def read_heads(folder: Path) -> list[EngineHead]:
    """Read the first lines of all engine files in a folder, without the engines. Other files are left out."""
    heads = (_head(path) for path in sorted(folder.glob("*.engine")))
    return sorted((head for head in heads if head is not None), key=lambda head: (head.gpu, head.name, head.version))


def _head(path: Path) -> EngineHead | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
        proofs = tuple(
            DriverProof(driver=driver, stages={name: StageDifference(**stage) for name, stage in stages.items()})
            for driver, stages in found.get("proofs", {}).items()
        )
        return EngineHead(name=found["name"], gpu=found["gpu"], version=found["version"], proofs=proofs)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _facts(compiler: Compiler[T]) -> dict[str, object]:
    """Return the target of an engine. With other ranges it would refuse the reader's inputs."""
    ranges = {axis: asdict(RANGES[axis]) for axis in RANGES}
    return {"gpu": compiler.gpu, "version": compiler.version, "ranges": ranges}


def _device(compiler: Compiler[T]) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", compiler.gpu.lower()).strip("-")
    return f"{gpu}-{compiler.version}"


def _read(path: Path, facts: Mapping[str, object]) -> bytes | None:
    """Read what follows the first line; None if the file is missing, damaged, or was built for another target."""
    try:
        line, _, content = path.read_bytes().partition(b"\n")
        claimed = json.loads(line)
    except (OSError, ValueError):
        return None
    if not isinstance(claimed, dict):
        return None
    claimed.pop("proofs", None)
    return content if claimed == {**facts, "sha256": hashlib.sha256(content).hexdigest()} else None


def _try_to_write(folder: Path) -> None:
    """Create the folder and write a temporary file in it. Raises OSError."""
    for directory in (folder.parent, folder):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")


def _write(path: Path, facts: Mapping[str, object], content: bytes) -> None:
    _write_file(path, {**facts, "sha256": hashlib.sha256(content).hexdigest()}, content)


def _write_file(path: Path, head: Mapping[str, object], content: bytes) -> None:
    """Write a file atomically. Another process may write the same file, so each uses its own temporary file."""
    with beside(path, mark=f".{uuid4().hex}") as aside:
        aside.write_bytes(json.dumps(head, sort_keys=True).encode() + b"\n" + content)
