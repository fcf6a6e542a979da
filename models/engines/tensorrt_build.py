"""TensorRT's builder and loader: builds an engine for this machine's GPU from a float16 graph.

Networks are strongly typed: the graph determines what is float16 and what is float32. Errors are collected and raised
together, because TensorRT would print them on standard output, which belongs to the log.
"""

from __future__ import annotations

import tensorrt as trt

from models.engines import EngineUnavailable
from models.engines.devices import Gpu
from models.engines.profiles import RANGES, Range

_KEPT_LINES = 30


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

    def build(self, graph: bytes, *, timings: bytes) -> tuple[bytes, bytes]:
        """See `Compiler`."""
        return build_engine(graph, timings=timings, log=self._log)

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


def build_engine(graph: bytes, *, timings: bytes, log: ErrorLog) -> tuple[bytes, bytes]:
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
    config.set_timing_cache(config.create_timing_cache(timings), False)
    config.add_optimization_profile(_profile(builder, network))
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise EngineUnavailable("not_built", f"TensorRT could not build the engine: {log.take()}")
    cache = config.get_timing_cache()
    return bytes(engine), bytes(cache.serialize()) if cache is not None else b""


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
