"""An engine of stages; what runs a stage, and the generator of sentences, are passed in.

PyTorch, ONNX Runtime and TensorRT therefore differ only in how a stage is run, and TensorRT in how many films, prompts
and boxes it is built for; axes have these names in the graphs. Films do not affect each other, so larger numbers of
them are processed in parts. Prompts of one film do see each other (spec §6): too many of them are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import StageDifference
from models.engines import FloatArray, IntArray, Patches, Regions
from models.engines.call_order import UNLIMITED, Calls, Most, Turns, run_in_parts
from models.errors import ModelError

Inputs = Mapping[str, NDArray[np.generic]]
RunStage = Callable[[str, Inputs], Sequence[FloatArray]]
"""Runs a stage on inputs by name, in the order of its parameters; gives its outputs in their order."""


class StagedEngine:
    """What runs the stages, and the generator in PyTorch. One call at a time: each uses the whole device.

    calls: when a stage runs; write: waits for its own turn; most: films or phrases that are computed without a pause
    """

    def __init__(
        self,
        name: str,
        *,
        run: RunStage,
        write: Callable[[FloatArray], IntArray],
        parity: Mapping[str, StageDifference] = MappingProxyType({}),
        calls: Calls | None = None,
        most: Most = UNLIMITED,
    ) -> None:
        self.name, self.parity, self.write = name, parity, write
        self._run_stage = run
        self._calls: Calls = calls or Turns()
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
        """Run a stage as its exported graph does."""

        def run(arrays: Sequence[NDArray[np.generic]]) -> Sequence[FloatArray]:
            return self._run_stage(stage, dict(zip(inputs, arrays, strict=True)))

        return run_in_parts(self._calls, run, stage, list(inputs.values()), most=self._most)


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
_SECOND_AXIS = MappingProxyType(
    {"find": ("prompt", ("prompts",)), "describe": ("box", ("boxes", "prompts", "prompted"))}
)


def in_parts(run: RunStage) -> RunStage:
    """Limit a runtime to the number of films that it was built for, by processing more of them in parts.

    The returned function raises ModelError for no films, prompts or boxes, for too many prompts or boxes, and for
    inputs that hold different numbers of them.
    """

    def run_in_parts(stage: str, inputs: Inputs) -> list[FloatArray]:
        count = _count(inputs, "film", names=tuple(inputs), axis=0)
        if stage in _SECOND_AXIS:
            second, names = _SECOND_AXIS[stage]
            if (asked := _count(inputs, second, names=names, axis=1)) > RANGES[second].most:
                raise ModelError(
                    f"{asked} {second} inputs in one call; this engine is built for at most {RANGES[second].most}"
                )
        most = RANGES["film"].most
        parts = [
            run(stage, {name: array[start : start + most] for name, array in inputs.items()})
            for start in range(0, count, most)
        ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    return run_in_parts


def _count(inputs: Inputs, kind: str, *, names: tuple[str, ...], axis: int) -> int:
    """Return the length that an axis has in all these inputs, at least 1."""
    counts: dict[str, int] = {name: inputs[name].shape[axis] for name in names}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ModelError(f"the inputs hold different numbers of {kind} inputs: {listed}; give each the same number")
    count = next(iter(counts.values()))
    if not count:
        raise ModelError(f"0 {kind} inputs in one call; give at least one")
    return count
