"""Makes TensorRT's inputs: a float16 graph for each float32 one, with supported operators only.

The engines are built on the machine that runs them, by `models.engines.tensorrt_build`, which the node needs at its
first start and therefore cannot be in this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from export.float16 import to_float16
from export.operators import check_operators, read_operators
from models.engines.proof import STAGES, graph_path


def write_float16(directory: Path) -> Iterator[str]:
    """Write the four float16 graphs beside the exported ones, and yield the name of each when it is there.

    Raises ModelError with the name of a graph that TensorRT does not take.
    """
    operators = read_operators()
    for stage in STAGES:
        path = graph_path(directory, stage, "float16")
        model = to_float16(onnx.load(graph_path(directory, stage)))
        onnx.checker.check_model(model, full_check=True)
        check_operators(model, name=path.name, operators=operators)
        onnx.save(model, path)
        yield stage
