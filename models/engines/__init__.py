"""What a runtime must offer, and the way to open one. Numpy in, numpy out; torch and onnxruntime only on demand.

A model directory is opened only if its files are what its manifest says, and exported graphs only with the proof that
they compute what the weights compute (DESIGN.md 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.engines.proof import check_proof
from models.errors import ModelError
from models.manifest import read_manifest

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
EngineName = Literal["torch", "onnx"]

ENGINES: tuple[EngineName, ...] = ("torch", "onnx")


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


def open_engine(directory: Path, *, engine: str, threads: int = 0) -> Engine:
    """Open a runtime of a model directory.

    threads: 0 means all cores, but one for a network below 50 million parameters, which is faster with one
    Raises ModelError where files do not fit the manifest, where graphs lack their proof, or where this version has no
    such runtime.
    """
    if engine == "onnx":
        check_proof(directory, read_manifest(directory))
    return open_unproven(directory, engine=engine, threads=threads)


def open_unproven(directory: Path, *, engine: str, threads: int = 0) -> Engine:
    """As `open_engine`, but graphs need no proof: for what makes the proof."""
    if engine == "tensorrt":
        raise ModelError('engine "tensorrt" is not in this version; use "onnx" or "torch"')
    if threads < 0:
        raise ModelError(f"threads is {threads}; 0 lets the program choose, 1 and more is taken as it is")
    if engine not in ENGINES:
        raise ModelError(f'there is no engine "{engine}"; choose one of {", ".join(ENGINES)}')
    from models.checkpoint import verify

    verify(directory, read_manifest(directory))
    if engine == "onnx":
        from models.engines.onnx_engine import OnnxEngine

        return OnnxEngine(directory, threads=threads)
    from models.engines.torch_engine import TorchEngine

    return TorchEngine(directory, threads=threads)
