"""A graph that TensorRT does not take fails the build, with its name and what is against it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from export.operators import Operators, check_operators, read_operators
from export.to_tensorrt import write_float16
from models.engines.proof import STAGES, graph_path
from models.errors import ModelError

SHAPE = [2, 3, 3]


@pytest.fixture(scope="module")
def operators() -> Operators:
    return read_operators()


def graph_of(
    *nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, opset: int = 18, weights: tuple[TensorProto, ...] = ()
) -> ModelProto:
    """A graph from x to y."""
    graph = helper.make_graph(
        list(nodes),
        "planted",
        [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_empty_tensor_value_info("y")],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("stage", STAGES)
def test_the_exported_graphs_are_taken(phantom_model: Path, stage: str, operators: Operators) -> None:
    graph = onnx.load(graph_path(phantom_model, stage))

    check_operators(graph, name=stage, operators=operators)
    with pytest.raises(
        ModelError, match=f"does not support the graph {stage}"
    ):  # so the check saw this graph's operators
        check_operators(graph, name=stage, operators=replace(operators, types={}))


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (graph_of(helper.make_node("Det", ["x"], ["y"])), "operator Det is not supported"),
        (
            graph_of(helper.make_node("Add", ["x", "x"], ["y"]), kind=TensorProto.DOUBLE),
            "operator Add is not supported on double",
        ),
        (
            graph_of(helper.make_node("Concat", ["x", "x", "x"], ["y"], axis=0), kind=TensorProto.UINT8),
            "operator Concat is not supported on uint8",
        ),
        (
            graph_of(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT16)),
            "operator Cast is not supported on int16",
        ),
        (graph_of(helper.make_node("Abs", ["x"], ["y"]), opset=25), "opset 25, of 9 to 24"),
        (graph_of(helper.make_node("Abs", ["x"], ["y"]), opset=8), "opset 8, of 9 to 24"),
        (
            graph_of(helper.make_node("Shape", ["x"], ["s"]), helper.make_node("ReduceMax", ["x", "s"], ["y"])),
            "operator ReduceMax needs its input 1 to be a constant",
        ),
        (
            graph_of(
                helper.make_node("LayerNormalization", ["x", "w"], ["y", "mean"]),
                weights=(numpy_helper.from_array(np.ones(3, np.float32), "w"),),
            ),
            "operator LayerNormalization is not supported with 2 outputs",
        ),
    ],
)
def test_what_is_not_taken_is_named_with_its_graph(model: ModelProto, complaint: str, operators: Operators) -> None:
    with pytest.raises(ModelError) as refused:
        check_operators(model, name="find.float16.onnx", operators=operators)

    assert f"does not support the graph find.float16.onnx: {complaint}; see" in str(refused.value)


def test_an_operator_of_somebody_else_is_named_with_its_domain(operators: Operators) -> None:
    model = graph_of(helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    with pytest.raises(ModelError, match=r"operator com\.microsoft\.FusedMatMul is not supported"):
        check_operators(model, name="find", operators=operators)


def test_conditions_and_indices_of_other_types_are_no_complaint(operators: Operators) -> None:
    places = numpy_helper.from_array(np.array([0, 1]), "places")
    nodes = [
        helper.make_node("Gather", ["x", "places"], ["picked"]),
        helper.make_node("Greater", ["picked", "picked"], ["larger"]),
        helper.make_node("Where", ["larger", "picked", "picked"], ["y"]),
    ]

    graph = graph_of(*nodes, weights=(places,))

    check_operators(graph, name="good", operators=operators)
    for node in nodes:
        fewer = {kind: types for kind, types in operators.types.items() if kind != node.op_type}
        with pytest.raises(ModelError, match=f"operator {node.op_type} is not supported"):
            check_operators(graph, name="good", operators=replace(operators, types=fewer))


def test_a_planted_operator_fails_the_build(phantom_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    path = graph_path(folder, "find")
    model = onnx.load(path)
    last = next(node for node in model.graph.node if "aggregated_scores" in node.output)
    last.output[0] = "planted"
    model.graph.node.append(helper.make_node("Bernoulli", ["planted"], ["aggregated_scores"]))
    onnx.save(model, path)

    written = write_float16(folder)

    assert [next(written), next(written)] == ["encode_image", "encode_prompts"]
    with pytest.raises(ModelError, match=r"the graph find\.float16\.onnx: operator Bernoulli is not supported"):
        next(written)
    assert not graph_path(folder, "find", "float16").exists()
