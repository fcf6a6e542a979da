"""The plain way to read films: eager PyTorch, GPT-2 of `transformers`, and every text padded to the full context.

Films that are read at once have their sentences generated in one batch, which all of them wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Final, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from models.checkpoint.weights import load_network
from models.engines import Engine, FloatArray, IntArray
from models.engines.devices import CPU
from models.engines.scheduler import Scheduler
from models.engines.staged_engine import StagedEngine
from models.engines.torch_engine import run_by, use_threads
from models.manifest import read_manifest
from models.network.post_decoder import PostDecoder
from models.reading.reader import ChexReader
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer

PlainWay = Literal["transformers", "eager"]
MOST_FILMS: Final = 4
"""The sentences of so many films are one batch: keys and values of more would fill the memory."""


class _Generator(Protocol):
    def write(self, features: Tensor, *, max_length: int) -> Tensor: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    features: FloatArray
    ids: IntArray | None = None
    error: BaseException | None = None


class Batches:
    """Generates the sentences of films that are read at once in one batch."""

    def __init__(self, write: Callable[[FloatArray], IntArray]) -> None:
        self._write = write
        self._changed = Condition()
        self._films = 0
        self._waiting: list[_Waiting] = []

    @contextmanager
    def film(self) -> Iterator[None]:
        """Read a film in the block: others wait for its sentences."""
        with self._changed:
            self._films += 1
        try:
            yield
        finally:
            with self._changed:
                self._films -= 1
                self._write_if_all_are_here()

    def write(self, features: FloatArray) -> IntArray:
        """Generate sentences with those of the other films."""
        waiting = _Waiting(features)
        with self._changed:
            self._waiting.append(waiting)
            self._write_if_all_are_here()
            self._changed.wait_for(lambda: waiting.ids is not None or waiting.error is not None)
        if waiting.ids is None:
            raise RuntimeError("the batch failed") from waiting.error
        return waiting.ids

    def _write_if_all_are_here(self) -> None:
        if not self._waiting or len(self._waiting) < min(self._films, MOST_FILMS):
            return
        batch, self._waiting = self._waiting, []
        try:
            ids = self._write(np.concatenate([waiting.features for waiting in batch]))
            ends = np.cumsum([len(waiting.features) for waiting in batch])[:-1]
            for waiting, part in zip(batch, np.split(ids, ends), strict=True):
                waiting.ids = part
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        self._changed.notify_all()


def open_plain(directory: Path, *, way: PlainWay, threads: int) -> tuple[StagedEngine, Batches]:
    """Open a model directory the plain way; eager: the network's own generator, where `transformers` is not installed.

    Raises ImportError if it is asked for and not installed.
    """
    network = load_network(directory)
    network.post_decoder.of_aggregated = partial(_of_aggregated, network.post_decoder)  # type: ignore[method-assign]
    use_threads(threads, network)
    max_length = network.sizes.generator.max_length
    generator: _Generator = network.generator
    if way == "transformers":
        from tests.drills.bench.plain_generator import PlainGenerator  # needs the extra `bench`

        generator = PlainGenerator(network.generator)
    scheduler = Scheduler()

    def write(features: FloatArray) -> IntArray:
        def generate() -> IntArray:
            with torch.inference_mode():
                ids: IntArray = generator.write(
                    torch.from_numpy(np.ascontiguousarray(features)), max_length=max_length
                ).numpy()
            return ids

        return scheduler.call(generate)

    batches = Batches(write)
    return StagedEngine("plain", run=run_by(network, CPU), write=batches.write, scheduler=scheduler), batches


def reader_of(directory: Path, engine: Engine) -> ChexReader:
    """Return what reads films and answers questions with an engine that is open."""
    vocabularies = directory / "vocab"
    prompts, sentences = PromptTokenizer(vocabularies), SentenceTokenizer(vocabularies)
    return ChexReader(read_manifest(directory), engine, prompts, sentences, trusted="any")


def _of_aggregated(post_decoder: PostDecoder, aggregated: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
    """Compute all tokens of every layer, as the published code does, and take the aggregated ones."""
    return post_decoder.of_prompts(aggregated, boxes, memory)[:, :, 0]
