"""An engine that notes what its calls took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np

from models.contract import StageDifference
from models.engines import Engine, FloatArray, IntArray, Patches, Regions
from tests.drills.bench.turns import timed

STAGES: Final = ("encode_image", "encode_prompts", "find", "describe", "write")
T = TypeVar("T")


class Watched:
    """An engine whose calls are noted; context: pads phrases to so many tokens, 0 leaves them as they are."""

    def __init__(self, engine: Engine, *, context: int = 0) -> None:
        self.engine = engine
        self._context = context
        self._seconds = dict.fromkeys(STAGES, 0.0)

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage since the last time."""
        taken, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return taken

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        return self.engine.parity

    def encode_image(self, pixels: FloatArray) -> Patches:
        return self._noted("encode_image", lambda: self.engine.encode_image(pixels))

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        if self._context > tokens.shape[1]:
            tokens = np.pad(tokens, ((0, 0), (0, self._context - tokens.shape[1])))
        return self._noted("encode_prompts", lambda: self.engine.encode_prompts(tokens))

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        return self._noted("find", lambda: self.engine.find(patches, prompts))

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        return self._noted(
            "describe", lambda: self.engine.describe(patches, boxes=boxes, prompts=prompts, prompted=prompted)
        )

    def view(self, patches: Patches) -> FloatArray:
        return self.engine.view(patches)

    def write(self, features: FloatArray) -> IntArray:
        return self._noted("write", lambda: self.engine.write(features))

    def _noted(self, stage: str, call: Callable[[], T]) -> T:
        taken = timed(call)
        self._seconds[stage] += taken.seconds
        return taken.result
