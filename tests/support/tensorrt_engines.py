"""The shipped model in the TensorRT engine with its stand-in: fixtures and helpers of the tests about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.engines import Engine, EngineUnavailable, FloatArray, Patches, Regions, open_engine
from models.engines.graph_engine import GraphEngine
from models.engines.onnx_engine import open_onnx
from models.engines.proof import FLOAT16_STAGES
from models.manifest import NetworkSizes, read_manifest
from tests.support.engine_checks import features
from tests.support.fake_tensorrt import Machine, installed

H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"


@pytest.fixture(scope="module")
def sizes(half_model: Path) -> NetworkSizes:
    return read_manifest(half_model).sizes


@pytest.fixture(scope="module")
def built(half_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the engines of the shipped model."""
    folder = tmp_path_factory.mktemp("storage") / "engines"
    with installed(Machine()) as machine:
        opened(half_model, folder, machine)
        assert machine.builds == len(FLOAT16_STAGES)
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "engines"))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with installed(Machine()) as machine:
        yield machine


@pytest.fixture(scope="module")
def engine(half_model: Path, built: Path) -> Iterator[Engine]:
    with installed(Machine()) as machine:
        yield opened(half_model, built, machine)


@pytest.fixture(scope="module")
def reference(half_model: Path) -> GraphEngine:
    return open_onnx(half_model, threads=1, precision="float16")


def opened(model: Path, folder: Path, machine: Machine) -> Engine:
    return open_engine(model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)


def unavailable(model: Path, folder: Path, machine: Machine) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable) as refused:
        opened(model, folder, machine)
    return refused.value


def reading(engine: Engine, pixels: FloatArray, sizes: NetworkSizes, *, prompts: int) -> tuple[Patches, Regions]:
    patches = engine.encode_image(pixels)
    return patches, engine.find(patches, features(sizes, len(pixels), prompts))


def without_proofs(folder: Path) -> None:
    for path in folder.glob("*.engine"):
        line, _, content = path.read_bytes().partition(b"\n")
        head = json.loads(line)
        del head["proofs"]
        path.write_bytes(json.dumps(head).encode() + b"\n" + content)
