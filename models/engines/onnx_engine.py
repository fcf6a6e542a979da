"""Exported graphs in ONNX Runtime, on the CPU; only the sentence generator stays in PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
import onnxruntime

from models.checkpoint import load_network
from models.engines import FloatArray, IntArray, Patches, Regions
from models.engines.proof import STAGES, graph_path, require_graphs
from models.engines.torch_engine import use_threads, write_sentences
from models.errors import ModelError


class OnnxEngine:
    """Four functions as graphs, the generator in PyTorch, float32. One call at a time: each uses all its threads."""

    def __init__(self, directory: Path, *, threads: int = 0) -> None:
        """Load a model directory as it stands; `engines.open_engine` asks for hashes and proof first."""
        require_graphs(directory)
        network = load_network(directory)
        threads = use_threads(threads, network)
        generator = network.generator
        self._write = partial(generator.write, max_length=generator.sizes.max_length)
        self._sessions = {stage: _open(graph_path(directory, stage), threads=threads) for stage in STAGES}
        self._lock = Lock()

    @property
    def name(self) -> str:
        """As in `Engine`."""
        return "onnx"

    def encode_image(self, pixels: FloatArray) -> Patches:
        """As in `Engine`."""
        features, positions, cls = self._run("encode_image", pixels=pixels)
        return Patches(features=features, positions=positions, cls=cls)

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """As in `Engine`."""
        return self._run("encode_prompts", tokens=tokens)[0]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """As in `Engine`."""
        found = self._run(
            "find", patches=patches.features, positions=patches.positions, cls=patches.cls, prompts=prompts
        )
        boxes, scores, aggregated_scores, features = found
        return Regions(boxes=boxes, scores=scores, aggregated_scores=aggregated_scores, features=features)

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """As in `Engine`."""
        return self._run(
            "describe",
            patches=patches.features,
            positions=patches.positions,
            cls=patches.cls,
            boxes=boxes,
            prompts=prompts,
            prompted=prompted,
        )[0]

    def write(self, features: FloatArray) -> IntArray:
        """As in `Engine`."""
        with self._lock:
            return write_sentences(self._write, features)

    def _run(self, stage: str, **inputs: np.ndarray) -> list[FloatArray]:
        with self._lock:
            outputs: list[FloatArray] = self._sessions[stage].run(None, inputs)
        return outputs


def _open(path: Path, *, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A pool that spins between two calls takes the cores from PyTorch's generator, which runs in turn with it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors have no public base
        raise ModelError(f"{path} cannot be opened ({type(error).__name__}); export it again") from error
