"""What TensorRT refuses to build or load is told with its own reason, with a strict stand-in for TensorRT."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from export.to_onnx import load_graph
from models.engines import EngineUnavailable
from models.engines.proof import graph_path
from models.errors import ModelError
from tests.support.fake_tensorrt import Machine
from tests.support.tensorrt_engines import built as built
from tests.support.tensorrt_engines import engine as engine
from tests.support.tensorrt_engines import folder as folder
from tests.support.tensorrt_engines import machine as machine
from tests.support.tensorrt_engines import reference as reference
from tests.support.tensorrt_engines import sizes as sizes


def test_a_failed_build_tells_only_its_own_errors(half_model: Path, tmp_path: Path, machine: Machine) -> None:
    from models.engines.tensorrt_build import TensorRtCompiler

    compiler = TensorRtCompiler(machine.gpu)
    graph = graph_path(half_model, "find", "float16").read_bytes()
    messages = []
    for error in ("first error", "second error"):
        machine.refused = {b"aggregated_scores": error}
        with pytest.raises(EngineUnavailable) as refused:
            compiler.build(graph, timings=b"")
        messages.append(str(refused.value))
        machine.unloadable = 1
        with pytest.raises(EngineUnavailable):
            compiler.load(bytes(8))

    assert messages == [f"TensorRT could not build the engine: {error}" for error in ("first error", "second error")]


def test_a_graph_with_an_unnamed_axis_is_refused_by_name(half_model: Path, machine: Machine) -> None:
    from models.engines.tensorrt_build import TensorRtCompiler

    model = onnx.load(graph_path(half_model, "find", "float16"))
    next(value for value in model.graph.input if value.name == "prompts").type.tensor_type.shape.dim[1].Clear()

    with pytest.raises(EngineUnavailable, match="axis 1 of input prompts has no range") as refused:
        TensorRtCompiler(machine.gpu).build(model.SerializeToString(), timings=b"")
    assert refused.value.reason == "not_built"


def test_what_is_no_graph_is_refused(machine: Machine) -> None:
    from models.engines.tensorrt_build import TensorRtCompiler

    with pytest.raises(EngineUnavailable, match=r"cannot parse the graph: .*MODEL_DESERIALIZE_FAILED"):
        TensorRtCompiler(machine.gpu).build(b"a graph", timings=b"")


def test_a_graph_with_other_types_is_not_opened(half_model: Path, tmp_path: Path, machine: Machine) -> None:
    from models.engines.tensorrt_build import TensorRtCompiler
    from models.engines.tensorrt_engine import Graph, SharedMemory

    model = load_graph(graph_path(half_model, "find"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    node = next(node for node in model.graph.node if "boxes" in node.output)
    node.output[list(node.output).index("boxes")] = "single"
    model.graph.node.append(onnx.helper.make_node("Cast", ["single"], ["boxes"], to=TensorProto.DOUBLE))
    compiler = TensorRtCompiler(machine.gpu)
    loaded = compiler.load(compiler.build(model.SerializeToString(), timings=b"")[0])

    with pytest.raises(ModelError, match=r"boxes as DataType\.DOUBLE"):
        Graph(loaded, machine.gpu, SharedMemory(machine.gpu))
