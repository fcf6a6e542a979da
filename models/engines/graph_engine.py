"""An engine whose stages are exported graphs; what runs a graph, and the generator of sentences, are passed in.

ONNX Runtime and TensorRT therefore differ only in how a graph is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from models.contract import StageDifference
from models.engines import FloatArray, IntArray, Patches, Regions
from models.engines.short_calls import UNLIMITED, Most, run_in_parts
from models.engines.turns import Calls, Turns

Inputs = Mapping[str, NDArray[np.generic]]
RunGraph = Callable[[str, Inputs], Sequence[FloatArray]]
"""Runs the graph of a stage on inputs by name; gives its outputs in their order."""


class GraphEngine:
    """A graph for each stage, and the generator in PyTorch. One call at a time: each uses the whole device.

    calls: when a graph runs; write: waits for its own turn; most: films or phrases that are computed without a pause
    """

    def __init__(
        self,
        name: str,
        *,
        run: RunGraph,
        write: Callable[[FloatArray], IntArray],
        parity: Mapping[str, StageDifference] = MappingProxyType({}),
        calls: Calls | None = None,
        most: Most = UNLIMITED,
    ) -> None:
        self._name = name
        self._parity = parity
        self._run_graph = run
        self._write = write
        self._calls: Calls = calls or Turns()
        self._most = most

    @property
    def name(self) -> str:
        """See `Engine`."""
        return self._name

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        """See `Engine`."""
        return self._parity

    def encode_image(self, pixels: FloatArray) -> Patches:
        """See `Engine`."""
        features, positions, cls = self._run("encode_image", pixels=pixels)
        return Patches(features=features, positions=positions, cls=cls)

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """See `Engine`."""
        return self._run("encode_prompts", tokens=tokens)[0]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """See `Engine`."""
        found = self._run(
            "find", patches=patches.features, positions=patches.positions, cls=patches.cls, prompts=prompts
        )
        boxes, scores, aggregated_scores, features = found
        return Regions(boxes=boxes, scores=scores, aggregated_scores=aggregated_scores, features=features)

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """See `Engine`."""
        return self._run(
            "describe",
            patches=patches.features,
            positions=patches.positions,
            cls=patches.cls,
            boxes=boxes,
            prompts=prompts,
            prompted=prompted,
        )[0]

    def view(self, patches: Patches) -> FloatArray:
        """See `Engine`."""
        return self._run("view", patches=patches.features)[0]

    def write(self, features: FloatArray) -> IntArray:
        """See `Engine`."""
        return self._write(features)

    def _run(self, stage: str, **inputs: NDArray[np.generic]) -> Sequence[FloatArray]:
        def run(arrays: Sequence[NDArray[np.generic]]) -> Sequence[FloatArray]:
            return self._run_graph(stage, dict(zip(inputs, arrays, strict=True)))

        return run_in_parts(self._calls, run, stage, list(inputs.values()), most=self._most)
