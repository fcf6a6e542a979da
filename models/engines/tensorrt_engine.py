"""Float16 graphs in TensorRT, and the generator in PyTorch on the same GPU; both use PyTorch's memory and one stream.

Inputs and outputs are float32 arrays; the graphs determine what is float16 in between. The whole generator is float16,
so its ids may differ from those of the float32 generator (`static_decoding`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import tensorrt as trt
import torch

from models.checkpoint.weights import load_generator
from models.engines import EngineUnavailable, FloatArray, IntArray
from models.engines.engine_files import EngineFiles
from models.engines.graph_engine import GraphEngine, Inputs
from models.engines.profiles import in_parts
from models.engines.proof import STAGES, graph_path, require_graphs
from models.engines.tensorrt_build import TensorRtCompiler
from models.errors import ModelError
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import write_static


def open_tensorrt(directory: Path, *, engines: Path) -> GraphEngine:
    """Open a model directory without checks, building missing engines, which takes minutes.

    engines: the folder of built engines
    Raises EngineUnavailable if there is no GPU, or if TensorRT cannot build or load an engine.
    """
    compiler = TensorRtCompiler()
    loaded = build_engines(directory, engines=engines, compiler=compiler)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
    graphs = {stage: _Graph(engine, stream) for stage, engine in loaded.items()}
    generator = load_generator(directory).generator.half().to("cuda")
    run = in_parts(lambda stage, inputs: graphs[stage].run(inputs))
    return GraphEngine("tensorrt", run=run, write=partial(_write, generator, stream))


def build_engines(directory: Path, *, engines: Path, compiler: TensorRtCompiler) -> dict[str, trt.ICudaEngine]:
    """Load the engine of every stage, building those without a valid file."""
    require_graphs(directory, "float16")
    files = EngineFiles(engines)
    loaded: dict[str, trt.ICudaEngine] = {}
    for stage in STAGES:
        engine = files.open(graph_path(directory, stage, "float16"), compiler)
        if engine is None:
            raise EngineUnavailable(
                "not_loaded", f"TensorRT {compiler.version} does not load its own engine of {stage}"
            )
        loaded[stage] = engine
    return loaded


class _Graph:
    """An engine with its context; every call sets shapes and addresses."""

    def __init__(self, engine: trt.ICudaEngine, stream: torch.cuda.Stream) -> None:
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._outputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
        self._engine = engine
        self._context = engine.create_execution_context()
        self._stream = stream

    def run(self, inputs: Inputs) -> list[FloatArray]:
        """Run on inputs by name. Returns the outputs in the graph's order."""
        context = self._context
        with torch.cuda.stream(self._stream):
            given = {name: torch.from_numpy(np.ascontiguousarray(array)).cuda() for name, array in inputs.items()}
            for name, tensor in given.items():
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise ModelError(f"the engine is not built for {name} of shape {tuple(tensor.shape)}")
                context.set_tensor_address(name, tensor.data_ptr())
            made = {
                name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=torch.float32, device="cuda")
                for name in self._outputs
            }
            for name, tensor in made.items():
                context.set_tensor_address(name, tensor.data_ptr())
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise ModelError("TensorRT could not run an engine; see the driver's log (nvidia-smi, dmesg)")
            # On the same stream, so the copy waits for the engine.
            return [tensor.cpu().numpy() for tensor in made.values()]


def _write(generator: SentenceGenerator, stream: torch.cuda.Stream, features: FloatArray) -> IntArray:
    with torch.cuda.stream(stream):
        given = torch.from_numpy(np.ascontiguousarray(features)).to("cuda", torch.float16)
        ids: IntArray = write_static(generator, given, max_length=generator.sizes.max_length).cpu().numpy()
    return ids
