"""The code of the TensorRT engine on this machine, with a small stand-in for TensorRT and a GPU.

ONNX Runtime computes inside of it, so an engine must answer as ONNX Runtime does with the same float16 graphs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.engines import Engine, EngineUnavailable
from models.engines.engine_files import read_heads
from models.engines.onnx_engine import open_onnx
from models.engines.opening import open_engine, open_first
from models.engines.proof import FLOAT16_STAGES
from models.errors import DeviceLost, ModelError
from models.manifest import NetworkSizes, read_manifest
from tests.support.engine_checks import features, films, read_more_films_than_a_part, write_well_formed_sentences
from tests.support.fake_gpu import FakeGpu
from tests.support.fake_tensorrt import Machine, installed

pytestmark = pytest.mark.drill(part="runtimes")


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


def opened(model: Path, folder: Path, machine: Machine) -> Engine:
    return open_engine(model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)


def without_proofs(folder: Path) -> None:
    for path in folder.glob("*.engine"):
        line, _, content = path.read_bytes().partition(b"\n")
        head = json.loads(line)
        del head["proofs"]
        path.write_bytes(json.dumps(head).encode() + b"\n" + content)


def test_answers_are_those_of_onnx_runtime(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine, reference = opened(half_model, built, machine), open_onnx(half_model, threads=1, precision="float16")
    boxes = np.random.default_rng(2).uniform(0.2, 0.8, (2, 3, 4)).astype(np.float32)
    prompts, prompted = features(sizes, 2, 3), np.array([[1, 0, 1], [0, 0, 1]], np.float32)

    (patches, expected_patches) = (asked.encode_image(films(sizes, 2)) for asked in (engine, reference))
    found, expected = (asked.find(patches, prompts) for asked in (engine, reference))
    described, expected_described = (
        asked.describe(patches, boxes=boxes, prompts=prompts, prompted=prompted) for asked in (engine, reference)
    )

    for part in ("features", "positions", "cls"):
        assert getattr(patches, part) == pytest.approx(getattr(expected_patches, part), abs=1e-6)
    for part in ("boxes", "scores", "aggregated_scores", "features"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part), abs=1e-6)
    assert described == pytest.approx(expected_described, abs=1e-6)
    assert machine.builds == 0, "the engines are kept"
    assert read_more_films_than_a_part(engine, sizes) < 1e-5
    assert len(write_well_formed_sentences(engine, sizes, count=3)) == 3


def test_inputs_that_do_not_fit_an_engine_are_refused(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine = opened(half_model, built, machine)
    patches = engine.encode_image(films(sizes, 1))

    with pytest.raises(ModelError, match=r"takes .*prompts \(float32\); it was given .*prompts \(float64\)"):
        engine.find(patches, features(sizes, 1, 3).astype(np.float64))
    with pytest.raises(ModelError, match=r"not built for pixels of shape \(1, 225, 225\)"):
        engine.encode_image(np.zeros((1, 225, 225), np.float32))


@pytest.mark.parametrize("driver", [FakeGpu().driver, "590.44.01"])
def test_an_engine_is_proven_once_for_each_driver(half_model: Path, folder: Path, driver: str) -> None:
    if driver == FakeGpu().driver:
        without_proofs(folder)
    with installed(Machine(gpu=FakeGpu(driver=driver))) as machine:
        parity = dict(opened(half_model, folder, machine).parity)
        first = machine.runs
        opened(half_model, folder, machine)

    assert (machine.builds, machine.runs) == (0, first), "the second start asks for no proof"
    assert first >= 8 * len(FLOAT16_STAGES)
    heads = read_heads(folder)
    assert all(head.proofs[-1].driver == driver for head in heads)
    assert parity == {name: stage for head in heads for name, stage in head.proofs[-1].stages.items()}


@pytest.mark.parametrize("error", [0.02, float("nan")])
def test_an_engine_out_of_tolerance_is_refused(half_model: Path, folder: Path, error: float) -> None:
    without_proofs(folder)
    with installed(Machine(error=error)) as machine:
        with pytest.raises(EngineUnavailable, match=r"driver 580\.95\.05 differs from the network") as refused:
            opened(half_model, folder, machine)
        found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert refused.value.reason == "not_proven"
    assert found.engine.name == "onnx-cuda"
    assert [(fallback.engine, fallback.reason) for fallback in found.fallbacks] == [("tensorrt", "not_proven")]
    with installed(Machine()) as machine:
        assert opened(half_model, folder, machine).name == "tensorrt", "the machine was repaired: proven anew"


def test_a_lost_gpu_is_told_from_an_engine_that_fails(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine = opened(half_model, built, machine)
    machine.fails = True
    with pytest.raises(ModelError, match="could not run an engine") as failed:
        engine.encode_image(films(sizes, 1))

    machine.gpu.lost = True
    with pytest.raises(DeviceLost, match=f"{machine.gpu.name} stopped computing"):
        engine.encode_image(films(sizes, 1))
    assert not isinstance(failed.value, DeviceLost)


def test_a_gpu_that_is_lost_at_the_start_lets_the_cpu_answer(half_model: Path, folder: Path, machine: Machine) -> None:
    without_proofs(folder)
    machine.gpu.lost = machine.fails = True

    found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert found.fallbacks[0].reason == "not_loaded"
    assert "stopped computing" in found.fallbacks[0].message
