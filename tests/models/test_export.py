"""The exported graphs compute what the weights compute, also in float16, and no error in a weight stays hidden."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from export import build, float16, graphs, parity
from export.float16 import FLOAT16 as HALF
from export.float16 import FLOAT32, to_float16
from export.to_onnx import load_graph
from models.checkpoint.files import file_sha256
from models.contract import StageDifference
from models.engines import EngineUnavailable
from models.engines.comparison import FILMS, FLOAT16
from models.engines.opening import open_engine
from models.engines.proof import (
    FLOAT16_STAGES,
    PROOF,
    STAGES,
    VIEW,
    Precision,
    graph_path,
    hash_graphs,
    read_proof,
    weights_path,
    write_proof,
)
from models.errors import ModelError
from models.manifest import read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES
from tests.support.scripted_engine import ScriptedEngine, reader_of

RUNTIMES = pytest.mark.drill(part="runtimes")
THIRD = {"third": [1 / 3] * 3, "unused": [1.0] * 3}
INNER, BETWEEN = "network.image_encoder.layers.0.attention.query", "network.image_encoder.layers.0"


def _plant(graph: Path, *, seed: int, amount: float) -> str:
    """Add to one number of one weight matrix of a graph; returns the matrix's name."""
    random = np.random.default_rng(seed)
    model = load_graph(graph)
    # One row of an embedding counts only for its own token, so it is no fair hiding place.
    weights = [w for w in model.graph.initializer if len(w.dims) == 2 and min(w.dims) >= 64 and max(w.dims) < 1000]
    chosen = weights[random.integers(len(weights))]
    values = numpy_helper.to_array(chosen).copy()
    values[tuple(random.integers(size) for size in values.shape)] += amount
    chosen.CopyFrom(numpy_helper.from_array(values, chosen.name))
    onnx.save(model, graph)
    return str(chosen.name)


def test_a_graph_is_read_with_the_weights_beside_it(phantom_model: Path, tmp_path: Path) -> None:
    """Also where the file of the weights has two names; one that is damaged is named."""
    own, linked = (graph_path(Path(shutil.copytree(phantom_model, tmp_path / name)), "find") for name in ("a", "b"))
    (tmp_path / "another name").hardlink_to(weights_path(linked))

    assert load_graph(linked) == onnx.load(own)
    assert linked.stat().st_size < weights_path(linked).stat().st_size
    os.truncate(weights_path(own), 9)
    weights_path(linked).unlink()
    for graph, why in ((own, "short"), (linked, "cannot be read")):
        with pytest.raises(ModelError, match=f"find.onnx.data .*{why}.*; export the graphs again"):
            load_graph(graph)


@pytest.mark.parametrize("leaves_weights", [False, True])
def test_graphs_that_contain_their_weights_still_open(
    phantom_model: Path, tmp_path: Path, leaves_weights: bool
) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    for stage in (*STAGES, VIEW):
        path = graph_path(model, stage)
        onnx.save(load_graph(path), path)
        if not leaves_weights:
            weights_path(path).unlink()
    proof = read_proof(model)
    assert proof is not None
    graphs = {name: sha for name, sha in hash_graphs(model).items() if name.endswith(".onnx")}
    write_proof(model, replace(proof, graphs=graphs))

    assert open_engine(model, engine="onnx").name == "onnx"


def test_the_graphs_of_the_shipped_model_pass(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = parity.main(["--model", str(phantom_model), "torch", "onnx", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert (status, result["passed"]) == (0, True)
    assert {name.partition(".")[0] for name in result["stages"]} == {*STAGES, VIEW, "probability"}
    assert result["stages"]["find.boxes"]["tolerance"] == result["stages"]["find.scores"]["tolerance"] == 1e-4
    assert all(stage["max_abs"] < 1e-4 for stage in result["stages"].values())


# A trained network has numbers that change next to nothing, be they a hundredth more or less; here each counts.
@RUNTIMES
@pytest.mark.parametrize(
    ("stage", "precision", "amount"), [*((stage, "float32", 1e-2) for stage in STAGES), ("find", "float16", 0.5)]
)
def test_an_error_in_one_weight_is_caught(
    imported_half_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    precision: Precision,
    amount: float,
) -> None:
    model = Path(shutil.copytree(imported_half_model, tmp_path / "model"))
    planted = _plant(graph_path(model, stage, precision), seed=STAGES.index(stage), amount=amount)
    compared = ["torch", "onnx"] if precision == "float32" else ["onnx", "onnx-float16", "--films", "2"]

    status = parity.main(["--model", str(model), *compared, "--json"])
    stages = json.loads(capsys.readouterr().out)["stages"]

    differing = {name.partition(".")[0] for name, result in stages.items() if result["max_abs"] > result["tolerance"]}
    assert (status, differing - {"probability"}) == (1, {stage}), planted


def test_engines_that_differ_do_not_pass(
    phantom_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    graph = load_graph(graph_path(model, VIEW))
    bias = next(weight for weight in graph.graph.initializer if list(weight.dims) == [6])
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.01), bias.name))
    onnx.save(graph, graph_path(model, VIEW))

    assert parity.main(["--model", str(model), "torch", "onnx"]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "DIFFERS" in line] == [VIEW]


def test_a_build_leaves_proven_graphs_alone(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless other versions proved them."""
    paths = [graph_path(phantom_model, stage) for stage in (*STAGES, VIEW)]
    files = [path for graph in paths for path in (graph, weights_path(graph))]
    written = [path.stat().st_mtime_ns for path in files]

    assert build.main(["--model", str(phantom_model)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert build.main(["--model", str(phantom_model), "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"stages", "passed", "files"}
    assert result["passed"] is True
    assert {name.partition(".")[0] for name in result["stages"]} == {*STAGES, VIEW}
    assert all(stage["max_abs"] <= stage["tolerance"] for stage in result["stages"].values())
    assert result["files"] == {f"onnx/{path.name}": file_sha256(path) for path in files}
    assert [path.stat().st_mtime_ns for path in files] == written
    manifest, versions = read_manifest(phantom_model), graphs._versions()
    assert graphs._standing_proof(phantom_model, manifest, versions) is not None
    assert graphs._standing_proof(phantom_model, manifest, {**versions, "onnx": "0"}) is None


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (build.main, ["--target", "tensorrt,cuda"], "does not do; name onnx or onnx,tensorrt"),
        (build.main, ["--engines", "engines"], "does not do; name onnx or onnx,tensorrt"),
        (build.main, [], "name a model directory"),
        (parity.main, ["torch", "torch"], "name a model directory"),
    ],
)
def test_what_is_no_model_or_no_target_is_exit_2_with_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[list[str]], int],
    options: list[str],
    said: str,
) -> None:
    assert command(["--model", str(tmp_path), *options]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(("passed", "status", "said"), [(True, 0, "are proven"), (False, 1, "DIFFER")])
def test_a_build_fails_while_the_float16_graphs_differ(
    phantom_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, *, passed: bool, status: int
) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    whole = read_proof(model)
    assert whole is not None
    made_of = hashlib.sha256(json.dumps(whole.graphs, sort_keys=True).encode()).hexdigest()
    versions = {"onnx": onnx.__version__, "source": file_sha256(Path(str(float16.__file__))), "graphs": made_of}
    half = replace(whole, graphs=hash_graphs(model, "float16"), versions=versions, passed=passed)
    write_proof(model, replace(whole, float16=half))

    assert build.main(["--model", str(model), "--target", "onnx,tensorrt"]) == status
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_one_finding_whose_probability_differs_is_enough(tmp_path: Path) -> None:
    write_manifest(tmp_path, reader_of(ScriptedEngine([], [])).manifest)
    (tmp_path / "vocab").symlink_to(VOCABULARIES)
    engines = [ScriptedEngine([fracture, 0.5], []) for fracture in (0.3, 0.8)]

    found = parity.compare_probabilities(tmp_path, engines, tolerance=0.4)

    assert (found.max_abs, found.passed) == (pytest.approx(0.5), False)
    endless = parity.document({"find.boxes": StageDifference(max_abs=float("nan"), tolerance=1e-4)})
    assert endless == {"stages": {"find.boxes": {"max_abs": None, "tolerance": 1e-4}}, "passed": False}, (
        "JSON has no NaN"
    )


def element_types(model: ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}


@RUNTIMES
def test_readings_of_64_films_stay_within_the_tolerance_and_are_not_built_again(
    half_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = read_proof(half_model)
    assert proof is not None and proof.float16 is not None
    assert proof.float16.passed
    assert (FILMS, FLOAT16.boxes, FLOAT16.scores) == (64, 2e-3, 5e-3)
    assert 0 < proof.float16.stages["find.boxes"].max_abs <= proof.float16.stages["find.boxes"].tolerance == 2e-3
    assert 0 < proof.float16.stages["find.scores"].max_abs <= proof.float16.stages["find.scores"].tolerance == 5e-3
    files = [half_model / PROOF, *(graph_path(half_model, stage, "float16") for stage in FLOAT16_STAGES)]
    written = [path.stat().st_mtime_ns for path in files]

    assert build.main(["--model", str(half_model), "--target", "tensorrt", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"stages", "passed", "files", "float16"}
    assert set(found["float16"]) == {"stages", "passed", "files", "remark"}
    assert [path.stat().st_mtime_ns for path in files] == written


@RUNTIMES
@pytest.mark.parametrize("stage", FLOAT16_STAGES)
def test_what_parity_needs_stays_float32(half_model: Path, stage: str) -> None:
    model = onnx.load(graph_path(half_model, stage, "float16"))
    kinds = element_types(model)
    kept = ("LayerNormalization", "Softmax", "Exp", "Pow", "ReduceMax", "ReduceSum", "Clip", "Sigmoid")

    assert [n.name for n in model.graph.node if n.op_type in kept and kinds[n.output[0]] != FLOAT32] == []


@RUNTIMES
@pytest.mark.parametrize(("stage", "least"), [("encode_image", 0.95), ("find", 0.7), ("describe", 0.7)])
def test_what_takes_the_time_is_float16(imported_half_model: Path, stage: str, least: float) -> None:
    """The post decoder's attention to the film, soft boxes, and the heads of boxes and scores are float32."""
    model = onnx.load(graph_path(imported_half_model, stage, "float16"))
    kinds = element_types(model)

    products = [kinds[node.output[0]] for node in model.graph.node if node.op_type in ("MatMul", "Conv")]

    assert products.count(HALF) > least * len(products)


@RUNTIMES
def test_a_changed_float16_graph_is_refused_and_others_open(half_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(half_model, tmp_path / "model"))
    shutil.copy(graph_path(folder, "describe", "float16"), graph_path(folder, "find", "float16"))

    with pytest.raises(EngineUnavailable, match=r"other graphs; .* --target tensorrt") as refused:
        open_engine(folder, engine="tensorrt", engines=tmp_path / "engines")
    assert refused.value.reason == "no_graphs"
    assert open_engine(folder, engine="onnx").name == "onnx"


def test_a_graph_with_graphs_inside_is_refused() -> None:
    model = graph_of(("Identity", INNER, ("x",), "z"))
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "branch", [], [value])
    model.graph.node[0].CopyFrom(helper.make_node("If", ["is"], ["z"], then_branch=branch, else_branch=branch))
    model.graph.input.append(helper.make_tensor_value_info("is", TensorProto.BOOL, []))

    with pytest.raises(ModelError, match=r"If .*cannot be converted to float16"):
        to_float16(model)


def test_a_single_number_beyond_float16_is_a_mask_and_saturates_but_a_weight_is_refused() -> None:
    mask, infinite = (
        to_float16(graph_of(("Add", INNER, ("x", "own"), "z"), weights={"own": values})).graph.initializer
        for values in (-3.4e38, [-np.inf, 1, 1])
    )

    assert numpy_helper.to_array(mask[0]) == np.finfo(np.float16).min
    assert numpy_helper.to_array(infinite[0]).tolist() == [-np.inf, 1, 1]
    with pytest.raises(ModelError, match="weight large holds a number that float16 cannot represent"):
        to_float16(graph_of(("Add", INNER, ("x", "large"), "z"), weights={"large": [1, 70000, 0]}))


def graph_of(*nodes: tuple[str, str, tuple[str, ...], str], weights: Mapping[str, object] = THIRD) -> ModelProto:
    """A graph from x to z; nodes: operator, the module that it was traced in, inputs and output."""
    made = []
    for operator, scope, inputs, output in nodes:
        node = helper.make_node(operator, list(inputs), [output], doc_string="traced")
        scopes = onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value=repr(["", scope, "a node"]))
        node.metadata_props.append(scopes)
        made.append(node)
    given, made_of = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xz")
    kept = [numpy_helper.from_array(np.array(values, np.float32), name) for name, values in weights.items()]
    graph = helper.make_graph(made, "several", [given], [made_of], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def kinds_of(model: ModelProto) -> dict[str, int]:
    kinds = element_types(to_float16(model))
    return {name: kind for name, kind in kinds.items() if name in {"a", "b", "z"}}


@pytest.mark.parametrize(
    ("operator", "scope", "kind"),
    [
        ("Mul", INNER, HALF),
        ("Mul", BETWEEN, FLOAT32),
        ("Mul", "network.detector", FLOAT32),
        ("Mul", "network.detector.layers.1.mlp", HALF),
        ("Mul", "network.detector.box.expand", FLOAT32),
        ("Mul", "network.detector.score", FLOAT32),
        ("Mul", "network.post_decoder.layers.3.cross_attention", FLOAT32),
        ("Mul", "network.post_decoder.layers.3.cross_attention.key", FLOAT32),
        ("Mul", "network.post_decoder.layers.3.self_attention.key", HALF),
        ("Div", INNER, FLOAT32),
        ("Pow", INNER, FLOAT32),
        ("Mul", "", FLOAT32),
    ],
)
def test_a_node_has_the_precision_of_its_module_and_operator(operator: str, scope: str, kind: int) -> None:
    model = graph_of((operator, scope, ("x", "third"), "a"), ("Mul", BETWEEN, ("a", "third"), "z"))

    assert kinds_of(model) == {"a": kind, "z": FLOAT32}


def test_an_encoder_whose_stem_are_convolutions_stays_float32() -> None:
    def model(scope: str) -> ModelProto:
        begin = ("Mul", scope, ("x", "third"), "a")
        return graph_of(begin, ("Mul", INNER, ("a", "third"), "b"), ("Exp", "", ("b",), "z"))

    assert kinds_of(model("network.image_encoder.stem"))["b"] == HALF
    assert kinds_of(model("network.image_encoder.stem.1"))["b"] == FLOAT32


def test_a_tensor_is_cast_once_and_moved_as_it_is() -> None:
    model = graph_of(
        ("Mul", INNER, ("x", "third"), "a"),
        ("Add", INNER, ("a", "x"), "b"),
        ("Identity", BETWEEN, ("b",), "c"),
        ("Identity", BETWEEN, ("x",), "d"),
        ("Add", BETWEEN, ("c", "d"), "e"),
        ("Add", BETWEEN, ("e", "c"), "z"),
    )

    half = to_float16(model)

    assert [node.op_type for node in half.graph.node].count("Cast") == 2, "x to float16, c to float32"
    kinds = element_types(half)
    assert [kinds[name] for name in "abcdez"] == [HALF, HALF, HALF, FLOAT32, FLOAT32, FLOAT32]
    assert {weight.name: weight.data_type for weight in half.graph.initializer} == {"third_float16": HALF}
    assert not any(node.doc_string or node.metadata_props for node in half.graph.node)
    given = {"x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}
    made, expected = (np.asarray(next(iter(ReferenceEvaluator(each).run(None, given)))) for each in (half, model))
    assert made.dtype == np.float32
    assert made == pytest.approx(expected, rel=1e-2)
    assert made != pytest.approx(expected, rel=1e-5)


def test_an_output_that_was_computed_in_float16_is_given_in_float32() -> None:
    half = to_float16(graph_of(("Mul", INNER, ("x", "third"), "z")))

    assert [(node.op_type, list(node.output)) for node in half.graph.node][-1] == ("Cast", ["z"])
    assert half.graph.output[0].type.tensor_type.elem_type == FLOAT32
    onnx.checker.check_model(half, full_check=True)
