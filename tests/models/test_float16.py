"""Float16 graphs: what is rounded and what is not, how far readings move, and that only proven ones are opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from export import build, parity
from export.float16 import FLOAT16 as HALF
from export.float16 import FLOAT32, to_float16
from export.rounded import MatMul
from models.engines import EngineUnavailable
from models.engines.comparison import FILMS, FLOAT16
from models.engines.opening import open_engine
from models.engines.proof import FLOAT16_STAGES, PROOF, graph_path, read_proof
from models.errors import ModelError

pytestmark = pytest.mark.drill(part="runtimes")


def element_types(model: ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}


def one_node(kind: str, *weights: TensorProto) -> ModelProto:
    """A graph of one operator on a float32 input and some weights, as if traced in an attention."""
    node = helper.make_node(kind, ["x", *(weight.name for weight in weights)], ["y"])
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'network.attention', 'one']")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy"]
    graph = helper.make_graph([node], "one", values[:1], values[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_readings_of_64_films_stay_within_the_tolerance(half_model: Path) -> None:
    proof = read_proof(half_model)

    assert proof is not None and proof.float16 is not None
    assert proof.float16.passed
    assert (FILMS, FLOAT16.boxes, FLOAT16.scores) == (64, 2e-3, 5e-3)
    assert 0 < proof.float16.stages["find.boxes"].max_abs <= proof.float16.stages["find.boxes"].tolerance == 2e-3
    assert 0 < proof.float16.stages["find.scores"].max_abs <= proof.float16.stages["find.scores"].tolerance == 5e-3


@pytest.mark.parametrize("engine", ["rounded-float16", "summed-float16"])
def test_readings_stay_within_it_when_every_operator_is_rounded(
    half_model: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two films here, for the evaluator is slow; `make float16` reads 64.
    status = parity.main(["--model", str(half_model), "onnx", engine, "--films", "2", "--json"])
    stages = json.loads(capsys.readouterr().out)["stages"]

    assert status == 0
    proof = read_proof(half_model)
    assert proof is not None and proof.float16 is not None
    assert stages["find.features"]["max_abs"] > proof.float16.stages["find.features"].max_abs / 2, "nothing was rounded"


def test_the_sums_of_an_attention_are_rounded_on_demand() -> None:
    shapes = {"x": [1, 1, 1, 12], "y": [1, 1, 12, 1], "z": [1, 1, 1, 1]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name, shape in shapes.items()}
    node = helper.make_node("MatMul", ["x", "y"], ["z"])
    graph = helper.make_graph([node], "product", [values["x"], values["y"]], [values["z"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    factors = np.zeros((1, 1, 1, 12), np.float16)
    factors[..., [0, 4, 8]] = 2048, 1, 1  # float16 has no 2049
    given = {"x": factors, "y": np.ones((1, 1, 12, 1), np.float16)}

    operators: list[list[type[OpRun]]] = [[], [MatMul]]
    (exact,), (summed,) = (ReferenceEvaluator(model, new_ops=each).run(None, given) for each in operators)

    assert (np.asarray(exact).item(), np.asarray(summed).item()) == (2050, 2048)


@pytest.mark.parametrize("stage", FLOAT16_STAGES)
def test_what_parity_needs_stays_float32(half_model: Path, stage: str) -> None:
    model = onnx.load(graph_path(half_model, stage, "float16"))
    kinds = element_types(model)
    kept = ("LayerNormalization", "Softmax", "Exp", "Pow", "ReduceMax", "ReduceSum", "Clip", "Sigmoid")

    assert [n.name for n in model.graph.node if n.op_type in kept and kinds[n.output[0]] != FLOAT32] == []


def multiplied(path: Path) -> list[int]:
    """The element types of the products of a graph."""
    model = onnx.load(path)
    kinds = element_types(model)
    return [kinds[node.output[0]] for node in model.graph.node if node.op_type in ("MatMul", "Conv")]


@pytest.mark.parametrize("stage", FLOAT16_STAGES)
def test_what_takes_the_time_is_float16(imported_half_model: Path, stage: str) -> None:
    products = multiplied(graph_path(imported_half_model, stage, "float16"))
    # The post decoder's attention to the film, soft boxes, and the heads of boxes and scores are float32.
    least = {"encode_image": 0.95, "find": 0.7, "describe": 0.7}[stage]

    assert products.count(HALF) > least * len(products)


def test_an_error_in_one_weight_is_caught(
    imported_half_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(imported_half_model, tmp_path / "model"))
    path = graph_path(folder, "find", "float16")
    model = onnx.load(path)
    weight = next(
        initializer
        for initializer in model.graph.initializer
        if initializer.data_type == HALF and len(initializer.dims) == 2
    )
    values = numpy_helper.to_array(weight).copy()
    values[3, 4] += 0.5
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, path)

    assert parity.main(["--model", str(folder), "onnx", "onnx-float16", "--films", "2", "--json"]) == 1
    stages = json.loads(capsys.readouterr().out)["stages"]
    differing = {name.partition(".")[0] for name, stage in stages.items() if stage["max_abs"] > stage["tolerance"]}
    assert differing - {"probability"} == {"find"}


def test_a_second_build_leaves_proven_graphs_alone(half_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (half_model / PROOF).read_bytes()
    capsys.readouterr()

    assert build.main(["--model", str(half_model), "--target", "tensorrt", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"stages", "passed", "files", "float16"}
    assert set(found["float16"]) == {"stages", "passed", "files", "remark"}
    assert (half_model / PROOF).read_bytes() == before


def test_a_changed_float16_graph_is_refused_and_others_open(half_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(half_model, tmp_path / "model"))
    shutil.copy(graph_path(folder, "describe", "float16"), graph_path(folder, "find", "float16"))

    with pytest.raises(EngineUnavailable, match=r"other graphs; .* --target tensorrt") as refused:
        open_engine(folder, engine="tensorrt", engines=tmp_path / "engines")
    assert refused.value.reason == "no_graphs"
    assert open_engine(folder, engine="onnx").name == "onnx"


def test_a_weight_beyond_float16_is_refused() -> None:
    large = numpy_helper.from_array(np.array([[1, 70000], [0, 0]], np.float32), "large")

    with pytest.raises(ModelError, match="weight large holds a number that float16 cannot represent"):
        to_float16(one_node("Add", large))


def test_a_single_number_beyond_float16_is_a_mask_and_saturates() -> None:
    mask = numpy_helper.from_array(np.array(-3.4e38, np.float32), "mask")

    (weight,) = to_float16(one_node("Add", mask)).graph.initializer

    assert numpy_helper.to_array(weight) == np.finfo(np.float16).min
