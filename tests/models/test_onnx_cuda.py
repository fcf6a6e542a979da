"""ONNX Runtime on a GPU, as far as a machine without one shows it: its provider for the CPU on a stand-in's memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.engines import Engine, EngineUnavailable
from models.engines.comparison import FLOAT16, GPU_FLOAT32, compare
from models.engines.onnx_cuda_engine import Graph, load_provider, provider_settings
from models.engines.opening import open_engine, open_first
from models.engines.proof import PROOF, graph_path, proven_precision
from models.errors import DeviceError, DeviceLost, ModelError
from models.manifest import NetworkSizes, read_manifest
from tests.support.engine_checks import features, read_more_films_than_a_part
from tests.support.fake_gpu import STREAM, FakeGpu

pytestmark = pytest.mark.drill(part="runtimes")

CARD = torch.device("cuda", 0)


class Wrong(FakeGpu):
    """A GPU that computes with other numbers than it was given."""

    def put(self, array: NDArray[np.generic]) -> Tensor:
        return super().put(np.multiply(array, 1.5, dtype=np.float32) if array.dtype == np.float32 else array)


@pytest.fixture(scope="module")
def sizes(phantom_model: Path) -> NetworkSizes:
    return read_manifest(phantom_model).sizes


@pytest.fixture(scope="module")
def engine(phantom_model: Path) -> Engine:
    return open_engine(phantom_model, engine="onnx-cuda", threads=1, gpu=FakeGpu())


def inputs(sizes: NetworkSizes) -> dict[str, NDArray[np.generic]]:
    patches = np.zeros((2, sizes.image_encoder.grid**2, sizes.dim), np.float32)
    return {
        "patches": patches,
        "positions": patches,
        "cls": np.zeros((2, sizes.dim), np.float32),
        "prompts": np.zeros((2, 3, sizes.dim), np.float32),
    }


def test_answers_are_those_of_the_cpu(phantom_model: Path, engine: Engine, sizes: NetworkSizes) -> None:
    reference = open_engine(phantom_model, engine="torch", threads=1)

    assert engine.name == "onnx-cuda"
    assert all(stage.passed for stage in compare(reference, engine, sizes).values())
    assert read_more_films_than_a_part(engine, sizes) < 1e-4
    assert np.array_equal(engine.write(features(sizes, 8)), reference.write(features(sizes, 8)))


def test_float16_graphs_run_where_they_are_proven(half_model: Path, phantom_model: Path, tmp_path: Path) -> None:
    half, full = (
        open_engine(model, engine="onnx-cuda", threads=1, gpu=FakeGpu()) for model in (half_model, phantom_model)
    )
    changed = Path(shutil.copytree(half_model, tmp_path / "model"))
    graph_path(changed, "find", "float16").write_bytes(b"another graph")

    assert {proven_precision(model, read_manifest(model)) for model in (phantom_model, changed)} == {"float32"}
    assert proven_precision(half_model, read_manifest(half_model)) == "float16"
    assert half.parity["find.boxes"].tolerance == FLOAT16.boxes
    assert full.parity["find.boxes"].tolerance == GPU_FLOAT32.boxes
    assert half.parity["find.features"].max_abs > 10 * full.parity["find.features"].max_abs, "nothing was rounded"


def test_a_graph_reads_and_writes_the_memory_of_the_gpu(phantom_model: Path, sizes: NetworkSizes) -> None:
    gpu = FakeGpu()
    graph = Graph(graph_path(phantom_model, "find"), gpu)

    outputs = graph.run(inputs(sizes))

    assert [array.shape for array in outputs] == [(2, 3, 3, 4), (2, 3, 3), (2, 3), (2, 3, sizes.dim)]
    assert all(array.ctypes.data in gpu.pieces for array in outputs)
    assert len(gpu.pieces) == len(inputs(sizes)) + len(outputs)
    assert all(array.max() < 85 for array in outputs), "the stand-in's memory is full of 85 until it is written"


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": np.zeros((1, 3, 128), np.float32)},  # of one film, beside patches of two
        {"prompts": np.zeros((2, 3, 64), np.float32)},
        {"prompts": np.zeros((2, 128), np.float32)},
        {"prompts": np.zeros((2, 3, 128), np.float64)},
        {"prompts": np.zeros((2, 0, 128), np.float32)},
        {"prompt": np.zeros((2, 3, 128), np.float32)},
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    phantom_model: Path, sizes: NetworkSizes, change: dict[str, NDArray[np.generic]]
) -> None:
    gpu = FakeGpu()
    graph = Graph(graph_path(phantom_model, "find"), gpu)

    with pytest.raises(ModelError, match="the graph takes"):
        graph.run(inputs(sizes) | change)
    assert not gpu.pieces, "nothing was brought to the GPU"


def test_the_provider_gets_the_stream_and_no_tf32() -> None:
    assert provider_settings(FakeGpu(device=CARD)) == {
        "device_id": "0",
        "use_tf32": "0",
        "user_compute_stream": str(STREAM),
    }


def test_a_gpu_that_computes_something_else_is_refused(half_model: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"ONNX Runtime .* \(float16\) on NVIDIA H100 .* differs") as refused:
        open_engine(half_model, engine="onnx-cuda", threads=1, gpu=Wrong())

    assert refused.value.reason == "not_proven"


def test_every_runtime_on_a_wrong_gpu_is_refused_in_turn(half_model: Path) -> None:
    opened = open_first(half_model, engine="onnx-cuda", threads=1, gpu=Wrong())

    assert opened.engine.name == "onnx"
    assert [(each.engine, each.reason) for each in opened.fallbacks] == [
        ("onnx-cuda", "not_proven"),
        ("torch-cuda", "not_proven"),
    ]


def test_the_onnx_runtime_for_a_cpu_is_told_apart(phantom_model: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"pip uninstall .* && pip install .*\.\[gpu\]") as refused:
        load_provider(FakeGpu(device=CARD))

    assert refused.value.reason == "not_installed"


def test_without_proven_graphs_pytorch_answers(phantom_model: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    (bare / PROOF).unlink()

    opened = open_first(bare, engine="onnx-cuda", threads=1, gpu=FakeGpu())

    assert opened.engine.name == "torch-cuda"
    assert [(each.engine, each.reason) for each in opened.fallbacks] == [("onnx-cuda", "no_graphs")]
    assert "export.build" in opened.fallbacks[0].message


@pytest.mark.parametrize(("lost", "kind"), [(False, DeviceError), (True, DeviceLost)])
def test_an_error_of_the_runtime_is_one_of_the_gpu(phantom_model: Path, lost: bool, kind: type[DeviceError]) -> None:
    graph = Graph(graph_path(phantom_model, "encode_prompts"), FakeGpu(lost=lost))

    with pytest.raises(DeviceError) as failed:
        graph.run({"tokens": np.full((1, 12), 2**40, np.int64)})  # no such word: the graph fails while it runs
    assert type(failed.value) is kind
