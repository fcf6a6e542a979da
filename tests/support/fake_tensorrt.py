"""A stand-in for TensorRT and a GPU: it keeps to the interface strictly, and ONNX Runtime computes on the CPU.

What TensorRT forbids, or does silently wrong, fails here: other types than the graph's, an address that is not memory
of the GPU or too small for its tensor, shapes outside of the profile, memory of a context that is missing, too small or
shared with a tensor, and two calls at a time. An engine file is opened only with the name of the GPU it was built for.
"""

from __future__ import annotations

import ctypes
import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType

import numpy as np
import onnx
import onnxruntime

from tests.support.fake_gpu import STREAM, FakeGpu

VERSION = "11.4.0.106"
_NUMPY = {1: np.float32, 7: np.int64}


@dataclass
class Machine:
    """What is in the machine, and what was done on it. The switches make it fail as TensorRT does.

    no_runtime, no_builder: the bindings make neither and raise TypeError
    refused: errors of a build, by a text in the graph; unloadable: engines that are not loaded any more
    fails: no engine runs any more
    error: added to every number that an engine gives
    """

    gpu: FakeGpu = field(default_factory=FakeGpu)
    no_runtime: bool = False
    no_builder: bool = False
    refused: dict[bytes, str] = field(default_factory=dict)
    unloadable: int = 0
    fails: bool = False
    error: float = 0.0
    builds: int = 0
    most_films: int = 0
    runs: int = 0


class Severity(enum.Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class ILogger:
    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class NetworkDefinitionCreationFlag(enum.Enum):
    STRONGLY_TYPED = 0

    def __int__(self) -> int:
        return int(self.value)


class BuilderFlag(enum.Enum):
    TF32 = 5


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class DataType(enum.Enum):
    FLOAT = 1
    INT64 = 7
    HALF = 10
    DOUBLE = 11


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    USER_MANAGED = 2


class FakeTensor:
    """An input or output of a graph; -1 is a free axis."""

    def __init__(self, value: onnx.ValueInfoProto) -> None:
        self.name = value.name
        self.axes = value.type.tensor_type.shape.dim
        self.dtype = DataType(value.type.tensor_type.elem_type)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.dim_value if axis.HasField("dim_value") else -1 for axis in self.axes)

    def get_dimension_name(self, index: int) -> str | None:
        return self.axes[index].dim_param or None


class Network:
    def __init__(self) -> None:
        self.content = b""
        self.inputs: list[FakeTensor] = []

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> FakeTensor:
        return self.inputs[index]


class OnnxParser:
    def __init__(self, network: Network, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        self._network = network
        self.num_errors = 0

    def parse(self, model: bytes, path: str | None = None) -> bool:
        assert isinstance(model, bytes)
        try:
            self._network.inputs = [FakeTensor(value) for value in onnx.load_from_string(model).graph.input]
        except Exception:  # what protobuf raises is not public
            self.num_errors = 1
            return False
        self._network.content = model
        return True

    def get_error(self, index: int) -> str:
        assert index < self.num_errors
        return "In node -1 with name: and operator: (parse): MODEL_DESERIALIZE_FAILED"


class Profile:
    def __init__(self) -> None:
        self.ranges: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        assert all(type(size) is int for shape in (min, opt, max) for size in shape)
        self.ranges[input] = [tuple(min), tuple(opt), tuple(max)]


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytearray:
        return bytearray(self.content + b".")


class Config:
    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.flags = {BuilderFlag.TF32}
        self.cache: TimingCache | None = None

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.remove(flag)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache:
        assert isinstance(serialized_timing_cache, bytes)
        return TimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True

    def get_timing_cache(self) -> TimingCache | None:
        return self.cache

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Builder:
    machine: Machine

    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        self._logger = logger
        if self.machine.no_builder:
            logger.log(Severity.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> Network:
        assert flags == 1, "only strongly typed"
        return Network()

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytearray | None:
        (profile,) = config.profiles
        assert BuilderFlag.TF32 not in config.flags
        assert config.cache is not None
        for tensor in network.inputs:
            least, usual, most = profile.ranges[tensor.name]
            assert len(least) == len(usual) == len(most) == len(tensor.shape)
            for low, middle, high, size in zip(least, usual, most, tensor.shape, strict=True):
                assert 0 < low <= middle <= high and (size == -1 or low == high == size)
        for text, error in self.machine.refused.items():
            if text in network.content:
                self._logger.log(Severity.ERROR, error)
                return None
        self._logger.log(Severity.WARNING, "not an error")
        self.machine.builds += 1
        head = json.dumps({"gpu": self.machine.gpu.name, "ranges": profile.ranges}).encode()
        return bytearray(len(head).to_bytes(8, "little") + head + network.content)


class Runtime:
    machine: Machine

    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        self._logger = logger
        if self.machine.no_runtime:
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> FakeEngine | None:
        assert isinstance(serialized_engine, bytes)
        if self.machine.unloadable:
            self.machine.unloadable -= 1
            self._logger.log(Severity.ERROR, "Serialization assertion stdVersionRead == kVERSION failed")
            return None
        size = int.from_bytes(serialized_engine[:8], "little")
        head = json.loads(serialized_engine[8 : 8 + size])
        assert head["gpu"] == self.machine.gpu.name, "an engine of another GPU crashes, or computes something else"
        return FakeEngine(serialized_engine[8 + size :], head["ranges"], self.machine, self._logger)


class FakeEngine:
    def __init__(self, graph: bytes, ranges: Mapping[str, list[list[int]]], machine: Machine, logger: ILogger) -> None:
        model = onnx.load_from_string(graph).graph
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: FakeTensor(value) for value in model.input}
        self.outputs = {value.name: FakeTensor(value) for value in model.output}
        self.ranges, self.machine, self.logger = ranges, machine, logger

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return (self.inputs | self.outputs)[name].dtype

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> Context:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED, "each context would keep its own memory"
        return Context(self)


class Context:
    """Keeps shapes, addresses and memory from call to call, as the real one does."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._needs = -1
        self._memory = (0, 0)
        self._busy = Lock()

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert type(shape) is tuple
        least, _, most = self._engine.ranges[name]
        if len(shape) != len(least) or not all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        ):
            self._engine.logger.log(Severity.ERROR, f"setInputShape: {name} {shape} is not in the profile")
            return False
        self._shapes[name] = shape
        self._needs = -1
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        lengths: dict[str, int] = {}
        for tensor in self._engine.inputs.values():
            for axis, size in zip(tensor.axes, self._shapes[tensor.name], strict=True):
                if axis.dim_param and lengths.setdefault(axis.dim_param, size) != size:
                    return (-1,)
        axes = self._engine.outputs[name].axes
        return tuple(lengths[axis.dim_param] if axis.dim_param else axis.dim_value for axis in axes)

    def update_device_memory_size_for_shapes(self) -> int:
        assert self._shapes.keys() == self._engine.inputs.keys()
        self._needs = sum(16 * int(np.prod(shape)) for shape in self._shapes.values())
        return self._needs

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._needs >= 0, "the memory is too small for these shapes"
        self._memory = (memory, size)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert type(memory) is int and memory
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert self._busy.acquire(blocking=False), "two calls at a time"
        try:
            assert stream_handle == STREAM
            if self._engine.machine.fails:
                return False
            engine, gpu = self._engine, self._engine.machine.gpu
            used = {name: self._bytes_of(name) for name in (*engine.inputs, *engine.outputs)}
            start, size = self._memory
            assert self._needs >= 0 and gpu.room(start) >= size >= self._needs
            for name, count in used.items():
                address = self._addresses[name]
                assert gpu.room(address) == count, name
                assert address + count <= start or start + size <= address, f"{name} lies in the context's memory"
            ctypes.memset(start, 0xAA, size)
            self._compute()
        finally:
            self._busy.release()
        return True

    def _bytes_of(self, name: str) -> int:
        engine = self._engine
        shape = self._shapes[name] if name in engine.inputs else self.get_tensor_shape(name)
        return int(np.prod(shape)) * np.dtype(_NUMPY[engine.get_tensor_dtype(name).value]).itemsize

    def _compute(self) -> None:
        engine, machine = self._engine, self._engine.machine
        feed = {
            name: np.frombuffer(
                ctypes.string_at(self._addresses[name], self._bytes_of(name)), _NUMPY[tensor.dtype.value]
            ).reshape(self._shapes[name])
            for name, tensor in engine.inputs.items()
        }
        machine.runs += 1
        machine.most_films = max(machine.most_films, len(next(iter(feed.values()))))
        for name, found in zip(engine.outputs, engine.session.run(list(engine.outputs), feed), strict=True):
            array = np.ascontiguousarray(found + np.float32(machine.error))
            assert array.shape == self.get_tensor_shape(name) and array.dtype == np.float32
            ctypes.memmove(self._addresses[name], array.ctypes.data, array.nbytes)


def tensorrt_of(machine: Machine) -> ModuleType:
    """Make the module for a machine."""
    module = ModuleType("tensorrt")
    module.__spec__ = ModuleSpec("tensorrt", None)
    builder = type("Builder", (Builder,), {"machine": machine})
    runtime = type("Runtime", (Runtime,), {"machine": machine})
    logger = type("ILogger", (ILogger,), {"Severity": Severity})
    members = (NetworkDefinitionCreationFlag, BuilderFlag, TensorIOMode, DataType, OnnxParser)
    vars(module).update({member.__name__: member for member in members})
    vars(module).update(
        __version__=VERSION,
        ILogger=logger,
        Builder=builder,
        Runtime=runtime,
        ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
        INetworkDefinition=Network,
        IOptimizationProfile=Profile,
        ICudaEngine=FakeEngine,
        ITensor=FakeTensor,
    )
    return module


@contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """Install TensorRT for a machine, and load the modules that use it anew; both are gone afterwards."""
    users = ("models.engines.tensorrt_build", "models.engines.tensorrt_engine")
    kept = {name: sys.modules.pop(name) for name in ("tensorrt", *users) if name in sys.modules}
    sys.modules["tensorrt"] = tensorrt_of(machine)
    try:
        yield machine
    finally:
        for name in ("tensorrt", *users):
            sys.modules.pop(name, None)
        sys.modules.update(kept)
