"""Calls of a large network on the processor in short parts, so that a question waits behind none for long.

At the published size 29 sentences take a quarter of a second or more. They are encoded in parts of MOST_TOKENS
(`Phrasebook.embed`), between which people go first.
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
SHORT: Final[Most] = MappingProxyType({"encode_image": 1, "find": 1, "describe": 2, "view": 8})
"""Films of one part at the published size: 0.12 s at most, with one thread."""

MOST_TOKENS: Final = 154
"""Tokens of the phrases that are encoded at once, for every network: as long as the parts above at the published size.
More at once are no faster."""


def run_in_parts(
    calls: Calls, run: Callable[[Arrays], Sequence[np.ndarray]], stage: str, inputs: Arrays, *, most: Most
) -> Sequence[np.ndarray]:
    """Run a stage on inputs [film, ...], each part of them in a turn of its own.

    most: films of a part, by stage; a stage that is not named has one part
    """
    limit = most.get(stage, 0)
    if not limit or len(inputs[0]) <= limit:
        return calls.call(lambda: run(inputs))
    outputs = []
    for start in range(0, len(inputs[0]), limit):
        part = [array[start : start + limit] for array in inputs]
        outputs.append(calls.call(lambda part=part: run(part)))  # type: ignore[misc]  # mypy cannot infer the default
    return [np.concatenate(arrays) for arrays in zip(*outputs, strict=True)]
