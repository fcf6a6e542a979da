"""An engine that notes what each call took, and the operations that the products of these calls need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.contract import StageDifference
from models.engines import Engine, FloatArray, IntArray, Patches, Regions
from models.manifest import NetworkSizes
from models.network.chex import Chex
from models.reading.tokenizers import SENTENCE_END
from tests.drills.bench.turns import timed

STAGES: Final = ("encode_image", "encode_prompts", "find", "describe", "write")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call of an engine.

    shapes: of its inputs; tokens: those that the sentences of distinct features needed, their ends included
    """

    stage: str
    seconds: float
    shapes: tuple[tuple[int, ...], ...]
    tokens: int = 0


class Watched:
    """An engine whose calls are noted; context: pads phrases to so many tokens, 0 leaves them as they are."""

    def __init__(self, engine: Engine, *, context: int = 0) -> None:
        self.engine = engine
        self._context = context
        self._calls: list[Call] = []

    def take(self) -> list[Call]:
        """Return the calls since the last time."""
        taken, self._calls = self._calls, []
        return taken

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        return self.engine.parity

    def encode_image(self, pixels: FloatArray) -> Patches:
        taken = timed(lambda: self.engine.encode_image(pixels))
        self._note("encode_image", taken.seconds, pixels)
        return taken.result

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        if self._context > tokens.shape[1]:
            tokens = np.pad(tokens, ((0, 0), (0, self._context - tokens.shape[1])))
        taken = timed(lambda: self.engine.encode_prompts(tokens))
        self._note("encode_prompts", taken.seconds, tokens)
        return taken.result

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        taken = timed(lambda: self.engine.find(patches, prompts))
        self._note("find", taken.seconds, *_arrays(patches), prompts)
        return taken.result

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        taken = timed(lambda: self.engine.describe(patches, boxes=boxes, prompts=prompts, prompted=prompted))
        self._note("describe", taken.seconds, *_arrays(patches), boxes, prompts, prompted)
        return taken.result

    def view(self, patches: Patches) -> FloatArray:
        return self.engine.view(patches)

    def write(self, features: FloatArray) -> IntArray:
        taken = timed(lambda: self.engine.write(features))
        self._note("write", taken.seconds, features, tokens=_needed(taken.result, features))
        return taken.result

    def _note(self, stage: str, seconds: float, *inputs: np.ndarray, tokens: int = 0) -> None:
        shapes = tuple(array.shape for array in inputs)
        self._calls.append(Call(stage=stage, seconds=seconds, shapes=shapes, tokens=tokens))


def seconds_of(calls: Iterable[Call]) -> dict[str, float]:
    """Sum the seconds of calls by stage; every stage has an entry."""
    seconds = dict.fromkeys(STAGES, 0.0)
    for call in calls:
        seconds[call.stage] += call.seconds
    return seconds


def operations_of(calls: Iterable[Call], sizes: NetworkSizes) -> float:
    """Sum the operations of the products that calls need, each text cut to its tokens as it was handed over."""
    return sum(
        _generated(sizes, sentences=call.shapes[0][0], tokens=call.tokens)
        if call.stage == "write"
        else _counted(sizes, call.stage, call.shapes)
        for call in calls
    )


def _arrays(patches: Patches) -> tuple[FloatArray, FloatArray, FloatArray]:
    return patches.features, patches.positions, patches.cls


def _needed(ids: IntArray, features: FloatArray) -> int:
    """Count the tokens that must be generated: those of distinct features, up to each end."""
    _, first = np.unique(features, axis=0, return_index=True)
    words = (ids[first] != SENTENCE_END).sum(axis=1)
    return int(np.minimum(words + 1, ids.shape[1] - 1).sum())


def _generated(sizes: NetworkSizes, *, sentences: int, tokens: int) -> float:
    """Count the operations of prefixes and tokens; attention, a hundredth of them, is left out."""
    generator = _network(sizes).generator
    prefix = _weights(generator.prefix)
    return 2.0 * (sentences * prefix + tokens * (_weights(generator.layers) + generator.tokens.weight.numel()))


def _weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


@lru_cache(maxsize=256)
def _counted(sizes: NetworkSizes, stage: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Count the operations of a stage of the network, run without numbers."""
    kind = torch.int64 if stage == "encode_prompts" else torch.float32
    with ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(torch.inference_mode())
        counter = stack.enter_context(FlopCounterMode(display=False))
        getattr(_network(sizes), stage)(*(torch.zeros(shape, dtype=kind) for shape in shapes))
    return float(counter.get_total_flops())


@lru_cache(maxsize=2)
def _network(sizes: NetworkSizes) -> Chex:
    """Return a network whose weights have shapes alone."""
    with torch.device("meta"):
        return Chex(sizes).eval()
