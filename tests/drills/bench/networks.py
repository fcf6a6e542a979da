"""The networks that are measured, all in this process: the plain way, and this program in float32 and int8."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np

from models.contract import FilmReading, ReaderPrompt, StageDifference
from models.engines import Engine, FloatArray, IntArray, Patches, Regions
from models.engines.opening import open_first
from models.engines.proof import Precision
from models.lab.evaluation.evaluated_model import read_questions
from models.manifest import read_manifest, write_manifest
from models.network.products import int8_fault
from models.progress import ProgressReport
from models.reading.decided_film import Look
from models.reading.reader import ChexReader
from tests.drills.bench.alone import PROMPTS
from tests.drills.bench.plain import PlainWay, open_plain, reader_of
from tests.drills.bench.turns import PLAIN, apart, timed
from tests.support import random_model

STAGES: Final = ("encode_image", "encode_prompts", "find", "describe", "write")
_SIDE: Final = 512
T = TypeVar("T")


class Watched:
    """An engine whose calls are noted; context: pads phrases to so many tokens, 0 leaves them as they are."""

    def __init__(self, engine: Engine, *, context: int = 0) -> None:
        self.engine = engine
        self._context = context
        self._seconds = dict.fromkeys(STAGES, 0.0)

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage since the last time."""
        taken, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return taken

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        return self.engine.parity

    def encode_image(self, pixels: FloatArray) -> Patches:
        return self._noted("encode_image", lambda: self.engine.encode_image(pixels))

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        if self._context > tokens.shape[1]:
            tokens = np.pad(tokens, ((0, 0), (0, self._context - tokens.shape[1])))
        return self._noted("encode_prompts", lambda: self.engine.encode_prompts(tokens))

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        return self._noted("find", lambda: self.engine.find(patches, prompts))

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        return self._noted(
            "describe", lambda: self.engine.describe(patches, boxes=boxes, prompts=prompts, prompted=prompted)
        )

    def view(self, patches: Patches) -> FloatArray:
        return self.engine.view(patches)

    def write(self, features: FloatArray) -> IntArray:
        return self._noted("write", lambda: self.engine.write(features))

    def _noted(self, stage: str, call: Callable[[], T]) -> T:
        taken = timed(call)
        self._seconds[stage] += taken.seconds
        return taken.result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """An opened model; film: is entered while a film is read."""

    reader: ChexReader
    engine: Watched
    film: Callable[[], AbstractContextManager[None]]

    def report(self, gray: FloatArray, prompts: Sequence[ReaderPrompt]) -> FilmReading:
        """Read a film from its gray values to its sentences."""
        with self.film():
            return self.reader.report(self.look(gray), prompts)

    def look(self, gray: FloatArray) -> Look:
        return self.reader.look(gray)


class Networks:
    """Opens each network when it is first needed, and reads films and sentences with it."""

    def __init__(self, directory: Path, *, engine: str, threads: int, plain: PlainWay, say: ProgressReport) -> None:
        self.directory, self.threads = directory, threads
        self._engine_name, self._way, self.say = engine, plain, say
        self.sizes = read_manifest(directory).sizes
        self.prompts = read_questions(PROMPTS).prompts
        self._opened: dict[str, Network] = {}

    @property
    def all(self) -> dict[str, Network]:
        """Every network by its name: the plain way first."""
        return {name: self.network(name) for name in (PLAIN, *precisions())}

    def network(self, name: str) -> Network:
        """Return a network, opened and warm: it has read a film."""
        if name not in self._opened:
            self.say(f"opening the published size: {name}")
            self._opened[name] = network = apart(partial(self._open, name))
            apart(partial(network.report, drawn_film(0), self.prompts))
        return self._opened[name]

    def close(self) -> None:
        """Give the memory back, for what runs in processes of its own."""
        self._opened.clear()
        gc.collect()

    def _open(self, name: str) -> Network:
        if name == PLAIN:
            engine, batches = open_plain(self.directory, way=self._way, threads=self.threads)
            return self._network(Watched(engine, context=self.sizes.prompt_encoder.context), batches.film)
        precision = cast(Precision, name)
        opened = open_first(self.directory, engine=self._engine_name, threads=self.threads, precision=precision)
        return self._network(Watched(opened.engine), nullcontext)

    def _network(self, engine: Watched, film: Callable[[], AbstractContextManager[None]]) -> Network:
        return Network(reader=reader_of(self.directory, engine), engine=engine, film=film)


@cache
def precisions() -> tuple[Precision, ...]:
    """Return the precisions that this machine computes in: older processors have no int8."""
    return ("float32",) if apart(int8_fault) else ("float32", "int8")


def at_once(run: Callable[[int], T], count: int) -> list[T]:
    """Call a function with 0, 1 and so on, each in a thread of its own; returns what it returned, in this order."""
    if count == 1:
        return [run(0)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def drawn_film(number: int) -> FloatArray:
    """Draw gray values [row, column]: blocks, for a film is no noise."""
    blocks = np.random.default_rng(number).random((16, 16), dtype=np.float32)
    film: FloatArray = np.kron(blocks, np.ones((_SIDE // 16, _SIDE // 16), dtype=np.float32))
    return film


def make_model(directory: Path, *, tokens: int, graphs: bool, say: ProgressReport) -> Path:
    """Write random weights of the published size whose sentences have at most so many tokens, and export the graphs."""
    say("random weights of the published size")
    random_model.write_directory(directory, size="full", seed=random_model.DEFAULT_SEED)
    manifest = read_manifest(directory)
    sizes = replace(manifest.sizes, generator=replace(manifest.sizes.generator, max_length=tokens))
    # Every prompt gets its sentence, as in a published report; random weights would leave out some of the regions.
    decisions = replace(manifest.decisions, region_threshold=0.0)
    write_manifest(directory, replace(manifest, sizes=sizes, decisions=decisions))
    if graphs:
        from export.graphs import build_float32  # takes seconds to import

        build_float32(directory, say=lambda line: say(line))
    return directory
