"""What only a GPU with TensorRT can show; `pytest -m gpu` runs it there. On any other machine these tests fail."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from export import build, parity
from models.checkpoint.weights import load_network
from models.engines import open_engine
from models.engines.fallback import open_first
from models.engines.profiles import RANGES
from models.engines.proof import STAGES
from models.manifest import read_manifest
from models.network.static_decoding import CHECK_EVERY, write_static
from models.reading.tokenizers import SENTENCE_END

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
    assert len(written) == len(STAGES)

    opened = open_first(model, engine="tensorrt", engines=engines)

    assert (opened.engine.name, opened.fallbacks) == ("tensorrt", ())
    assert {path: path.stat().st_mtime_ns for path in engines.glob("*.engine")} == written


def test_tensorrt_reads_64_films_within_the_float16_tolerance(model: Path, engines: Path) -> None:
    stages = parity.compare_readings(
        open_engine(model, engine="torch"),
        open_engine(model, engine="tensorrt", engines=engines),
        read_manifest(model).sizes,
    )

    assert parity.agree(stages), parity.lines(stages)


def test_onnx_runtime_on_a_gpu_keeps_the_float32_tolerance(model: Path) -> None:
    stages = parity.compare(
        open_engine(model, engine="torch"), open_engine(model, engine="onnx-cuda"), read_manifest(model).sizes
    )

    assert parity.agree(stages), parity.lines(stages)


def test_more_films_than_an_engine_takes_are_read_in_parts(model: Path, engines: Path) -> None:
    engine = open_engine(model, engine="tensorrt", engines=engines)
    pixels = np.random.default_rng(0).normal(size=(RANGES["film"].most + 3, 224, 224)).astype(np.float32)

    together = engine.encode_image(pixels)

    assert together.cls[-1] == pytest.approx(engine.encode_image(pixels[-1:]).cls[0], abs=1e-2)


def test_sentences_are_well_formed_in_float16(model: Path, engines: Path) -> None:
    features = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)

    ids = open_engine(model, engine="tensorrt", engines=engines).write(features)

    assert ids.shape[0] == 32 and 2 <= ids.shape[1] <= read_manifest(model).sizes.generator.max_length
    assert set(ids[:, 0]) == {SENTENCE_END}


def test_no_token_makes_the_host_wait(model: Path) -> None:
    generator = load_network(model).generator.half().to("cuda")
    features = torch.randn(8, 64, dtype=torch.float16, device="cuda")
    write_static(generator, features, max_length=24)

    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            write_static(generator, features, max_length=24)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    assert len(waits) <= 24 / CHECK_EVERY + 2
