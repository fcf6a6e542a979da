"""The exported graphs compute what the weights compute, and an error in one weight does not stay hidden."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export import build, parity
from export.to_onnx import load_graph
from models.checkpoint.files import file_sha256
from models.contract import StageDifference
from models.engines.opening import open_engine
from models.engines.proof import STAGES, VIEW, graph_path, hash_graphs, read_proof, weights_path, write_proof
from models.errors import ModelError
from tests.support.directories import linked_copy


def _copy(model: Path, folder: Path) -> Path:
    return linked_copy(model, folder / "model")


def _plant(graph: Path, *, seed: int) -> str:
    """Add 1e-2 to one number of one weight matrix of a graph; returns the matrix's name."""
    random = np.random.default_rng(seed)
    model = load_graph(graph)
    # One row of an embedding counts only for its own token, so it is no fair hiding place.
    weights = [w for w in model.graph.initializer if len(w.dims) == 2 and min(w.dims) >= 64 and max(w.dims) < 1000]
    chosen = weights[random.integers(len(weights))]
    values = numpy_helper.to_array(chosen).copy()
    values[tuple(random.integers(size) for size in values.shape)] += 1e-2
    chosen.CopyFrom(numpy_helper.from_array(values, chosen.name))
    graph.unlink()
    onnx.save(model, graph)
    return str(chosen.name)


def test_a_graph_is_read_with_the_weights_beside_it(phantom_model: Path, tmp_path: Path) -> None:
    """Also where the file of the weights has two names."""
    linked = graph_path(linked_copy(phantom_model, tmp_path / "linked"), "find")
    own = graph_path(Path(shutil.copytree(phantom_model, tmp_path / "own")), "find")

    found, expected = load_graph(linked), onnx.load(own)

    assert found == expected
    assert linked.stat().st_size < weights_path(linked).stat().st_size


@pytest.mark.parametrize(
    ("damage", "why"), [(Path.unlink, "cannot be read"), (lambda path: os.truncate(path, 9), "short")]
)
def test_weights_of_a_graph_that_are_damaged_are_named(
    phantom_model: Path, tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    graph = graph_path(Path(shutil.copytree(phantom_model, tmp_path / "model")), "find")
    damage(weights_path(graph))

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
@pytest.mark.drill(part="runtimes")
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_of_a_hundredth_in_one_weight_is_caught(
    imported_model: Path, tmp_path: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _copy(imported_model, tmp_path)
    planted = _plant(graph_path(model, stage), seed=STAGES.index(stage))

    status = parity.main(["--model", str(model), "torch", "onnx", "--json"])
    stages = json.loads(capsys.readouterr().out)["stages"]

    differing = {name.partition(".")[0] for name, result in stages.items() if result["max_abs"] > result["tolerance"]}
    assert (status, differing - {"probability"}) == (1, {stage}), planted


def test_a_build_leaves_proven_graphs_alone(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--model", str(phantom_model)]) == 0
    written = {stage: graph_path(phantom_model, stage).stat().st_mtime_ns for stage in STAGES}
    capsys.readouterr()

    assert build.main(["--model", str(phantom_model)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert written == {stage: graph_path(phantom_model, stage).stat().st_mtime_ns for stage in STAGES}


def test_a_build_answers_a_program_with_one_json_document(
    phantom_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["--model", str(phantom_model), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)

    assert set(result) == {"stages", "passed", "files"}
    assert result["passed"] is True
    assert {name.partition(".")[0] for name in result["stages"]} == {*STAGES, VIEW}
    assert all(stage["max_abs"] <= stage["tolerance"] for stage in result["stages"].values())
    graphs = [graph_path(phantom_model, stage) for stage in (*STAGES, VIEW)]
    files = [path for graph in graphs for path in (graph, weights_path(graph))]
    assert result["files"] == {f"onnx/{path.name}": file_sha256(path) for path in files}


def test_a_difference_that_is_not_a_number_is_still_json() -> None:
    text = json.dumps(
        parity.document({"find.boxes": StageDifference(max_abs=float("nan"), tolerance=1e-4)}), allow_nan=False
    )

    assert json.loads(text) == {"stages": {"find.boxes": {"max_abs": None, "tolerance": 1e-4}}, "passed": False}


@pytest.mark.parametrize("command", [build.main, parity.main])
def test_a_folder_that_is_no_model_is_exit_2_with_one_line(
    tmp_path: Path, command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    engines = ["torch", "torch"] if command is parity.main else []

    assert command(["--model", str(tmp_path), *engines]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
