"""Float16 graphs in TensorRT, and the generator in PyTorch on the same GPU; both use one stream.

Networks are strongly typed: the graph determines what is float16 and what is float32. TensorRT's errors are collected
and raised together, because it would print them on standard output, which belongs to the log. Inputs and outputs
are float32 arrays. PyTorch encodes prompts on the CPU, in float32, once for a prompt set, and runs the view head there,
which is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import tensorrt as trt
import torch

from models.engines import EngineUnavailable, FloatArray
from models.engines.comparison import FLOAT16, WatchedEngine, proven
from models.engines.devices import Gpu
from models.engines.engine_files import EngineFiles
from models.engines.proof import FLOAT16_STAGES, Precision, graph_path, require_graphs
from models.engines.staged_engine import RANGES, Inputs, Range
from models.engines.torch_engine import in_turns, open_gpu_writer, open_torch
from models.errors import DeviceError, ModelError
from models.manifest import read_manifest

_KEPT_LINES: Final = 30


def open_tensorrt(
    directory: Path, *, engines: Path, gpu: Gpu, threads: int = 0, precision: Precision = "float32"
) -> WatchedEngine:
    """Open a model directory without checks. Missing engines are built, which takes minutes, and then proven.

    engines: the folder of built engines
    precision: that of the sentence generator
    Raises EngineUnavailable if TensorRT cannot build or load an engine, or if one differs from the network here.
    """
    require_graphs(directory, "float16")
    compiler, files = TensorRtCompiler(gpu), EngineFiles(engines)
    graphs = {
        stage: Graph(files.open(graph_path(directory, stage, "float16"), compiler), gpu) for stage in FLOAT16_STAGES
    }
    reference = open_torch(directory, threads=threads)

    def run(stage: str, inputs: Inputs) -> Sequence[FloatArray]:
        return graphs[stage].run(inputs) if stage in graphs else reference.run_stage(stage, inputs)

    write = open_gpu_writer(directory, gpu=gpu, precision=precision)
    engine = in_turns("tensorrt", run=run, write=write, most=dict.fromkeys(graphs, RANGES["film"].most))
    where = f"TensorRT {compiler.version} on {gpu.name} with driver {gpu.driver}"
    return proven(engine, reference, read_manifest(directory).sizes, allowed=FLOAT16, where=where)


class Graph:
    """An engine with its context. One call at a time (`StagedEngine`); every call sets shapes and addresses."""

    def __init__(self, engine: trt.ICudaEngine, gpu: Gpu) -> None:
        """Raise EngineUnavailable for an engine of other types, and if the GPU has no memory for its work."""
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        if any(engine.get_tensor_dtype(name) != trt.DataType.FLOAT for name in names):
            raise EngineUnavailable(
                "not_loaded", "the engine takes or gives other types than float32; export the graphs again"
            )
        self._inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if name not in self._inputs]
        self._engine = engine  # it must not be freed before its context
        self._context = engine.create_execution_context()
        if self._context is None:
            raise EngineUnavailable("not_loaded", f"the memory of {gpu.name} is full; let no other process use it")
        self._gpu = gpu

    def run(self, inputs: Inputs) -> list[FloatArray]:
        """Run on inputs by name. Returns the outputs in the graph's order."""
        self._check_types(inputs)
        with self._gpu.working():
            given = {name: self._gpu.put(array) for name, array in inputs.items()}
            for name, tensor in given.items():
                if not self._context.set_input_shape(name, tuple(tensor.shape)):
                    raise ModelError(f"the engine is not built for {name} of shape {tuple(tensor.shape)}")
            made = {name: self._gpu.empty(self._shape(name), torch.float32) for name in self._outputs}
            for name, tensor in (given | made).items():
                self._context.set_tensor_address(name, tensor.data_ptr())
            if not self._context.execute_async_v3(self._gpu.stream):
                raise DeviceError("TensorRT could not run an engine; see the driver's log (nvidia-smi, dmesg)")
            # On the same stream, so the copy waits for the engine.
            return [tensor.cpu().numpy() for tensor in made.values()]

    def _check_types(self, inputs: Inputs) -> None:
        """Raise ModelError for inputs of other names or types: TensorRT would read beyond or misread their memory."""
        given = {name: str(array.dtype) for name, array in inputs.items()}
        if given != dict.fromkeys(self._inputs, "float32"):
            listed = ", ".join(f"{name} ({kind})" for name, kind in given.items())
            raise ModelError(f"the engine takes {', '.join(self._inputs)} as float32; it was given {listed}")

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise ModelError(f"the engine cannot tell the shape of {name}: its inputs do not fit each other")
        return shape


class TensorRtCompiler:
    """A `Compiler` for one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        """Raise EngineUnavailable if TensorRT does not start on this machine."""
        self._gpu = gpu
        self._log = ErrorLog()
        try:
            # A loaded engine must not outlive its runtime.
            self._runtime = trt.Runtime(self._log)
        except TypeError as error:  # raised by the bindings if the library makes none
            raise EngineUnavailable("no_gpu", f"TensorRT does not start here: {self._log.take() or error}") from error

    @property
    def gpu(self) -> str:
        """See `Compiler`."""
        return self._gpu.name

    @property
    def version(self) -> str:
        """See `Compiler`."""
        return str(trt.__version__)

    def build(self, graph: bytes) -> bytes:
        """See `Compiler`."""
        return build_engine(graph, log=self._log)

    def load(self, engine: bytes) -> trt.ICudaEngine:
        """See `Compiler`."""
        self._log.take()
        loaded = self._runtime.deserialize_cuda_engine(engine)
        if loaded is None:
            raise EngineUnavailable("not_loaded", f"TensorRT {self.version} does not load: {self._log.take()}")
        return loaded


class ErrorLog(trt.ILogger):  # type: ignore[misc]  # TensorRT has no type information
    """Collects TensorRT's error messages; its other messages are dropped."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._lines: list[str] = []

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Receive a message; TensorRT calls this from any thread."""
        if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
            self._lines = [*self._lines[1 - _KEPT_LINES :], msg]

    def take(self) -> str:
        """Return the collected messages and clear them."""
        lines, self._lines = self._lines, []
        return "; ".join(lines)


def build_engine(graph: bytes, *, log: ErrorLog) -> bytes:
    """Build an engine of a float16 graph, as `Compiler.build` does; TensorRT-RTX needs no GPU for it."""
    log.take()
    try:
        builder = trt.Builder(log)
    except TypeError as error:  # as for the runtime
        raise EngineUnavailable("not_built", f"TensorRT's builder does not start: {log.take() or error}") from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(graph):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise EngineUnavailable("not_built", f"TensorRT cannot parse the graph: {errors or log.take()}")
    config = builder.create_builder_config()
    # What the graph keeps in float32 must stay float32: TF32 has the ten bits of float16.
    config.clear_flag(trt.BuilderFlag.TF32)
    config.add_optimization_profile(_profile(builder, network))
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise EngineUnavailable("not_built", f"TensorRT could not build the engine: {log.take()}")
    return bytes(engine)


def _profile(builder: trt.Builder, network: trt.INetworkDefinition) -> trt.IOptimizationProfile:
    """Set the range of every dynamic axis, by the name that the export gave it."""
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        free = {axis: _range(tensor, axis) for axis, size in enumerate(tensor.shape) if size < 0}
        least, usual, most = (
            tuple(getattr(free[axis], end) if axis in free else size for axis, size in enumerate(tensor.shape))
            for end in ("least", "usual", "most")
        )
        profile.set_shape(tensor.name, least, usual, most)
    return profile


def _range(tensor: trt.ITensor, axis: int) -> Range:
    """Return the range of a dynamic axis. Raises EngineUnavailable for one without a known name."""
    name = tensor.get_dimension_name(axis) or ""
    if name not in RANGES:
        raise EngineUnavailable(
            "not_built",
            f'axis {axis} of input {tensor.name} has no range: its name is "{name}"; export the graphs again',
        )
    return RANGES[name]
