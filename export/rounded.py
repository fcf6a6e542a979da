"""Evaluates float16 graphs as a GPU does: every operator's result is rounded to float16 before its next use.

ONNX Runtime has few float16 operators on a CPU. It computes in float32 and rounds only at casts, so its differences are
smaller than those of a GPU. The reference evaluator of ONNX uses the types as they are, sums a matrix multiplication in
float32 and rounds the sum; it is slow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from models.checkpoint.weights import load_generator
from models.engines import FloatArray
from models.engines.graph_engine import GraphEngine, Inputs
from models.engines.proof import graphs_of, require_graphs, stages_of
from models.engines.torch_engine import write_sentences


def open_rounded(directory: Path) -> GraphEngine:
    """Open the float16 graphs of a model directory; sentences come from the float32 generator."""
    network = load_generator(directory)
    stages = stages_of(network.sizes)
    require_graphs(directory, "float16", stages=stages)
    paths = graphs_of(directory, "float16", stages=stages)
    graphs = {stage: ReferenceEvaluator(str(path)) for stage, path in paths.items()}

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        # A masked place is the lowest float16 number; adding its score overflows to minus infinity.
        with np.errstate(over="ignore"):
            return list(graphs[stage].run(None, dict(inputs)))

    generator = network.generator
    return GraphEngine(
        "rounded-float16",
        run=run,
        write=partial(write_sentences, partial(generator.write, max_length=generator.sizes.max_length)),
    )
