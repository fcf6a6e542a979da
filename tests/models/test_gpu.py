"""What only a GPU with TensorRT can show; `pytest -m gpu` runs it there. On any other machine these tests fail.

That each runtime reads 64 films as allowed is proven by `tests/drills/gpu_proof.py`.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from export import build, parity
from models.checkpoint.weights import load_network
from models.engines.comparison import agree, compare
from models.engines.devices import CudaGpu
from models.engines.opening import open_engine, open_first
from models.engines.proof import FLOAT16_STAGES
from models.manifest import read_manifest
from models.network.static_decoding import CHECK_EVERY, StaticWriter
from tests.support.engine_checks import features, read_more_films_than_a_part, write_well_formed_sentences

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def model(phantom_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the shipped model with its float16 graphs."""
    return Path(shutil.copytree(phantom_model, tmp_path_factory.mktemp("gpu") / "model"))


@pytest.fixture(scope="module")
def engines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its engines, built ahead by the command."""
    folder = tmp_path_factory.mktemp("storage") / "engines"
    assert build.main(["--model", str(model), "--target", "onnx,tensorrt", "--engines", str(folder)]) == 0
    return folder


def test_every_graph_has_an_engine_and_a_restart_builds_none(model: Path, engines: Path) -> None:
    written = {path: path.stat().st_mtime_ns for path in engines.glob("*.engine")}
    assert len(written) == len(FLOAT16_STAGES)

    opened = open_first(model, engine="tensorrt", engines=engines)

    assert (opened.engine.name, opened.fallbacks) == ("tensorrt", ())
    assert {path: path.stat().st_mtime_ns for path in engines.glob("*.engine")} == written


def test_pytorch_on_a_gpu_keeps_the_float32_tolerance_and_writes_the_same_sentences(model: Path) -> None:
    sizes = read_manifest(model).sizes
    reference, engine = (open_engine(model, engine=name) for name in ("torch", "torch-cuda"))

    stages = compare(reference, engine, sizes)

    assert agree(stages), parity.lines(stages)
    for count in (1, 8, 32):
        given = features(sizes, count)
        assert np.array_equal(engine.write(given), reference.write(given))


def test_many_films_are_read_in_parts_and_sentences_are_well_formed_in_float16(model: Path, engines: Path) -> None:
    sizes = read_manifest(model).sizes
    engine = open_engine(model, engine="tensorrt", engines=engines)
    half = open_engine(model, engine="tensorrt", engines=engines, precision="float16")

    assert read_more_films_than_a_part(engine, sizes) < 1e-2
    assert len(write_well_formed_sentences(half, sizes, count=32)) == 32


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
def test_a_captured_step_writes_what_steps_one_by_one_write(model: Path, precision: torch.dtype) -> None:
    gpu = CudaGpu()
    with gpu.working():
        generator = load_network(model).generator.to(gpu.device, precision)
        stepwise = StaticWriter(generator, max_length=24)
        captured = StaticWriter(generator, max_length=24, repeatable=gpu.repeatable)
        for count in (1, 8, 32):
            given = gpu.put(features(read_manifest(model).sizes, count)).to(precision)
            assert torch.equal(captured.write(given), stepwise.write(given))


def test_no_token_makes_the_host_wait(model: Path) -> None:
    gpu = CudaGpu()
    generator = load_network(model).generator.to(gpu.device)
    writer = StaticWriter(generator, max_length=24, repeatable=gpu.repeatable)
    with gpu.working():
        given = gpu.put(features(read_manifest(model).sizes, 8))
        writer.write(given)

        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                writer.write(given)
            finally:
                torch.cuda.set_sync_debug_mode("default")

    assert len(waits) <= 24 / CHECK_EVERY + 2
