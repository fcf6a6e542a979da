"""Exported graphs in ONNX Runtime's CUDA provider, and the sentence generator in PyTorch on the same GPU.

The graphs are float16 where these are proven, else float32. Their inputs and outputs are tensors of PyTorch, on
PyTorch's stream: nothing between the two passes through the memory of the host.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from models.engines import INSTALL_GPU, REMOVE, EngineUnavailable, FloatArray
from models.engines.comparison import FLOAT16, GPU_FLOAT32, WatchedEngine, proven
from models.engines.devices import Gpu
from models.engines.onnx_engine import require_any_length
from models.engines.proof import Precision, graphs_of, proven_precision, stages_of
from models.engines.staged_engine import Inputs
from models.engines.torch_engine import in_turns, open_gpu_writer, open_torch
from models.errors import DeviceError, ModelError
from models.manifest import read_manifest

PROVIDERS: Final = MappingProxyType({"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"})
"""The provider for tensors of each kind of device; those of the processor stand for a GPU's in tests."""
_TYPES: Final[Mapping[str, np.dtype[np.generic]]] = MappingProxyType(
    {"tensor(float)": np.dtype(np.float32), "tensor(int64)": np.dtype(np.int64)}
)
"""The types of everything that the graphs take and give."""

Shape = Sequence[int | str]
"""The lengths of a graph's axes; a free axis has its name."""


def open_onnx_cuda(
    directory: Path, *, gpu: Gpu, threads: int = 0, precision: Precision = "float32", graphs: Precision | None = None
) -> WatchedEngine:
    """Open a model directory whose hashes are right, and prove that GPU and CPU agree.

    precision: that of the sentence generator; graphs: that of the graphs, None for the best that is proven
    Raises EngineUnavailable if no graphs are proven, if ONNX Runtime cannot use the GPU, or if it differs there.
    """
    manifest = read_manifest(directory)
    try:
        best = proven_precision(directory, manifest)
    except ModelError as error:
        raise EngineUnavailable("no_graphs", str(error)) from error
    load_provider(gpu)
    chosen = graphs or best
    paths = graphs_of(directory, chosen, stages=stages_of(manifest.sizes))
    with gpu.working():
        opened = {stage: Graph(path, gpu) for stage, path in paths.items()}
    require_any_length(opened["encode_prompts"].session, paths["encode_prompts"])
    write = open_gpu_writer(directory, gpu=gpu, precision=precision)
    engine = in_turns("onnx-cuda", run=lambda stage, inputs: opened[stage].run(inputs), write=write)
    reference = open_torch(directory, threads=threads)
    allowed = FLOAT16 if chosen == "float16" else GPU_FLOAT32
    where = f"ONNX Runtime {onnxruntime.__version__} ({chosen}) on {gpu.name} with driver {gpu.driver}"
    return proven(engine, reference, manifest.sizes, allowed=allowed, where=where)


class Graph:
    """A graph in ONNX Runtime on a GPU. One call at a time (`StagedEngine`); every call binds its own tensors."""

    def __init__(self, path: Path, gpu: Gpu) -> None:
        """Raise EngineUnavailable if ONNX Runtime cannot run the graph on this GPU."""
        self.session = open_session(path, gpu)
        self._gpu = gpu
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self._inputs: dict[str, Shape] = {each.name: each.shape for each in inputs}
        self._types = {str(each.name): _TYPES[each.type] for each in inputs}
        self._outputs: dict[str, Shape] = {each.name: each.shape for each in outputs}

    def run(self, inputs: Inputs) -> list[FloatArray]:
        """Run on inputs by name. Returns the outputs in the graph's order."""
        lengths = self._lengths(inputs)
        with self._gpu.working():
            given = {name: self._gpu.put(array) for name, array in inputs.items()}
            made = {
                name: self._gpu.empty(tuple(_length(axis, lengths) for axis in shape), torch.float32)
                for name, shape in self._outputs.items()
            }
            binding = self.session.io_binding()
            for name, tensor in given.items():
                binding.bind_input(name, *_place(tensor, self._types[name]))
            for name, tensor in made.items():
                binding.bind_output(name, *_place(tensor, np.dtype(np.float32)))
            try:
                self.session.run_with_iobinding(binding)
            except Exception as error:  # the library's errors have no public base
                raise DeviceError(
                    f"ONNX Runtime could not run a graph on {self._gpu.name} ({type(error).__name__}); "
                    "see the driver's log (nvidia-smi, dmesg)"
                ) from error
            # On the same stream, so the copy waits for the graph.
            return [tensor.cpu().numpy() for tensor in made.values()]

    def _lengths(self, inputs: Inputs) -> dict[str, int]:
        """Return the length of every free axis. Raises ModelError for inputs that the graph does not take.

        ONNX Runtime would read beyond memory that is smaller than the declared shape.
        """
        if inputs.keys() != self._inputs.keys():
            raise ModelError(f"the graph takes {', '.join(self._inputs)}; it was given {', '.join(inputs)}")
        lengths: dict[str, int] = {}
        for name, array in inputs.items():
            shape, kind = self._inputs[name], self._types[name]
            for axis, length in zip(shape, array.shape, strict=False):
                if isinstance(axis, str):
                    lengths.setdefault(axis, length)
            taken = tuple(_length(axis, lengths) for axis in shape[: array.ndim])
            if len(shape) != array.ndim or taken != array.shape or kind != array.dtype or not array.size:
                raise ModelError(
                    f"the graph takes {name} as {kind} of {shape}; it was given {array.dtype} of {list(array.shape)}"
                )
        return lengths


def load_provider(gpu: Gpu) -> None:
    """Load the libraries of the provider for a GPU, those of PyTorch's CUDA. Raises EngineUnavailable without it."""
    if PROVIDERS[gpu.device.type] not in onnxruntime.get_available_providers():
        message = f"this ONNX Runtime is the one for a CPU; run {REMOVE} && {INSTALL_GPU}"
        raise EngineUnavailable("not_installed", message)
    with redirect_stdout(sys.stderr):  # it prints which libraries it misses, and standard output is the log
        onnxruntime.preload_dlls()


def open_session(path: Path, gpu: Gpu) -> onnxruntime.InferenceSession:
    """Open a graph with the provider for a GPU, and with no other in its place. Raises EngineUnavailable."""
    provider = PROVIDERS[gpu.device.type]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # what stays on the processor computes shapes
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[(provider, provider_settings(gpu))], enable_fallback=False
        )
    except Exception as error:  # the library's errors have no public base
        raise EngineUnavailable("not_loaded", f"ONNX Runtime cannot open {path.name} on {gpu.name}: {error}") from error
    if provider not in session.get_providers():  # it opens on the CPU, without an error, where libraries are missing
        raise EngineUnavailable(
            "not_loaded", f"ONNX Runtime cannot load its {provider}: CUDA 13 or cuDNN 9 is missing; run {INSTALL_GPU}"
        )
    return session


def provider_settings(gpu: Gpu) -> dict[str, str]:
    """Return the provider's options: PyTorch's stream, and no TF32, which has the ten bits of float16."""
    if gpu.device.type != "cuda":
        return {}
    return {"device_id": str(gpu.device.index), "use_tf32": "0", "user_compute_stream": str(gpu.stream)}


def _place(tensor: Tensor, kind: np.dtype[np.generic]) -> tuple[str, int, type[np.generic], tuple[int, ...], int]:
    """Return the arguments of a binding for a tensor: device, its number, type, shape and address."""
    return tensor.device.type, tensor.device.index or 0, kind.type, tuple(tensor.shape), tensor.data_ptr()


def _length(axis: int | str, lengths: Mapping[str, int]) -> int:
    return axis if isinstance(axis, int) else lengths[axis]
