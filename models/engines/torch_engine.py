"""The network in PyTorch, on the CPU: the reference that every other engine is measured against."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint import load_network
from models.engines import FloatArray, IntArray, Patches, Regions

_SMALL = 50_000_000
"""Parameters below which more threads cost more than they bring."""


class TorchEngine:
    """All five functions in PyTorch, float32. One call at a time: each uses all its threads."""

    def __init__(self, directory: Path, *, threads: int = 0) -> None:
        """Load a model directory as it stands; `engines.open_engine` asks for hashes first."""
        self._network = load_network(directory)
        use_threads(threads, self._network)
        self._lock = Lock()

    @property
    def name(self) -> str:
        """As in `Engine`."""
        return "torch"

    def encode_image(self, pixels: FloatArray) -> Patches:
        """As in `Engine`."""
        features, positions, cls = self._run(self._network.encode_image, pixels)
        return Patches(features=features, positions=positions, cls=cls)

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """As in `Engine`."""
        return self._run(self._network.encode_prompts, tokens)[0]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """As in `Engine`."""
        found = self._run(self._network.find, patches.features, patches.positions, patches.cls, prompts)
        boxes, scores, aggregated_scores, features = found
        return Regions(boxes=boxes, scores=scores, aggregated_scores=aggregated_scores, features=features)

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """As in `Engine`."""
        film = (patches.features, patches.positions, patches.cls)
        return self._run(self._network.describe, *film, boxes, prompts, prompted)[0]

    def write(self, features: FloatArray) -> IntArray:
        """As in `Engine`."""
        with self._lock:
            return write_sentences(self._network.write, features)

    def _run(self, function: Callable[..., Tensor | tuple[Tensor, ...]], *arrays: np.ndarray) -> tuple[FloatArray, ...]:
        with self._lock, torch.inference_mode():
            outputs = function(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return tuple(output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,)))


def use_threads(threads: int, network: nn.Module) -> int:
    """Let PyTorch use so many threads in this process, and say how many; 0: all cores the process may use.

    A small network gets one of them: it waits for its threads longer than it computes. Measured for the 8 million
    parameters of the shipped one, with other work on the same two cores: 0.15 s a film with one thread, 3 s with two.
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
