"""Calls of a large network on the processor in short parts, so that a question waits behind none for long.

At the published size 29 phrases take almost two seconds. They are encoded two at a time, between which people go first.
The parts depend on the call alone, so what else is computed changes no result. Films of several callers are not joined:
a batch saves little time there, and a detector of two films does not compute the bits that it computes for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from models.engines.turns import Calls

Arrays = Sequence[np.ndarray]
Most = Mapping[str, int]

UNLIMITED: Final[Most] = MappingProxyType({})
SHORT: Final[Most] = MappingProxyType({"encode_image": 1, "encode_prompts": 2, "find": 1, "describe": 2, "view": 8})
"""Films or phrases of one part at the published size: 0.12 s at most, with one thread."""


def run_in_parts(
    calls: Calls, run: Callable[[Arrays], Sequence[np.ndarray]], stage: str, inputs: Arrays, *, most: Most
) -> Sequence[np.ndarray]:
    """Run a stage on inputs [film or phrase, ...], each part of them in a turn of its own.

    most: films or phrases of a part, by stage; a stage that is not named has one part
    """
    limit = most.get(stage, 0)
    if not limit or len(inputs[0]) <= limit:
        return calls.call(lambda: run(inputs))
    outputs = []
    for start in range(0, len(inputs[0]), limit):
        part = [array[start : start + limit] for array in inputs]
        outputs.append(calls.call(lambda part=part: run(part)))  # type: ignore[misc]  # mypy cannot infer the default
    return [np.concatenate(arrays) for arrays in zip(*outputs, strict=True)]
