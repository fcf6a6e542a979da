"""The code of the TensorRT engine on this machine, with a strict stand-in for TensorRT and a GPU.

ONNX Runtime computes inside of it, so an engine must answer as ONNX Runtime does with the same float16 graphs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from models.engines import Engine
from models.engines.fallback import open_first
from models.engines.graph_engine import GraphEngine
from models.engines.onnx_engine import open_onnx
from models.engines.profiles import RANGES
from models.engines.proof import FLOAT16_STAGES
from models.engines.samples import phrases
from models.errors import DeviceLost, ModelError
from models.manifest import NetworkSizes
from tests.support.engine_checks import features, films, read_more_films_than_a_part, write_well_formed_sentences
from tests.support.fake_gpu import FakeGpu
from tests.support.fake_tensorrt import Machine, installed
from tests.support.tensorrt_engines import H100, L4, opened, reading, unavailable, without_proofs
from tests.support.tensorrt_engines import built as built
from tests.support.tensorrt_engines import engine as engine
from tests.support.tensorrt_engines import folder as folder
from tests.support.tensorrt_engines import machine as machine
from tests.support.tensorrt_engines import reference as reference
from tests.support.tensorrt_engines import sizes as sizes

pytestmark = pytest.mark.drill(part="runtimes")


@pytest.mark.parametrize(("count", "prompts"), [(1, 29), (2, 1), (11, 14)])
def test_answers_are_those_of_onnx_runtime(
    engine: Engine, reference: GraphEngine, sizes: NetworkSizes, count: int, prompts: int
) -> None:
    pixels = films(sizes, count)

    patches, found = reading(engine, pixels, sizes, prompts=prompts)
    expected_patches, expected = reading(reference, pixels, sizes, prompts=prompts)

    for part in ("features", "positions", "cls"):
        assert getattr(patches, part) == pytest.approx(getattr(expected_patches, part), abs=1e-6)
    for part in ("boxes", "scores", "aggregated_scores", "features"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part), abs=1e-6)


def test_boxes_are_answered_as_well(engine: Engine, reference: GraphEngine, sizes: NetworkSizes) -> None:
    boxes = np.random.default_rng(2).uniform(0.2, 0.8, (2, 3, 4)).astype(np.float32)
    prompted = np.array([[1, 0, 1], [0, 0, 1]], np.float32)

    found, expected = (
        asked.describe(
            asked.encode_image(films(sizes, 2)), boxes=boxes, prompts=features(sizes, 2, 3), prompted=prompted
        )
        for asked in (engine, reference)
    )

    assert found == pytest.approx(expected, abs=1e-6)


def test_prompts_are_encoded_in_float32(engine: Engine, half_model: Path, sizes: NetworkSizes) -> None:
    tokens = phrases(np.random.default_rng(3), 90, sizes)

    assert engine.encode_prompts(tokens) == pytest.approx(
        open_onnx(half_model, threads=1).encode_prompts(tokens), abs=1e-5
    )
    assert engine.encode_prompts(tokens[:0]).shape == (0, sizes.dim)


def test_eleven_films_go_through_in_parts(half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes) -> None:
    difference = read_more_films_than_a_part(opened(half_model, built, machine), sizes)

    assert difference < 1e-5
    assert machine.most_films == RANGES["film"].most


def test_sentences_are_well_formed(engine: Engine, sizes: NetworkSizes) -> None:
    assert len(write_well_formed_sentences(engine, sizes, count=3)) == 3


def test_a_film_is_read_while_other_threads_ask(engine: Engine, sizes: NetworkSizes) -> None:
    pixels = [films(sizes, 1, seed=seed) for seed in range(6)]
    expected = [reading(engine, film, sizes, prompts=5)[1].scores for film in pixels]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda film: reading(engine, film, sizes, prompts=5)[1].scores, pixels))

    assert all(np.array_equal(ours, other) for ours, other in zip(expected, found, strict=True))


def test_a_second_start_builds_nothing(half_model: Path, built: Path, machine: Machine) -> None:
    assert opened(half_model, built, machine).name == "tensorrt"
    assert machine.builds == 0


def test_a_damaged_engine_is_built_again(half_model: Path, folder: Path, machine: Machine) -> None:
    path = next(folder.glob("*.engine"))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    opened(half_model, folder, machine)

    assert machine.builds == 1


def test_an_engine_of_another_gpu_is_not_loaded(half_model: Path, folder: Path) -> None:
    with installed(Machine(gpu=FakeGpu(name=L4))) as machine:
        opened(half_model, folder, machine)

        assert machine.builds == len(FLOAT16_STAGES)

    for path in folder.glob("*-nvidia-l4-*.engine"):  # as if it had been copied
        path.rename(path.with_name(path.name.replace("nvidia-l4", "nvidia-h100-80gb-hbm3")))
    with installed(Machine()) as machine:
        opened(half_model, folder, machine)

        assert machine.builds == len(FLOAT16_STAGES)


def test_an_engine_that_does_not_load_is_built_again(half_model: Path, folder: Path, machine: Machine) -> None:
    machine.unloadable = 1

    assert opened(half_model, folder, machine).name == "tensorrt"
    assert machine.builds == 1


def test_the_reason_of_a_failed_load_is_told(half_model: Path, folder: Path, machine: Machine) -> None:
    machine.unloadable = 2

    error = unavailable(half_model, folder, machine)

    assert error.reason == "not_loaded"
    assert "encode_image.float16.onnx: TensorRT 11.4.0.106 does not load: Serialization assertion" in str(error)


@pytest.mark.parametrize(
    ("fault", "reason", "message"),
    [("no_runtime", "no_gpu", "TensorRT does not start here"), ("no_builder", "not_built", "failure with error: 35")],
)
def test_a_library_that_does_not_start_is_told(
    half_model: Path, tmp_path: Path, machine: Machine, fault: str, reason: str, message: str
) -> None:
    setattr(machine, fault, True)

    error = unavailable(half_model, tmp_path / "engines", machine)

    assert error.reason == reason
    assert message in str(error)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32])
def test_inputs_of_another_type_are_refused(engine: Engine, sizes: NetworkSizes, kind: type[np.generic]) -> None:
    patches = engine.encode_image(films(sizes, 1))

    with pytest.raises(
        ModelError, match=r"takes .*prompts \(float32\); it was given .*prompts \((float64|float16|int32)"
    ):
        engine.find(patches, features(sizes, 1, 3).astype(kind))


def test_inputs_that_do_not_fit_each_other_are_refused(engine: Engine, sizes: NetworkSizes) -> None:
    patches = engine.encode_image(films(sizes, 2))

    with pytest.raises(ModelError, match=r"different numbers of film inputs: patches 2, .*prompts 3"):
        engine.find(patches, features(sizes, 3, 4))
    with pytest.raises(ModelError, match="different numbers of box inputs: boxes 2, prompts 3, prompted 3"):
        engine.describe(
            patches,
            boxes=np.zeros((2, 2, 4), np.float32),
            prompts=features(sizes, 2, 3),
            prompted=np.zeros((2, 3), np.float32),
        )


def test_a_call_with_nothing_in_it_is_refused(engine: Engine, sizes: NetworkSizes) -> None:
    patches = engine.encode_image(films(sizes, 1))

    with pytest.raises(ModelError, match="0 film inputs"):
        engine.encode_image(films(sizes, 0))
    with pytest.raises(ModelError, match="0 prompt inputs"):
        engine.find(patches, features(sizes, 1, 0))


def test_films_of_another_size_are_refused(engine: Engine) -> None:
    with pytest.raises(ModelError, match=r"not built for pixels of shape \(1, 225, 225\)"):
        engine.encode_image(np.zeros((1, 225, 225), np.float32))


def test_contexts_share_memory_that_grows_on_demand(machine: Machine) -> None:
    from models.engines.tensorrt_engine import SharedMemory

    memory = SharedMemory(machine.gpu)

    small = memory.at_least(0).nbytes
    large = memory.at_least(1000)

    assert small > 0
    assert large.nbytes == 1000
    assert memory.at_least(999) is large


def test_a_lost_gpu_is_told_from_an_engine_that_fails(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine = opened(half_model, built, machine)
    machine.fails = True
    with pytest.raises(ModelError, match="could not run an engine") as failed:
        engine.encode_image(films(sizes, 1))

    machine.gpu.lost = True
    with pytest.raises(DeviceLost, match=f"{H100} stopped computing"):
        engine.encode_image(films(sizes, 1))
    assert not isinstance(failed.value, DeviceLost)


def test_an_engine_that_does_not_run_at_the_start_is_refused(half_model: Path, folder: Path, machine: Machine) -> None:
    without_proofs(folder)
    machine.fails = True

    error = unavailable(half_model, folder, machine)

    assert error.reason == "not_loaded"
    assert "could not run an engine" in str(error)


def test_a_gpu_that_is_lost_at_the_start_lets_the_cpu_answer(half_model: Path, folder: Path, machine: Machine) -> None:
    without_proofs(folder)
    machine.gpu.lost = machine.fails = True

    found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert found.fallbacks[0].reason == "not_loaded"
    assert "stopped computing" in found.fallbacks[0].message
