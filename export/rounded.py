"""Float16 graphs as a GPU computes them: every operator's result is rounded to float16 before the next one reads it.

ONNX Runtime has few float16 operators on a CPU. It computes them in float32 and rounds where a cast to float32 stands,
so its differences are smaller than those of a GPU. The reference evaluator of ONNX takes types as they are, sums a
multiplication of matrices in float32 and rounds the sum, and is slow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from models.checkpoint import load_network
from models.engines import FloatArray
from models.engines.graph_engine import GraphEngine, Inputs
from models.engines.proof import STAGES, graph_path, require_graphs
from models.engines.torch_engine import write_sentences


def open_rounded(directory: Path) -> GraphEngine:
    """Open the float16 graphs of a model directory; sentences are those of the float32 generator."""
    require_graphs(directory, "float16")
    graphs = {stage: ReferenceEvaluator(str(graph_path(directory, stage, "float16"))) for stage in STAGES}

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        # A hidden place is as far below zero as float16 goes, and adding its score goes beyond, to minus infinity.
        with np.errstate(over="ignore"):
            return list(graphs[stage].run(None, dict(inputs)))

    generator = load_network(directory).generator
    return GraphEngine(
        "rounded-float16",
        run=run,
        write=partial(write_sentences, partial(generator.write, max_length=generator.sizes.max_length)),
    )
