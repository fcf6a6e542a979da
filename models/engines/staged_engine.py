"""An engine of stages; what runs a stage, and the generator of sentences, are passed in.

PyTorch, ONNX Runtime and TensorRT therefore differ only in how a stage is run, and TensorRT in how many films, prompts
and boxes it is built for; axes have these names in the graphs. Films do not affect each other, so larger numbers of
them are processed in parts. Prompts of one film do see each other (spec §6): TensorRT refuses too many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import StageDifference
from models.engines import FloatArray, IntArray, Patches, Regions
from models.engines.scheduler import UNLIMITED, Most, Scheduler

Inputs = Mapping[str, NDArray[np.generic]]
RunStage = Callable[[str, Inputs], Sequence[FloatArray]]
"""Runs a stage on inputs by name, in the order of its parameters; gives its outputs in their order."""


class StagedEngine:
    """What runs the stages, and the generator in PyTorch. One call at a time: each uses the whole device.

    scheduler: says when a stage runs; write: asks it itself
    most: films or phrases that are computed without a pause, by stage; a stage that is not named has no pause
    """

    def __init__(
        self,
        name: str,
        *,
        run: RunStage,
        write: Callable[[FloatArray], IntArray],
        parity: Mapping[str, StageDifference] = MappingProxyType({}),
        scheduler: Scheduler | None = None,
        most: Most = UNLIMITED,
    ) -> None:
        self.name, self.parity, self.write = name, parity, write
        self._run_stage = run
        self._scheduler = scheduler or Scheduler()
        self._most = most

    def encode_image(self, pixels: FloatArray) -> Patches:
        """See `Engine`."""
        features, positions, cls = self.run_stage("encode_image", {"pixels": pixels})
        return Patches(features=features, positions=positions, cls=cls)

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """See `Engine`."""
        return self.run_stage("encode_prompts", {"tokens": tokens})[0]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """See `Engine`."""
        found = self.run_stage("find", {**_film(patches), "prompts": prompts})
        boxes, scores, aggregated_scores, features = found
        return Regions(boxes=boxes, scores=scores, aggregated_scores=aggregated_scores, features=features)

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """See `Engine`."""
        asked = {"boxes": boxes, "prompts": prompts, "prompted": prompted}
        return self.run_stage("describe", _film(patches) | asked)[0]

    def view(self, patches: Patches) -> FloatArray:
        """See `Engine`."""
        return self.run_stage("view", {"patches": patches.features})[0]

    def run_stage(self, stage: str, inputs: Inputs) -> Sequence[FloatArray]:
        """Run a stage as its exported graph does, on inputs [film, ...]; each part of them is a call of its own."""
        count = len(next(iter(inputs.values())))
        limit = self._most.get(stage) or count
        outputs = []
        for start in range(0, count, limit) if count else [0]:
            part = {name: array[start : start + limit] for name, array in inputs.items()}
            outputs.append(self._scheduler.call(partial(self._run_stage, stage, part)))
        return outputs[0] if len(outputs) == 1 else [np.concatenate(arrays) for arrays in zip(*outputs, strict=True)]


def _film(patches: Patches) -> dict[str, NDArray[np.generic]]:
    return {"patches": patches.features, "positions": patches.positions, "cls": patches.cls}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The least, the usual and the greatest length of an axis; kernels are optimized for the usual one."""

    least: int
    usual: int
    most: int


# Usual: one film, the 29 prompts of the set chexpert14, one box of an interactive question.
RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "film": Range(least=1, usual=1, most=8),
        "prompt": Range(least=1, usual=29, most=64),
        "box": Range(least=1, usual=1, most=64),
    }
)
