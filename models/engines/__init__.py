"""What a runtime must offer, and the way to open one. Numpy in, numpy out; torch and onnxruntime only on demand.

A model directory is opened only if its files are what its manifest says, and exported graphs only with the proof that
they compute what the weights compute (DESIGN.md 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from models.engines.proof import check_proof
from models.errors import ModelError
from models.manifest import read_manifest

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
EngineName = Literal["torch", "onnx"]
GpuEngineName = Literal["tensorrt", "onnx-cuda"]
Unavailable = Literal["not_installed", "no_gpu", "no_graphs", "not_built", "not_loaded"]

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""Those that any machine has."""
GPU_ENGINES: Final[tuple[GpuEngineName, ...]] = get_args(GpuEngineName)
"""Those that need a GPU, and libraries that fit it."""

INSTALL_TENSORRT: Final = "run pip install -c constraints.txt '.[gpu]' on a machine with an NVIDIA GPU"


class EngineUnavailable(ModelError):
    """This machine cannot run this engine, though nothing is wrong with the model directory: another may do.

    reason: which of a short list; the message says what to do
    """

    def __init__(self, reason: Unavailable, message: str) -> None:
        super().__init__(message)
        self.reason: Unavailable = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """Encoded films: all that the other functions need of a picture.

    features: [film, patch, dim], row by row; positions: [film, patch, dim]; cls: [film, dim]
    """

    features: FloatArray
    positions: FloatArray
    cls: FloatArray

    def copies(self, times: int) -> Patches:
        """Put the same films `times` after each other, so that each copy is asked on its own."""
        return Patches(
            features=np.concatenate([self.features] * times),
            positions=np.concatenate([self.positions] * times),
            cls=np.concatenate([self.cls] * times),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regions:
    """What prompts found (SPEC.md 4.5, 6).

    boxes: [film, prompt, box, 4], clipped; scores: [film, prompt, box]; aggregated_scores: [film, prompt];
    features: [film, prompt, dim], after the post decoder
    """

    boxes: FloatArray
    scores: FloatArray
    aggregated_scores: FloatArray
    features: FloatArray


class Engine(Protocol):
    """A runtime of one model. May be called from several threads."""

    @property
    def name(self) -> str:
        """The name it is opened by; printed in every output."""

    def encode_image(self, pixels: FloatArray) -> Patches:
        """Encode normalized films, pixels: [film, side, side]."""

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        """Encode phrases, tokens: [phrase, 77]. Returns [phrase, dim]."""

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """Locate prompts: [film, prompt, dim]. Prompts of one film see each other in the post decoder (SPEC.md 6)."""

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        """Look into given boxes (SPEC.md 5).

        boxes: [film, box, 4]; prompts: [film, box, dim]; prompted: [film, box], 1 where the prompt counts, else 0
        Returns features [film, box, dim].
        """

    def write(self, features: FloatArray) -> IntArray:
        """Generate a sentence per feature vector: [sentence, dim] to token ids [sentence, token]."""


def open_engine(directory: Path, *, engine: str, threads: int = 0, engines: Path | None = None) -> Engine:
    """Open a runtime of a model directory.

    threads: 0 means all cores, but one for a network below 50 million parameters, which is faster with one
    engines: where TensorRT's engines are kept; it is not opened without
    Raises ModelError where files do not fit the manifest, where graphs lack their proof, or where there is no such
    runtime; of these EngineUnavailable where this machine alone is the reason.
    """
    if engine in ("onnx", "onnx-cuda"):
        check_proof(directory, read_manifest(directory))
    elif engine == "tensorrt":
        _check_float16(directory)
    return open_unproven(directory, engine=engine, threads=threads, engines=engines)


def open_unproven(directory: Path, *, engine: str, threads: int = 0, engines: Path | None = None) -> Engine:
    """As `open_engine`, but graphs need no proof: for what makes the proof."""
    if threads < 0:
        raise ModelError(f"threads is {threads}; 0 lets the program choose, 1 and more is taken as it is")
    if engine not in (*ENGINES, *GPU_ENGINES):
        raise ModelError(f'there is no engine "{engine}"; choose one of {", ".join((*ENGINES, *GPU_ENGINES))}')
    from models.checkpoint import verify

    verify(directory, read_manifest(directory))
    if engine == "torch":
        from models.engines.torch_engine import TorchEngine

        return TorchEngine(directory, threads=threads)
    if engine == "tensorrt":
        return _open_tensorrt(directory, engines)
    from models.engines.onnx_engine import open_onnx, open_onnx_cuda

    return (open_onnx if engine == "onnx" else open_onnx_cuda)(directory, threads=threads)


def _open_tensorrt(directory: Path, engines: Path | None) -> Engine:
    if engines is None:
        raise ModelError("TensorRT keeps its engines in a folder; name one, such as storage.directory/engines")
    try:
        from models.engines.tensorrt_engine import open_tensorrt
    except ImportError as error:
        raise EngineUnavailable(
            "not_installed", f"TensorRT cannot be imported ({error}); {INSTALL_TENSORRT}"
        ) from error
    return open_tensorrt(directory, engines=engines)


def _check_float16(directory: Path) -> None:
    """Ask for the proof of the float16 graphs; a directory that has none of them may be run by another engine."""
    try:
        check_proof(directory, read_manifest(directory), "float16")
    except ModelError as error:
        raise EngineUnavailable("no_graphs", str(error)) from error
