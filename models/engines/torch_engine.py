"""The network in PyTorch on the CPU: the reference that every other engine is compared with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint.weights import load_network
from models.engines import FloatArray, IntArray, Patches, Regions

_SMALL = 50_000_000
"""Networks with fewer parameters than this are faster with one thread."""


class TorchEngine:
    """All functions in PyTorch, float32. One call at a time, because each uses all threads."""

    def __init__(self, directory: Path, *, threads: int = 0) -> None:
        """Load a model directory without checks; `engines.open_engine` verifies the hashes first."""
        self._network = load_network(directory)
        use_threads(threads, self._network)
        self._lock = Lock()

    @property
    def name(self) -> str:
        """See `Engine`."""
        return "torch"

    def encode_image(self, pixels: FloatArray) -> Patches:
        """See `Engine`."""
        features, positions, cls = self._run(self._network.encode_image, pixels)
        return Patches(features=features, positions=positions, cls=cls)

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """See `Engine`."""
        return self._run(self._network.encode_prompts, tokens)[0]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """See `Engine`."""
        found = self._run(self._network.find, patches.features, patches.positions, patches.cls, prompts)
        boxes, scores, aggregated_scores, features = found
        return Regions(boxes=boxes, scores=scores, aggregated_scores=aggregated_scores, features=features)

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """See `Engine`."""
        film = (patches.features, patches.positions, patches.cls)
        return self._run(self._network.describe, *film, boxes, prompts, prompted)[0]

    def view(self, patches: Patches) -> FloatArray:
        """See `Engine`."""
        return self._run(self._network.view, patches.features)[0]

    def write(self, features: FloatArray) -> IntArray:
        """See `Engine`."""
        with self._lock:
            return write_sentences(self._network.write, features)

    def run_stage(self, stage: str, inputs: Mapping[str, np.ndarray]) -> tuple[FloatArray, ...]:
        """Run a stage as its exported graph does: inputs by name, in the order of the stage's parameters."""
        return self._run(getattr(self._network, stage), *inputs.values())

    def _run(self, function: Callable[..., Tensor | tuple[Tensor, ...]], *arrays: np.ndarray) -> tuple[FloatArray, ...]:
        with self._lock, torch.inference_mode():
            outputs = function(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return tuple(output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,)))


def use_threads(threads: int, network: nn.Module) -> int:
    """Set PyTorch's number of threads in this process and return it; 0: all cores that the process may use.

    A small network gets one thread: several would wait for each other longer than they compute. Measured for the 8
    million parameters of the shipped model, with other work on the same two cores: 0.15 s per film with one thread, 3 s
    with two.
    """
    if not threads:
        is_small = sum(parameter.numel() for parameter in network.parameters()) < _SMALL
        threads = 1 if is_small else len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads


def write_sentences(write: Callable[[Tensor], Tensor], features: FloatArray) -> IntArray:
    """Generate token ids [sentence, token] for features [sentence, dim]."""
    with torch.inference_mode():
        ids: IntArray = write(torch.from_numpy(np.ascontiguousarray(features))).numpy()
    return ids
