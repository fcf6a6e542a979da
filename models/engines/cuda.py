"""The GPU that an engine runs on: its name and driver, its memory, and one stream for all work.

PyTorch allocates the memory, also that of TensorRT, so the two do not compete for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.engines import EngineUnavailable

_DRIVER: Final = Path("/sys/module/nvidia/version")


class Gpu(Protocol):
    """A GPU with one stream."""

    @property
    def name(self) -> str:
        """The model of the GPU, as the driver reports it."""

    @property
    def driver(self) -> str:
        """The version of the driver."""

    @property
    def device(self) -> torch.device:
        """The device of tensors on this GPU."""

    @property
    def stream(self) -> int:
        """The address of the stream, for runtimes other than PyTorch."""

    def working(self) -> AbstractContextManager[None]:
        """Run the work of this context on the stream."""

    def put(self, array: NDArray[np.generic]) -> Tensor:
        """Copy an array to the GPU; keeps its type."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate memory without a value."""


class CudaGpu:
    """The first NVIDIA GPU."""

    def __init__(self) -> None:
        """Raise EngineUnavailable if PyTorch finds no GPU."""
        if not torch.cuda.is_available():
            raise EngineUnavailable(
                "no_gpu", "PyTorch finds no GPU; install its CUDA build and the driver, or use onnx"
            )
        self.name = str(torch.cuda.get_device_name(0))
        self.driver = driver_version()
        self.device = torch.device("cuda", 0)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch has no type for it

    @property
    def stream(self) -> int:
        """See `Gpu`."""
        return int(self._stream.cuda_stream)

    @contextmanager
    def working(self) -> Iterator[None]:
        """See `Gpu`."""
        with torch.cuda.stream(self._stream):
            yield

    def put(self, array: NDArray[np.generic]) -> Tensor:
        """See `Gpu`."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `Gpu`."""
        return torch.empty(shape, dtype=dtype, device=self.device)


def driver_version() -> str:
    """Return the version of NVIDIA's driver; "unknown" where the system does not tell it."""
    try:
        return _DRIVER.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return "unknown"
