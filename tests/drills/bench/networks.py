"""The networks that are measured, all in this process: the plain way, and this program in float32 and int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np

from models.contract import FilmReading, ReaderPrompt
from models.engines import Engine, FloatArray, IntArray
from models.engines.opening import open_first
from models.engines.proof import Precision
from models.lab.evaluation.evaluated_model import read_questions
from models.manifest import read_manifest, write_manifest
from models.network.products import int8_fault
from models.progress import ProgressReport
from models.reading.reader import ChexReader
from tests.drills.bench.alone import PROMPTS
from tests.drills.bench.plain import open_plain, reader_of
from tests.drills.bench.turns import PLAIN, apart, timed
from tests.support import random_model

STAGES: Final = ("encode_image", "encode_prompts", "find", "describe", "write")
_SIDE: Final = 512
_TOKENS: Final = 24
T = TypeVar("T")


class Watched:
    """An engine whose calls are timed; context: pads phrases to so many tokens, 0 leaves them as they are."""

    def __init__(self, engine: Engine, *, context: int = 0) -> None:
        self._engine, self._context = engine, context
        self._seconds = dict.fromkeys(STAGES, 0.0)

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage since the last time."""
        taken, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return taken

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        if self._context > tokens.shape[1]:
            tokens = np.pad(tokens, ((0, 0), (0, self._context - tokens.shape[1])))
        return self._timed("encode_prompts", self._engine.encode_prompts, tokens)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._engine, name)
        return partial(self._timed, name, found) if name in STAGES else found

    def _timed(self, stage: str, call: Callable[..., T], *given: object, **named: object) -> T:
        taken = timed(partial(call, *given, **named))
        self._seconds[stage] += taken.seconds
        return taken.result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """An opened model, warm: it has read a film."""

    reader: ChexReader
    engine: Watched

    def report(self, gray: FloatArray, prompts: Sequence[ReaderPrompt]) -> FilmReading:
        """Read a film from its gray values to its sentences."""
        return self.reader.report(self.reader.look(gray), prompts)


def open_all(directory: Path, *, engine: str, threads: int, say: ProgressReport) -> dict[str, Network]:
    """Open every network by its name: the plain way first."""
    opened = {}
    for name in (PLAIN, *precisions()):
        say(f"opening the published size: {name}")
        opened[name] = network = apart(partial(_open, directory, name, engine, threads))
        apart(partial(network.report, drawn_film(0), read_questions(PROMPTS).prompts))
    return opened


def _open(directory: Path, name: str, engine: str, threads: int) -> Network:
    if name == PLAIN:
        context = read_manifest(directory).sizes.prompt_encoder.context
        watched = Watched(open_plain(directory, threads=threads), context=context)
    else:
        opened = open_first(directory, engine=engine, threads=threads, precision=cast(Precision, name))
        watched = Watched(opened.engine)
    return Network(reader=reader_of(directory, cast(Engine, watched)), engine=watched)


@cache
def precisions() -> tuple[Precision, ...]:
    """Return the precisions that this machine computes in: older processors have no int8."""
    return ("float32",) if apart(int8_fault) else ("float32", "int8")


def at_once(run: Callable[[int], T], count: int) -> list[T]:
    """Call a function with 0, 1 and so on, each in a thread of its own; returns what it returned, in this order."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def drawn_film(number: int) -> FloatArray:
    """Draw gray values [row, column]: blocks, for a film is no noise."""
    blocks = np.random.default_rng(number).random((16, 16), dtype=np.float32)
    film: FloatArray = np.kron(blocks, np.ones((_SIDE // 16, _SIDE // 16), dtype=np.float32))
    return film


def make_model(directory: Path, *, graphs: bool, say: ProgressReport) -> Path:
    """Write random weights of the published size whose sentences have at most 24 tokens, and export the graphs."""
    say("random weights of the published size")
    random_model.write_directory(directory, size="full", seed=random_model.DEFAULT_SEED)
    manifest = read_manifest(directory)
    sizes = replace(manifest.sizes, generator=replace(manifest.sizes.generator, max_length=_TOKENS))
    # Every prompt gets its sentence, as in a published report; random weights would leave out some of the regions.
    decisions = replace(manifest.decisions, region_threshold=0.0)
    write_manifest(directory, replace(manifest, sizes=sizes, decisions=decisions))
    if graphs:
        from export.graphs import build_float32  # takes seconds to import

        build_float32(directory, say=lambda line: say(line))
    return directory
