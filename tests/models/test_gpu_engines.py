"""Engines of a GPU, as far as a machine without one shows them: the CPU computes on a stand-in's memory."""

from __future__ import annotations

import ctypes
import enum
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from models.checkpoint.weights import load_network
from models.engines import Engine, EngineUnavailable
from models.engines.comparison import FLOAT16, GPU_FLOAT32, compare, drawn_boxes, drawn_films, drawn_phrases
from models.engines.onnx_cuda_engine import Graph, load_provider, provider_settings
from models.engines.onnx_engine import open_onnx
from models.engines.opening import open_engine, open_first
from models.engines.proof import FLOAT16_STAGES, PROOF, graph_path, proven_precision
from models.errors import DeviceError, DeviceLost, ModelError
from models.manifest import NetworkSizes, read_manifest
from models.network.static_decoding import Step
from tests.support.engine_checks import features, films, read_more_films_than_a_part, write_well_formed_sentences
from tests.support.fake_gpu import STREAM, FakeGpu, WrongGpu

RUNTIMES = pytest.mark.drill(part="runtimes")


_USER = "models.engines.tensorrt_engine"


class TensorMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


@dataclass
class Machine:
    """What is in the machine, and what was done on it.

    fails: no engine runs any more; error: added to every number that an engine gives
    """

    gpu: FakeGpu = field(default_factory=FakeGpu)
    fails: bool = False
    error: float = 0.0
    builds: int = 0
    runs: int = 0


class Context:
    """Keeps shapes and addresses from call to call, as the real one does."""

    def __init__(self, machine: Machine, session: onnxruntime.InferenceSession) -> None:
        self._machine, self._session = machine, session
        self._inputs = {value.name: value.shape for value in session.get_inputs()}
        self._outputs = {value.name: value.shape for value in session.get_outputs()}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        return all(isinstance(axis, str) or axis == size for axis, size in zip(self._inputs[name], shape, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        sizes = {
            axis: size for own, axes in self._inputs.items() for axis, size in zip(axes, self._shapes[own], strict=True)
        }
        return tuple(sizes.get(axis, axis) for axis in self._outputs[name])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == STREAM
        if self._machine.fails:
            return False
        self._machine.runs += 1
        given = {name: self._array(name, self._shapes[name]) for name in self._inputs}
        for name, found in zip(self._outputs, self._session.run(list(self._outputs), given), strict=True):
            self._array(name, self.get_tensor_shape(name))[...] = found + np.float32(self._machine.error)
        return True

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a tensor's memory, which must be a piece of the GPU's of just its size."""
        size, address = 4 * int(np.prod(shape)), self._addresses[name]
        assert self._machine.gpu.room(address) == size, name
        return np.frombuffer(memoryview((ctypes.c_char * size).from_address(address)), np.float32).reshape(shape)


def tensorrt_of(machine: Machine) -> ModuleType:
    """Make the module for a machine."""

    def load(content: bytes) -> SimpleNamespace:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        modes = {value.name: TensorMode.INPUT for value in session.get_inputs()}
        modes |= {value.name: TensorMode.OUTPUT for value in session.get_outputs()}
        return SimpleNamespace(
            num_io_tensors=len(modes),
            get_tensor_name=list(modes).__getitem__,
            get_tensor_mode=modes.__getitem__,
            get_tensor_dtype=lambda _name: "float32",
            create_execution_context=lambda: Context(machine, session),
        )

    def parse(network: SimpleNamespace, content: bytes) -> bool:
        network.content = content
        return True

    def build(network: SimpleNamespace, _config: object) -> bytes:
        machine.builds += 1
        content: bytes = network.content
        return content

    builder = SimpleNamespace(
        create_network=lambda _flags: SimpleNamespace(num_inputs=0),
        create_builder_config=MagicMock(),
        create_optimization_profile=MagicMock(),
        build_serialized_network=build,
    )
    module = ModuleType("tensorrt")
    vars(module).update(
        __version__="11.4.0.106",
        ILogger=type("Logger", (), {"Severity": enum.Enum("Severity", "INTERNAL_ERROR ERROR")}),
        Runtime=lambda _log: SimpleNamespace(deserialize_cuda_engine=load),
        Builder=lambda _log: builder,
        OnnxParser=lambda network, _log: SimpleNamespace(parse=lambda content: parse(network, content)),
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=0),
        BuilderFlag=SimpleNamespace(TF32=0),
        DataType=SimpleNamespace(FLOAT="float32"),
        TensorIOMode=TensorMode,
    )
    return module


@contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """Install TensorRT for a machine, and load the modules that use it anew; both are gone afterwards."""
    kept = {name: sys.modules.pop(name) for name in ("tensorrt", _USER) if name in sys.modules}
    sys.modules["tensorrt"] = tensorrt_of(machine)
    try:
        yield machine
    finally:
        for name in ("tensorrt", _USER):
            sys.modules.pop(name, None)
        sys.modules.update(kept)


@pytest.fixture(scope="module")
def sizes(phantom_model: Path) -> NetworkSizes:
    return read_manifest(phantom_model).sizes


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


@RUNTIMES
def test_answers_are_those_of_onnx_runtime(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine, reference = opened(half_model, built, machine), open_onnx(half_model, threads=1, precision="float16")
    assert machine.builds == 0, "the engines are kept"
    assert machine.runs >= 8 * len(FLOAT16_STAGES), "they are proven at every start"
    assert {name.partition(".")[0] for name in engine.parity} >= set(FLOAT16_STAGES)
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
    assert read_more_films_than_a_part(engine, sizes) < 1e-5
    assert len(write_well_formed_sentences(engine, sizes, count=3)) == 3


@RUNTIMES
def test_inputs_that_do_not_fit_an_engine_that_fails_and_a_lost_gpu_are_told_apart(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine = opened(half_model, built, machine)
    patches = engine.encode_image(films(sizes, 1))

    with pytest.raises(ModelError, match=r"takes .*prompts as float32; it was given .*prompts \(float64\)"):
        engine.find(patches, features(sizes, 1, 3).astype(np.float64))
    with pytest.raises(ModelError, match=r"not built for pixels of shape \(1, 225, 225\)"):
        engine.encode_image(np.zeros((1, 225, 225), np.float32))
    machine.fails = True
    with pytest.raises(ModelError, match="could not run an engine") as failed:
        engine.encode_image(films(sizes, 1))
    assert not isinstance(failed.value, DeviceLost)
    machine.gpu.lost = True
    with pytest.raises(DeviceLost, match=f"{machine.gpu.name} stopped computing"):
        engine.encode_image(films(sizes, 1))


@RUNTIMES
@pytest.mark.parametrize("error", [0.02, float("nan")])
def test_an_engine_out_of_tolerance_is_refused(half_model: Path, folder: Path, error: float) -> None:
    with installed(Machine(error=error)) as machine:
        with pytest.raises(EngineUnavailable, match=r"driver 580\.95\.05 differs from the network") as refused:
            opened(half_model, folder, machine)
        found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert refused.value.reason == "not_proven"
    assert found.engine.name == "onnx-cuda"
    assert [(fallback.engine, fallback.reason) for fallback in found.fallbacks] == [("tensorrt", "not_proven")]
    with installed(Machine()) as machine:
        assert opened(half_model, folder, machine).name == "tensorrt", "the machine was repaired: proven anew"


@RUNTIMES
def test_a_gpu_that_is_lost_at_the_start_lets_the_cpu_answer(half_model: Path, folder: Path, machine: Machine) -> None:
    machine.gpu.lost = machine.fails = True

    found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert found.fallbacks[0].reason == "not_loaded"
    assert "stopped computing" in found.fallbacks[0].message


@pytest.mark.parametrize(("name", "most"), [("onnx-cuda", 1e-3), ("torch-cuda", 1e-6)])
def test_an_engine_answers_as_on_the_cpu(phantom_model: Path, sizes: NetworkSizes, name: str, most: float) -> None:
    engine = open_engine(phantom_model, engine=name, threads=1, gpu=FakeGpu())
    reference = open_engine(phantom_model, engine="torch", threads=1)

    assert engine.name == name
    assert engine.parity["find.boxes"].tolerance == GPU_FLOAT32.boxes
    assert all(stage.passed and stage.max_abs < most for stage in compare(reference, engine, sizes).values())
    assert read_more_films_than_a_part(engine, sizes) < 1e-4
    for count in (1, 3, 8, 29):
        assert np.array_equal(engine.write(features(sizes, count)), reference.write(features(sizes, count)))


@RUNTIMES
def test_float16_graphs_run_where_they_are_proven(half_model: Path, phantom_model: Path, tmp_path: Path) -> None:
    half, full = (
        open_engine(model, engine="onnx-cuda", threads=1, gpu=FakeGpu()) for model in (half_model, phantom_model)
    )
    changed = Path(shutil.copytree(half_model, tmp_path / "model"))
    graph_path(changed, "find", "float16").write_bytes(b"another graph")

    assert {proven_precision(model, read_manifest(model)) for model in (phantom_model, changed)} == {"float32"}
    assert proven_precision(half_model, read_manifest(half_model)) == "float16"
    assert half.parity["find.boxes"].tolerance == FLOAT16.boxes
    assert half.parity["find.features"].max_abs > 10 * full.parity["find.features"].max_abs, "nothing was rounded"


def test_a_graph_reads_and_writes_the_memory_of_the_gpu_and_takes_only_what_fits(
    phantom_model: Path, sizes: NetworkSizes
) -> None:
    gpu = FakeGpu()
    graph, dim = Graph(graph_path(phantom_model, "find"), gpu), sizes.dim
    patches = np.zeros((2, sizes.image_encoder.grid**2, dim), np.float32)
    film: dict[str, NDArray[np.generic]] = {
        "patches": patches,
        "positions": patches,
        "cls": np.zeros((2, dim), np.float32),
    }

    for prompts in (
        np.zeros((1, 3, dim), np.float32),  # of one film, beside patches of two
        np.zeros((2, 3, dim // 2), np.float32),
        np.zeros((2, dim), np.float32),
        np.zeros((2, 3, dim), np.float64),
        np.zeros((2, 0, dim), np.float32),
    ):
        with pytest.raises(ModelError, match="the graph takes"):
            graph.run(film | {"prompts": prompts})
    with pytest.raises(ModelError, match="the graph takes"):
        graph.run(film | {"prompt": np.zeros((2, 3, dim), np.float32)})
    assert not gpu.pieces, "nothing was brought to the GPU"
    outputs = graph.run(film | {"prompts": np.zeros((2, 3, dim), np.float32)})

    assert [array.shape for array in outputs] == [(2, 3, 3, 4), (2, 3, 3), (2, 3), (2, 3, dim)]
    assert all(array.ctypes.data in gpu.pieces for array in outputs)
    assert len(gpu.pieces) == len(film) + 1 + len(outputs)
    assert all(array.max() < 85 for array in outputs), "the stand-in's memory is full of 85 until it is written"


def test_the_provider_of_a_card_gets_the_stream_and_no_tf32() -> None:
    card = FakeGpu(device=torch.device("cuda", 0))

    assert provider_settings(card) == {"device_id": "0", "use_tf32": "0", "user_compute_stream": str(STREAM)}
    with pytest.raises(EngineUnavailable, match=r"pip uninstall .* && pip install .*\.\[gpu\]") as refused:
        load_provider(card)  # here is the ONNX Runtime for a CPU
    assert refused.value.reason == "not_installed"


def test_the_next_runtime_answers_where_one_is_not_proven(phantom_model: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    (bare / PROOF).unlink()

    wrong = open_first(phantom_model, engine="onnx-cuda", threads=1, gpu=WrongGpu())
    unproven = open_first(bare, engine="onnx-cuda", threads=1, gpu=FakeGpu())

    assert (wrong.engine.name, unproven.engine.name) == ("onnx", "torch-cuda")
    assert [(each.engine, each.reason) for each in (*wrong.fallbacks, *unproven.fallbacks)] == [
        ("onnx-cuda", "not_proven"),
        ("torch-cuda", "not_proven"),
        ("onnx-cuda", "no_graphs"),
    ]
    assert re.search(r"ONNX Runtime .* \(float32\) on NVIDIA H100 .* differs", wrong.fallbacks[0].message)
    assert "export.build" in unproven.fallbacks[0].message


@pytest.mark.parametrize(("lost", "kind"), [(False, DeviceError), (True, DeviceLost)])
def test_an_error_of_the_runtime_is_one_of_the_gpu(phantom_model: Path, lost: bool, kind: type[DeviceError]) -> None:
    graph = Graph(graph_path(phantom_model, "encode_prompts"), FakeGpu(lost=lost))

    with pytest.raises(DeviceError) as failed:
        graph.run({"tokens": np.full((1, 12), 2**40, np.int64)})  # no such word: the graph fails while it runs
    assert type(failed.value) is kind


def test_a_gpu_without_kernels_is_refused_when_it_is_opened(phantom_model: Path) -> None:
    class Old(FakeGpu):
        def repeatable(self, step: Step) -> Step:
            raise torch.AcceleratorError("CUDA error: no kernel image is available\nCompile with `TORCH_USE_CUDA_DSA`")

    with pytest.raises(EngineUnavailable, match=r"does not work on this GPU: .*no kernel image is available$") as error:
        open_engine(phantom_model, engine="torch-cuda", gpu=Old())
    assert error.value.reason == "not_loaded"


@RUNTIMES
def test_the_network_makes_no_tensor_on_another_device(phantom_model: Path, sizes: NetworkSizes) -> None:
    """On the device `meta`, which has no numbers, an operation with a tensor of the CPU fails as it does on a GPU."""
    network = load_network(phantom_model).to("meta")
    random = np.random.default_rng(0)

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to("meta")

    with torch.inference_mode():
        film = network.encode_image(there(drawn_films(random, 2, side=sizes.image_encoder.image_size)))
        prompts = network.encode_prompts(there(drawn_phrases(random, 6, sizes))).reshape(2, 3, -1)
        found = network.find(*film, prompts)
        boxes = there(drawn_boxes(random, 2, each=3))
        described = network.describe(*film, boxes, prompts, torch.ones(2, 3, device="meta"))
        caches = network.generator.remember(described[0], room=4)
        start = torch.zeros((3, 1), dtype=torch.int64, device="meta")
        logits = network.generator(start, start, caches)

    assert {tensor.device.type for tensor in (*film, prompts, *found, described, logits)} == {"meta"}
