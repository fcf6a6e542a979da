"""The interface of an engine, which is a runtime of the network, and the function that opens one.

Arrays are numpy; torch and onnxruntime are imported on demand. Nothing is answered unless the files of the model
directory match the hashes of its manifest, and exported graphs are opened only with the proof that they compute what
the weights compute (design §4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.files import compare_hashes, require_plain_files, verify
from models.contract import StageDifference
from models.engines.proof import Precision, check_proof
from models.engines.wheels import INSTALL_GPU, check_wheels
from models.errors import DeviceError, ModelError
from models.manifest import read_manifest

if TYPE_CHECKING:
    from models.engines.devices import Gpu

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
EngineName = Literal["torch", "onnx"]
GpuEngineName = Literal["tensorrt", "onnx-cuda", "torch-cuda"]
Unavailable = Literal["not_installed", "no_gpu", "no_graphs", "not_built", "not_loaded", "not_proven"]

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""Engines that run on any machine."""
GPU_ENGINES: Final[tuple[GpuEngineName, ...]] = get_args(GpuEngineName)
"""Engines that need a GPU and its libraries."""


class EngineUnavailable(ModelError):
    """This machine cannot run this engine. The model directory is not at fault, so another engine may work.

    reason: one of a short list; the message says what to do
    """

    def __init__(self, reason: Unavailable, message: str) -> None:
        super().__init__(message)
        self.reason: Unavailable = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """Encoded films: what the other functions need of a picture.

    features: [film, patch, dim], row by row; positions: [film, patch, dim]; cls: [film, dim]
    """

    features: FloatArray
    positions: FloatArray
    cls: FloatArray

    def copies(self, times: int) -> Patches:
        """Repeat the films this many times, so that each copy can be asked independently."""
        return Patches(
            features=np.concatenate([self.features] * times),
            positions=np.concatenate([self.positions] * times),
            cls=np.concatenate([self.cls] * times),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regions:
    """The detections of prompts (spec §4.5, 6).

    boxes: [film, prompt, box, 4], clipped; scores: [film, prompt, box]; aggregated_scores: [film, prompt];
    features: [film, prompt, dim], after the post decoder
    """

    boxes: FloatArray
    scores: FloatArray
    aggregated_scores: FloatArray
    features: FloatArray


class Engine(Protocol):
    """A runtime with one opened model. May be called from several threads."""

    @property
    def name(self) -> str:
        """The name it was opened by; it is printed in every output."""

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        """The largest differences from the network by stage, as far as they are known; empty for the network itself."""

    def encode_image(self, pixels: FloatArray) -> Patches:
        """Encode normalized films, pixels: [film, side, side]."""

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """Encode phrases, tokens: [phrase, token], at most 77, the end token in each. Returns [phrase, dim]."""

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """Locate prompts: [film, prompt, dim]. Prompts of one film see each other in the post decoder (spec §6)."""

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """Compute the features of given boxes (spec §5).

        boxes: [film, box, 4]; prompts: [film, box, dim]; prompted: [film, box], 1 if the prompt counts, else 0
        Returns features [film, box, dim].
        """

    def view(self, patches: Patches) -> FloatArray:
        """Tell the views of films: outputs [film, 6] of `models.views`; only if the model has a view head."""

    def write(self, features: FloatArray) -> IntArray:
        """Generate a sentence per feature vector: [sentence, dim] to token ids [sentence, token]."""


def open_engine(
    directory: Path,
    *,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    precision: Precision = "float32",
    gpu: Gpu | None = None,
) -> Engine:
    """Open a model directory with an engine.

    threads: 0 means all cores, but one for a network below 50 million parameters, which is faster with one
    engines: the folder of TensorRT's built engines; TensorRT requires it
    precision: that of the sentence generator: float32, on a GPU also float16, on a CPU also int8; an engine on the
    CPU takes float16 as float32
    gpu: the first GPU of the machine if None
    Raises ModelError if files do not match the manifest, if graphs lack their proof, or if there is no such engine; its
    subclass EngineUnavailable if only this machine is the reason.
    """
    _require_known(engine, threads)
    manifest = read_manifest(directory)

    def opened() -> Engine:
        return _open(directory, engine=engine, threads=threads, engines=engines, precision=precision, gpu=gpu)

    # Threads that end: one that computed with PyTorch keeps its helpers as long as it lives. With more of them than
    # cores, OpenMP lets each sleep between two products, and products of a few rows take up to half as long again.
    with ThreadPoolExecutor(max_workers=3) as pool:
        if engine in GPU_ENGINES:
            verify(directory, manifest)
            if engine == "tensorrt":
                _check_float16(directory)
            return pool.submit(opened).result()
        require_plain_files(directory, manifest)
        # Gigabytes of weights are hashed while they are opened. Graphs are opened only after their proof was checked.
        comparing = pool.submit(compare_hashes, directory, manifest)
        if engine == "onnx":
            proving = pool.submit(check_proof, directory, manifest)
            with suppress(ImportError):  # it is imported again when the graphs are opened
                import_module("models.engines.onnx_engine")
            proving.result()
        opening = pool.submit(opened)
        comparing.result()
        return opening.result()


def open_unproven(directory: Path, *, engine: str, engines: Path | None = None) -> Engine:
    """Open like `open_engine`, but without the proof of the graphs: for the code that makes the proof."""
    _require_known(engine, threads=0)
    verify(directory, read_manifest(directory))
    with ThreadPoolExecutor(max_workers=1) as pool:  # see `open_engine`
        opening = pool.submit(
            lambda: _open(directory, engine=engine, threads=0, engines=engines, precision="float32", gpu=None)
        )
        return opening.result()


def _require_known(engine: str, threads: int) -> None:
    if threads < 0:
        raise ModelError(f"threads is {threads}; give 0 to let the program choose, or the number of threads")
    if engine not in (*ENGINES, *GPU_ENGINES):
        raise ModelError(f'there is no engine "{engine}"; choose one of {", ".join((*ENGINES, *GPU_ENGINES))}')
    check_wheels()


def _open(
    directory: Path,
    *,
    engine: str,
    threads: int,
    engines: Path | None,
    precision: Precision,
    gpu: Gpu | None,
) -> Engine:
    """Open a directory whose files are those of the manifest."""
    if precision == "int8" and engine not in ENGINES:
        raise ModelError(f"precision int8 is for a CPU; choose engine {' or '.join(ENGINES)}")
    if engine == "onnx":
        from models.engines.onnx_engine import open_onnx

        return open_onnx(directory, threads=threads, sentences=precision)
    from models.engines.torch_engine import open_torch

    if engine == "torch":
        return open_torch(directory, threads=threads, sentences=precision)
    try:
        return _open_on_gpu(directory, engine, threads=threads, engines=engines, precision=precision, gpu=gpu)
    except DeviceError as error:
        raise EngineUnavailable("not_loaded", str(error)) from error
    except RuntimeError as error:  # of CUDA, such as a GPU that PyTorch's build has no kernels for
        line = str(error).partition("\n")[0]
        raise EngineUnavailable("not_loaded", f"{engine} does not work on this GPU: {line}") from error


def _open_on_gpu(
    directory: Path, engine: str, *, threads: int, engines: Path | None, precision: Precision, gpu: Gpu | None
) -> Engine:
    from models.engines.devices import CudaGpu

    if engine == "torch-cuda":
        from models.engines.torch_engine import open_torch_cuda

        return open_torch_cuda(directory, gpu=gpu or CudaGpu(), threads=threads, precision=precision)
    if engine == "onnx-cuda":
        with _library("ONNX Runtime"):
            from models.engines.onnx_cuda_engine import open_onnx_cuda
        return open_onnx_cuda(directory, gpu=gpu or CudaGpu(), threads=threads, precision=precision)
    if engines is None:
        raise ModelError("TensorRT needs a folder for its engines; name one, such as storage.directory/engines")
    with _library("TensorRT"):
        from models.engines.tensorrt_engine import open_tensorrt
    return open_tensorrt(directory, engines=engines, gpu=gpu or CudaGpu(), threads=threads, precision=precision)


@contextmanager
def _library(name: str) -> Iterator[None]:
    """Raise EngineUnavailable if a library cannot be imported."""
    try:
        yield
    except ImportError as error:
        message = f"{name} cannot be imported ({error}); run {INSTALL_GPU} on a machine with an NVIDIA GPU"
        raise EngineUnavailable("not_installed", message) from error


def _check_float16(directory: Path) -> None:
    """Check the proof of the float16 graphs; if a directory has none of them, another engine may still run it."""
    try:
        check_proof(directory, read_manifest(directory), "float16")
    except ModelError as error:
        raise EngineUnavailable("no_graphs", str(error)) from error
