"""NVIDIA's own parser and builder take the float16 graphs, fuse their attention, and refuse by name what is wrong.

It is the builder of TensorRT-RTX (extra test), for TensorRT's own needs a GPU. Nothing runs on a GPU. And what the
program calls by name stands in the bindings of both.
"""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

from export.to_onnx import load_graph
from models.engines.proof import FLOAT16_STAGES, graph_path
from tests.support.peers import missing

pytestmark = pytest.mark.drill(part="runtimes")

SECONDS = 30
ON_OBJECTS = (
    "create_execution_context create_network create_builder_config create_optimization_profile "
    "build_serialized_network clear_flag add_optimization_profile "
    "set_shape num_inputs get_input get_dimension_name parse num_errors get_error log "
    "deserialize_cuda_engine num_io_tensors get_tensor_name get_tensor_mode get_tensor_dtype set_input_shape "
    "get_tensor_shape set_tensor_address execute_async_v3"
).split()
"""What the program calls and reads of TensorRT's objects."""

Built = dict[str, dict[str, object]]


def build(repository: Path, *paths: Path) -> Built:
    if find_spec("tensorrt_rtx_bindings") is None or find_spec("tensorrt_rtx_libs") is None:
        missing("needs tensorrt-rtx-cu13-bindings and tensorrt-rtx-cu13-libs (extra test)")
    command = [sys.executable, "-m", "tests.drills.rtx_build", *map(str, paths)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    built: Built = json.loads(done.stdout)
    return built


@pytest.fixture(scope="module")
def graphs(half_model: Path, imported_half_model: Path) -> dict[str, Path]:
    """The float16 graph of each stage; the image encoder is that of the published form, for the other's is float32."""
    found = {stage: graph_path(half_model, stage, "float16") for stage in FLOAT16_STAGES}
    return found | {"encode_image": graph_path(imported_half_model, "encode_image", "float16")}


@pytest.fixture(scope="module")
def built(
    graphs: dict[str, Path], half_model: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    whole = graph_path(half_model, "encode_image")
    in_one_file = tmp_path_factory.mktemp("float32") / whole.name  # as the builder reads it
    onnx.save(load_graph(whole), in_one_file)
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = build(repository, *graphs.values(), in_one_file)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor, so that other work on it does not count.
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < SECONDS
    return found


@pytest.mark.parametrize("module", ["tensorrt_bindings/tensorrt.so", "tensorrt_rtx_bindings/tensorrt_rtx.so"])
def test_every_name_that_is_used_stands_in_the_bindings(module: str, repository: Path) -> None:
    package, _, library = module.partition("/")
    found = find_spec(package)
    if found is None or found.origin is None:
        missing(f"needs {package} (extra test)")
    text = (repository / "models" / "engines" / "tensorrt_engine.py").read_text(encoding="utf-8")
    of_module = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and (chain := ast.unparse(node)).startswith("trt.")
        for name in chain.split(".")[1:]
    } - {"__version__", "__init__"}
    content = Path(found.origin).with_name(library).read_bytes()

    assert {"Runtime", "INPUT", "TF32"} <= of_module
    assert [name for name in ON_OBJECTS if f".{name}" not in text and f"def {name}(" not in text] == []
    assert sorted(name for name in {*of_module, *ON_OBJECTS} if name.encode() + b"\0" not in content) == []


def attentions(path: Path) -> int:
    return sum(node.op_type == "Softmax" for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("stage", FLOAT16_STAGES)
def test_nvidias_builder_takes_every_float16_graph_and_fuses_its_attentions(
    built: Built, graphs: dict[str, Path], stage: str
) -> None:
    path = graphs[stage]
    # The post decoder's attention to the film is float32. A box's own attention in `describe` has one token, so its
    # softmax is 1 and the builder removes it.
    others = {"find": 1, "describe": 2}.get(stage, 0)

    assert "error" not in built[path.name]
    assert int(str(built[path.name]["bytes"])) > path.stat().st_size
    assert built[path.name]["fused"] == attentions(path) - others > 0
    assert built["encode_image.onnx"]["fused"] == 0, "in float32 none is, so the count counts what it should"


def with_unknown_operator(model: ModelProto) -> None:
    last = next(node for node in model.graph.node if "aggregated_scores" in node.output)
    last.output[0] = "before"
    model.graph.node.append(helper.make_node("Bernoulli", ["before"], ["aggregated_scores"], name="planted"))


def with_unnamed_axis(model: ModelProto) -> None:
    next(value for value in model.graph.input if value.name == "prompts").type.tensor_type.shape.dim[1].Clear()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (with_unknown_operator, ("planted", "Bernoulli", "UNSUPPORTED_NODE")),
        (with_unnamed_axis, ("axis 1 of input prompts",)),
    ],
)
def test_a_graph_that_does_not_do_is_refused_by_name(
    half_model: Path,
    repository: Path,
    tmp_path: Path,
    change: Callable[[ModelProto], None],
    names: tuple[str, ...],
) -> None:
    path = tmp_path / "find.float16.onnx"
    model = onnx.load(graph_path(half_model, "find", "float16"))
    change(model)
    onnx.save(model, path)

    refused = build(repository, path)[path.name]

    assert refused["reason"] == "not_built"
    assert [name for name in names if name not in str(refused["error"])] == []
