"""A stand-in for a GPU: its memory is that of the CPU, and every piece of it that is in use is known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.engines.devices import Gpu, device_errors

STREAM = 4711


@dataclass
class FakeGpu(Gpu):
    """A GPU whose memory is that of the CPU, and which knows every piece of it that is in use."""

    name: str = "NVIDIA H100 80GB HBM3"
    driver: str = "580.95.05"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stream: int = STREAM
    pieces: dict[int, tuple[weakref.ref[Tensor], int]] = field(default_factory=dict)

    lost: bool = False

    @contextmanager
    def working(self) -> Iterator[None]:
        with device_errors(self.name, is_lost=lambda: self.lost):
            yield

    def put(self, array: NDArray[np.generic]) -> Tensor:
        return self._known(torch.from_numpy(np.array(array, order="C")))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._known(torch.full(shape, 85, dtype=dtype))

    def repeatable(self, step: Callable[[], None]) -> Callable[[], None]:
        """As a capture does, run the step first."""
        for _ in range(3):
            step()
        return step

    def room(self, address: int) -> int:
        """The bytes that begin at this address."""
        piece, size = self.pieces[address]
        assert piece() is not None, "the memory was given back before it was used"
        return size

    def _known(self, tensor: Tensor) -> Tensor:
        self.pieces[tensor.data_ptr()] = (weakref.ref(tensor), tensor.nbytes)
        return tensor


class WrongGpu(FakeGpu):
    """A GPU that computes with other numbers than it was given."""

    def put(self, array: NDArray[np.generic]) -> Tensor:
        return super().put(np.multiply(array, 1.5, dtype=np.float32) if array.dtype == np.float32 else array)
