"""How many films, prompts and boxes an engine is built for, and how larger inputs are divided.

Axes have these names in the exported graphs. Films do not affect each other, so larger numbers of them are processed in
parts. Prompts of one film do see each other (spec §6): too many of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from models.engines import FloatArray
from models.engines.graph_engine import Inputs, RunGraph
from models.errors import ModelError


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


def in_parts(run: RunGraph) -> RunGraph:
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
