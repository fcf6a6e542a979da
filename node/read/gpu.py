"""What an operator may ask about the GPU of this machine: its driver, the engines on disk, and their proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """A TensorRT engine on disk: the name of its graph, what it was built for, and its proofs.

    proofs: by driver, the largest difference from the network as a share of the tolerance; above 1 it is refused
    """

    name: str
    gpu: str
    version: str
    proofs: Mapping[str, float]


def read_gpu() -> tuple[str, str] | None:
    """Return the name of the first GPU and the version of its driver; None without a GPU that PyTorch can use."""
    from models.engines import EngineUnavailable
    from models.engines.devices import CudaGpu

    try:
        gpu = CudaGpu()
    except EngineUnavailable:
        return None
    return gpu.name, gpu.driver


def read_engine_files(folder: Path) -> list[EngineFile]:
    """Read what the TensorRT engines in a folder say of themselves, without opening them."""
    from models.engines.engine_files import read_heads

    return [
        EngineFile(
            name=head.name,
            gpu=head.gpu,
            version=head.version,
            proofs={proof.driver: proof.share for proof in head.proofs},
        )
        for head in read_heads(folder)
    ]
