"""The plain way to read films: eager PyTorch, GPT-2 of `transformers`, and every text padded to the full context."""

from __future__ import annotations

from functools import partial
from pathlib import Path

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
from tests.drills.bench.plain_generator import PlainGenerator


def open_plain(directory: Path, *, threads: int) -> StagedEngine:
    """Open a model directory the plain way."""
    network = load_network(directory)
    network.post_decoder.of_aggregated = partial(_of_aggregated, network.post_decoder)  # type: ignore[method-assign]
    use_threads(threads, network)
    max_length = network.sizes.generator.max_length
    generator, scheduler = PlainGenerator(network.generator), Scheduler()

    def write(features: FloatArray) -> IntArray:
        def generate() -> IntArray:
            with torch.inference_mode():
                given = torch.from_numpy(np.ascontiguousarray(features))
                ids: IntArray = generator.write(given, max_length=max_length).numpy()
            return ids

        return scheduler.call(generate)

    return StagedEngine("plain", run=run_by(network, CPU), write=write, scheduler=scheduler)


def reader_of(directory: Path, engine: Engine) -> ChexReader:
    """Return what reads films and answers questions with an engine that is open."""
    vocabularies = directory / "vocab"
    prompts, sentences = PromptTokenizer(vocabularies), SentenceTokenizer(vocabularies)
    return ChexReader(read_manifest(directory), engine, prompts, sentences, trusted="any")


def _of_aggregated(post_decoder: PostDecoder, aggregated: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
    """Compute all tokens of every layer, as the published code does, and take the aggregated ones."""
    return post_decoder.of_prompts(aggregated, boxes, memory)[:, :, 0]
