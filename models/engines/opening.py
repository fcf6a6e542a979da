"""Opens an engine: the one that is named, or the first of several that this machine can run.

Nothing is answered unless the files of the model directory match the hashes of its manifest, and exported graphs are
opened only with the proof that they compute what the weights compute (design §4). torch and onnxruntime are imported on
demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from models.checkpoint.files import compare_hashes, require_plain_files, verify
from models.contract import Fallback
from models.engines import ENGINES, GPU_ENGINES, INSTALL_GPU, Engine, EngineUnavailable, check_wheels
from models.engines.proof import Precision, check_proof
from models.errors import DeviceError, ModelError
from models.manifest import read_manifest

if TYPE_CHECKING:
    from models.engines.devices import Gpu

ORDER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tensorrt": ("tensorrt", "onnx-cuda", "torch-cuda", "onnx"),
        "onnx-cuda": ("onnx-cuda", "torch-cuda", "onnx"),
        "torch-cuda": ("torch-cuda", "onnx"),
    }
)
"""The engines to try in place of a configured one; any other engine has no fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The engine that runs, and the failed attempts before it."""

    engine: Engine
    fallbacks: tuple[Fallback, ...]


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


def open_to_prove(directory: Path, *, engine: str, engines: Path | None = None) -> Engine:
    """Open an engine by which the proof of a directory's graphs is made; same arguments and errors as `open_engine`."""
    _require_known(engine, threads=0)
    verify(directory, read_manifest(directory))
    with ThreadPoolExecutor(max_workers=1) as pool:
        opening = pool.submit(_open, directory, engine=engine, engines=engines)
        return opening.result()


def open_first(
    directory: Path,
    *,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    precision: Precision = "float32",
    gpu: Gpu | None = None,
) -> Opened:
    """Open the first engine that this machine can run; same arguments and ModelError as `open_engine`."""
    fallbacks: list[Fallback] = []
    *preferred, last = ORDER.get(engine, (engine,))
    for name in preferred:
        try:
            opened = open_engine(directory, engine=name, threads=threads, engines=engines, precision=precision, gpu=gpu)
            return Opened(engine=opened, fallbacks=tuple(fallbacks))
        except EngineUnavailable as error:
            fallbacks.append(Fallback(engine=name, reason=error.reason, message=str(error)))
    return Opened(
        engine=open_engine(directory, engine=last, threads=threads, precision=precision), fallbacks=tuple(fallbacks)
    )


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
    threads: int = 0,
    engines: Path | None,
    precision: Precision = "float32",
    gpu: Gpu | None = None,
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
