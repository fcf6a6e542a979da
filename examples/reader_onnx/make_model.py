"""Write a model for the reader of this folder: python examples/reader_onnx/make_model.py DIRECTORY [VERSION].

It is no trained network: it compares the gray of the parts of a film with fixed weights, so equal films give equal
answers on every machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FINDINGS = {"pleural_effusion": 0.5, "cardiomegaly": 0.6, "lung_opacity": 0.4}
"""The keys of the prompts that the network knows, and the probability from which each is reported."""
SIDE = 32


def make(directory: Path, *, version: str = "1") -> None:
    """Write `classifier.onnx` and `model.toml`."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(_network(), directory / "classifier.onnx")
    thresholds = "".join(f"{key} = {threshold}\n" for key, threshold in FINDINGS.items())
    head = f'name = "example-classifier"\nversion = "{version}"\nside = {SIDE}\nmeasured = []\n'
    (directory / "model.toml").write_text(f"{head}\n[thresholds]\n{thresholds}", encoding="utf-8")


def _network() -> onnx.ModelProto:
    """Return a graph from a film [1, 1, SIDE, SIDE] to a probability of each finding [1, finding]."""
    rows, columns = np.mgrid[0:4, 0:4].reshape(2, 16)
    weights = np.stack([rows >= 3, (columns > 0) & (columns < 3) & (rows > 1), rows == 1], axis=1).astype(np.float32)
    weights -= weights.mean(axis=0)
    graph = helper.make_graph(
        [
            helper.make_node("AveragePool", ["film"], ["parts"], kernel_shape=[8, 8], strides=[8, 8]),
            helper.make_node("Flatten", ["parts"], ["gray"]),
            helper.make_node("Gemm", ["gray", "weights", "bias"], ["logits"]),
            helper.make_node("Sigmoid", ["logits"], ["probabilities"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("film", TensorProto.FLOAT, [1, 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, len(FINDINGS)])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.zeros(len(FINDINGS), dtype=np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    make(Path(sys.argv[1]), version=sys.argv[2] if len(sys.argv) > 2 else "1")
