"""Float16 graphs in TensorRT, and the generator in PyTorch on the same GPU; both use PyTorch's memory and one stream.

Inputs and outputs are float32 arrays; the graphs determine what is float16 in between. PyTorch encodes prompts on the
CPU, in float32, once for a prompt set, and runs the view head there, which is small. The whole generator is float16, so
its ids may differ from those of the float32 generator (`static_decoding`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import tensorrt as trt
import torch
from torch import Tensor

from models.checkpoint.weights import load_generator
from models.engines import FloatArray, IntArray
from models.engines.cuda import CudaGpu, Gpu
from models.engines.engine_files import EngineFiles
from models.engines.graph_engine import GraphEngine, Inputs
from models.engines.profiles import in_parts
from models.engines.proof import FLOAT16_STAGES, graph_path, require_graphs
from models.engines.tensorrt_build import TensorRtCompiler
from models.engines.torch_engine import TorchEngine
from models.errors import ModelError
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import write_static

_TYPES: Final = MappingProxyType({trt.DataType.FLOAT: torch.float32})
"""The type of everything that the graphs take and give."""


def open_tensorrt(directory: Path, *, engines: Path, threads: int = 0, gpu: Gpu | None = None) -> GraphEngine:
    """Open a model directory without checks, building missing engines, which takes minutes.

    engines: the folder of built engines
    gpu: the first GPU of the machine if None
    Raises EngineUnavailable if there is no GPU, or if TensorRT cannot build or load an engine.
    """
    gpu = gpu or CudaGpu()
    require_graphs(directory, "float16")
    compiler, files, memory = TensorRtCompiler(gpu), EngineFiles(engines), SharedMemory(gpu)
    graphs = {
        stage: Graph(files.open(graph_path(directory, stage, "float16"), compiler), gpu, memory)
        for stage in FLOAT16_STAGES
    }
    generator = load_generator(directory).generator.half().to(gpu.device)
    on_cpu, run = TorchEngine(directory, threads=threads), in_parts(lambda stage, inputs: graphs[stage].run(inputs))
    return GraphEngine(
        "tensorrt",
        run=lambda stage, inputs: run(stage, inputs) if stage in graphs else on_cpu.run_stage(stage, inputs),
        write=partial(_write, generator, gpu),
    )


class SharedMemory:
    """One piece of memory for the work of all engines, which run one after another on one stream. It grows on demand.

    TensorRT alone would keep one for each engine, sized for the most films and prompts that it takes.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._held: Tensor | None = None

    def at_least(self, size: int) -> Tensor:
        """Return memory of this many bytes or more."""
        if self._held is None or self._held.nbytes < size:
            self._held = None  # first: the old piece and the new one need not fit together
            self._held = self._gpu.empty((max(size, 1),), torch.uint8)
        return self._held


class Graph:
    """An engine with its context. One call at a time (`GraphEngine`); every call sets shapes, addresses and memory."""

    def __init__(self, engine: trt.ICudaEngine, gpu: Gpu, memory: SharedMemory) -> None:
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        modes = {name: engine.get_tensor_mode(name) for name in names}
        self._inputs = {name: _type(engine, name) for name in names if modes[name] == trt.TensorIOMode.INPUT}
        self._outputs = {name: _type(engine, name) for name in names if modes[name] == trt.TensorIOMode.OUTPUT}
        self._engine = engine
        self._context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        self._gpu = gpu
        self._memory = memory

    def run(self, inputs: Inputs) -> list[FloatArray]:
        """Run on inputs by name. Returns the outputs in the graph's order."""
        self._check_types(inputs)
        with self._gpu.working():
            given = {name: self._gpu.put(array) for name, array in inputs.items()}
            for name, tensor in given.items():
                if not self._context.set_input_shape(name, tuple(tensor.shape)):
                    raise ModelError(f"the engine is not built for {name} of shape {tuple(tensor.shape)}")
            made = {name: self._gpu.empty(self._shape(name), dtype) for name, dtype in self._outputs.items()}
            for name, tensor in (given | made).items():
                self._context.set_tensor_address(name, tensor.data_ptr())
            memory = self._memory.at_least(self._context.update_device_memory_size_for_shapes())
            self._context.set_device_memory(memory.data_ptr(), memory.nbytes)
            if not self._context.execute_async_v3(self._gpu.stream):
                raise ModelError("TensorRT could not run an engine; see the driver's log (nvidia-smi, dmesg)")
            # On the same stream, so the copy waits for the engine.
            return [tensor.cpu().numpy() for tensor in made.values()]

    def _check_types(self, inputs: Inputs) -> None:
        """Raise ModelError for inputs of other names or types: TensorRT would read beyond or misread their memory."""
        found = {name: torch.from_numpy(np.empty(0, array.dtype)).dtype for name, array in inputs.items()}
        if found != self._inputs:
            raise ModelError(f"the engine takes {_listed(self._inputs)}; it was given {_listed(found)}")

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise ModelError(f"the engine cannot tell the shape of {name}: its inputs do not fit each other")
        return shape


def _type(engine: trt.ICudaEngine, name: str) -> torch.dtype:
    kind = engine.get_tensor_dtype(name)
    if kind not in _TYPES:
        raise ModelError(f"the engine has {name} as {kind}, which no exported graph has; export the graphs again")
    return _TYPES[kind]


def _listed(types: dict[str, torch.dtype]) -> str:
    return ", ".join(f"{name} ({str(dtype).removeprefix('torch.')})" for name, dtype in types.items())


def _write(generator: SentenceGenerator, gpu: Gpu, features: FloatArray) -> IntArray:
    with gpu.working():
        given = gpu.put(features).half()
        ids: IntArray = write_static(generator, given, max_length=generator.sizes.max_length).cpu().numpy()
    return ids
