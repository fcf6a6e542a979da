"""How many films, prompts, phrases and boxes an engine is built for, and how larger inputs are divided.

Axes have these names in the exported graphs. Films do not affect each other, nor do phrases, so larger numbers of them
are processed in parts. Prompts of one film do see each other (spec §6): too many of them are refused.
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


# Usual: one film, the 29 prompts and 43 phrases of the set chexpert14, one box of an interactive question.
RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "film": Range(least=1, usual=1, most=8),
        "phrase": Range(least=1, usual=43, most=64),
        "prompt": Range(least=1, usual=29, most=64),
        "box": Range(least=1, usual=1, most=64),
    }
)
_FIRST_AXIS = MappingProxyType({"encode_prompts": "phrase"})
_SECOND_AXIS = MappingProxyType({"find": "prompt", "describe": "box"})


def in_parts(run: RunGraph) -> RunGraph:
    """Limit a runtime to the number of films or phrases that it was built for, by processing more of them in parts."""

    def run_in_parts(stage: str, inputs: Inputs) -> list[FloatArray]:
        second = _SECOND_AXIS.get(stage)
        asked = inputs["prompts"].shape[1] if second is not None else 0
        if second is not None and asked > RANGES[second].most:
            raise ModelError(
                f"{asked} {second} inputs in one call; this engine is built for at most {RANGES[second].most}"
            )
        most = RANGES[_FIRST_AXIS.get(stage, "film")].most
        count = next(iter(inputs.values())).shape[0]
        parts = [
            run(stage, {name: array[start : start + most] for name, array in inputs.items()})
            for start in range(0, count, most)
        ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    return run_in_parts
