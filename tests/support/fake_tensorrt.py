"""A small stand-in for TensorRT: an engine is its graph, and ONNX Runtime computes with it on the CPU.

NVIDIA's own builder takes the graphs in `tests/models/test_tensorrt_rtx.py`; what only a GPU shows is in `test_gpu.py`.
"""

from __future__ import annotations

import ctypes
import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import onnxruntime

from tests.support.fake_gpu import STREAM, FakeGpu

_USER = "models.engines.tensorrt_engine"


class Mode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class Logger:
    Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR")


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

    def update_device_memory_size_for_shapes(self) -> int:
        return 16

    def set_device_memory(self, memory: int, size: int) -> None:
        assert self._machine.gpu.room(memory) >= size >= 16

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
        modes = {value.name: Mode.INPUT for value in session.get_inputs()}
        modes |= {value.name: Mode.OUTPUT for value in session.get_outputs()}
        return SimpleNamespace(
            num_io_tensors=len(modes),
            get_tensor_name=list(modes).__getitem__,
            get_tensor_mode=modes.__getitem__,
            get_tensor_dtype=lambda _name: "float32",
            create_execution_context=lambda _strategy: Context(machine, session),
        )

    def parse(network: SimpleNamespace, content: bytes) -> bool:
        network.content = content
        return True

    def build(network: SimpleNamespace, _config: object) -> bytes:
        machine.builds += 1
        content: bytes = network.content
        return content

    config = MagicMock(**{"get_timing_cache.return_value": None})
    builder = SimpleNamespace(
        create_network=lambda _flags: SimpleNamespace(num_inputs=0),
        create_builder_config=lambda: config,
        create_optimization_profile=MagicMock(),
        build_serialized_network=build,
    )
    module = ModuleType("tensorrt")
    vars(module).update(
        __version__="11.4.0.106",
        ILogger=Logger,
        Runtime=lambda _log: SimpleNamespace(deserialize_cuda_engine=load),
        Builder=lambda _log: builder,
        OnnxParser=lambda network, _log: SimpleNamespace(parse=lambda content: parse(network, content)),
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=0),
        BuilderFlag=SimpleNamespace(TF32=0),
        DataType=SimpleNamespace(FLOAT="float32"),
        TensorIOMode=Mode,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED=2),
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
