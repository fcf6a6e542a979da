"""The network in PyTorch, on the CPU: the reference that every other engine is measured against."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from models.checkpoint import load_network
from models.engines import FloatArray, IntArray, Patches, Regions


class TorchEngine:
    """All five functions in PyTorch, float32. One call at a time: each uses all its threads."""

    def __init__(self, directory: Path, *, threads: int = 0) -> None:
        """Load a model directory as it stands; `engines.open_engine` asks for hashes first."""
        use_threads(threads)
        self._network = load_network(directory)
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


def use_threads(threads: int) -> None:
    """Let PyTorch use so many threads in this process; 0 means all cores that the process may use."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def write_sentences(write: Callable[[Tensor], Tensor], features: FloatArray) -> IntArray:
    """Generate token ids [sentence, token] for features [sentence, dim]."""
    with torch.inference_mode():
        ids: IntArray = write(torch.from_numpy(np.ascontiguousarray(features))).numpy()
    return ids
