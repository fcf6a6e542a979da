"""Evaluates float16 graphs as a GPU does: every operator's result is rounded to float16 before its next use.

ONNX Runtime has few float16 operators on a CPU. It computes in float32 and rounds only at casts, so its differences are
smaller than those of a GPU. The reference evaluator of ONNX uses the types as they are, sums a matrix multiplication in
float32 and rounds the sum; it is slow.

A fused attention may keep its sums in float16 as well (TensorRT 11.3 release notes). Tensor cores add the products of
at least four pairs exactly before they round, so here every fourth partial sum of an attention is rounded on demand.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from export.to_onnx import load_graph
from models.checkpoint.weights import load_generator
from models.engines import FloatArray
from models.engines.proof import graphs_of, require_graphs, stages_of
from models.engines.staged_engine import Inputs, StagedEngine
from models.engines.torch_engine import write_sentences

_EXACT: Final = 4
_AXES: Final = 4
"""Queries, keys and values are [film, head, token, width of a head]; no other product has two factors of four axes."""


class MatMul(OpRun):
    """A matrix multiplication that keeps the sums of an attention in float16; the evaluator finds it by its name."""

    op_domain = ""

    def _run(self, a: NDArray[np.generic], b: NDArray[np.generic]) -> tuple[NDArray[np.generic]]:
        if a.dtype != np.float16 or not a.ndim == b.ndim == _AXES:
            return (np.matmul(a, b),)
        left, right = a.astype(np.float32), b.astype(np.float32)
        total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float16)
        for start in range(0, a.shape[-1], _EXACT):
            end = start + _EXACT
            total = (total + left[..., start:end] @ right[..., start:end, :]).astype(np.float16)
        return (total,)


def open_rounded(directory: Path, *, half_sums: bool = False) -> StagedEngine:
    """Open the float16 graphs of a model directory; sentences come from the float32 generator.

    half_sums: keep the sums of an attention in float16
    """
    network = load_generator(directory)
    stages = stages_of(network.sizes)
    require_graphs(directory, "float16", stages=stages)
    operators: list[type[OpRun]] = [MatMul] if half_sums else []
    graphs = {
        stage: ReferenceEvaluator(load_graph(path), new_ops=operators)
        for stage, path in graphs_of(directory, "float16", stages=stages).items()
    }

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        # A masked place is the lowest float16 number; adding its score overflows to minus infinity.
        with np.errstate(over="ignore"):
            return list(graphs[stage].run(None, dict(inputs)))

    generator = network.generator
    return StagedEngine(
        "rounded-float16",
        run=run,
        write=partial(write_sentences, partial(generator.write, max_length=generator.sizes.max_length)),
    )
