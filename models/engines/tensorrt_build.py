"""TensorRT's builder and loader: a float16 graph in, an engine for the GPU at hand out.

Networks are strongly typed: the graph says what is float16 and what is float32, and no flag changes it. Errors are
collected and raised whole, for TensorRT prints them on standard output, which belongs to the log.
"""

from __future__ import annotations

import tensorrt as trt
import torch

from models.engines import EngineUnavailable
from models.engines.profiles import RANGES

_KEPT_LINES = 30


class TensorRtCompiler:
    """A `Compiler` for the first GPU."""

    def __init__(self) -> None:
        """Raise EngineUnavailable where PyTorch finds no GPU: it holds the memory that TensorRT computes in."""
        if not torch.cuda.is_available():
            raise EngineUnavailable(
                "no_gpu", "PyTorch finds no GPU; install its CUDA build and the driver, or use onnx"
            )
        self._log = _Lines()
        try:
            # A loaded engine lives no longer than its runtime.
            self._runtime = trt.Runtime(self._log)
        except TypeError as error:  # so its bindings say that there is none
            raise EngineUnavailable("no_gpu", f"TensorRT does not start here: {self._log.take() or error}") from error

    @property
    def gpu(self) -> str:
        """As in `Compiler`."""
        return str(torch.cuda.get_device_name(0))

    @property
    def version(self) -> str:
        """As in `Compiler`."""
        return trt.__version__

    def build(self, graph: bytes, *, timings: bytes) -> tuple[bytes, bytes]:
        """As in `Compiler`."""
        builder = trt.Builder(self._log)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._log)
        if not parser.parse(graph):
            errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
            raise EngineUnavailable("not_built", f"TensorRT does not take the graph: {errors}; export it again")
        config = builder.create_builder_config()
        # What the graph keeps in float32 is to be float32: TF32 has the ten bits of float16.
        config.clear_flag(trt.BuilderFlag.TF32)
        config.set_timing_cache(config.create_timing_cache(timings), False)
        config.add_optimization_profile(_profile(builder, network))
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise EngineUnavailable("not_built", f"TensorRT could not build the engine: {self._log.take()}")
        cache = config.get_timing_cache()
        return bytes(engine), bytes(cache.serialize()) if cache is not None else b""

    def load(self, engine: bytes) -> trt.ICudaEngine | None:
        """As in `Compiler`."""
        return self._runtime.deserialize_cuda_engine(engine)


class _Lines(trt.ILogger):
    """Keeps what TensorRT says of errors; the rest is of no use to anybody but its authors."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._lines: list[str] = []

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Hear a line; called by TensorRT, from any thread."""
        if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
            self._lines = [*self._lines[1 - _KEPT_LINES :], msg]

    def take(self) -> str:
        """Give the lines so far and begin anew."""
        lines, self._lines = self._lines, []
        return "; ".join(lines)


def _profile(builder: trt.Builder, network: trt.INetworkDefinition) -> trt.IOptimizationProfile:
    """Say how large every free axis may be, by the name that the export gave it."""
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        free = {axis: RANGES[tensor.get_dimension_name(axis)] for axis, size in enumerate(tensor.shape) if size < 0}
        least, usual, most = (
            tuple(getattr(free[axis], end) if axis in free else size for axis, size in enumerate(tensor.shape))
            for end in ("least", "usual", "most")
        )
        profile.set_shape(tensor.name, least, usual, most)
    return profile
