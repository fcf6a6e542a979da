"""The interface of an engine, which is a runtime of the network; `opening` opens one. Arrays are numpy.

An environment may have one of the two packages of ONNX Runtime: both install the same module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from models.contract import StageDifference
from models.errors import ModelError

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
EngineName = Literal["torch", "onnx"]
GpuEngineName = Literal["tensorrt", "onnx-cuda", "torch-cuda"]
Unavailable = Literal["not_installed", "no_gpu", "no_graphs", "not_built", "not_loaded", "not_proven"]

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
"""Engines that run on any machine."""
GPU_ENGINES: Final[tuple[GpuEngineName, ...]] = get_args(GpuEngineName)
"""Engines that need a GPU and its libraries."""
WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")
REMOVE: Final = f"pip uninstall -y {' '.join(WHEELS)}"
INSTALL_GPU: Final = "pip install -c constraints.txt '.[gpu]'"
INSTALL_CPU: Final = "pip install -c constraints.txt '.[cpu]'"


class EngineUnavailable(ModelError):
    """This machine cannot run this engine. The model directory is not at fault, so another engine may work.

    reason: one of a short list; the message has the remedy
    """

    def __init__(self, reason: Unavailable, message: str) -> None:
        super().__init__(message)
        self.reason: Unavailable = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """Encoded films: the input of the other functions.

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


def check_wheels() -> None:
    """Raise ModelError if both are installed: which files of the module are whose depends on what pip did last."""
    if all(any(distributions(name=name)) for name in WHEELS):
        raise ModelError(
            f"{' and '.join(WHEELS)} are both installed, and one has overwritten files of the other; "
            f"run {REMOVE} && {INSTALL_GPU}, or without a GPU {REMOVE} && {INSTALL_CPU}"
        )
