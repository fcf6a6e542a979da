"""Where PyTorch computes: the CPU, or a GPU with its name and driver, its memory, and one stream for all work.

PyTorch allocates what goes into runtimes and comes out of them; TensorRT takes what its engines work in at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.engines import EngineUnavailable
from models.errors import DeviceError, DeviceLost, ModelError

_DRIVER: Final = Path("/sys/module/nvidia/version")
_WARM_UP: Final = 3

Step = Callable[[], None]


class Device:
    """A device of PyTorch's tensors: the processor; a GPU does some of it in another way.

    device: PyTorch's name of it
    """

    device = torch.device("cpu")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run the work of this context in order. Its errors are raised as DeviceError, DeviceLost or ModelError."""
        yield

    def put(self, array: NDArray[np.generic]) -> Tensor:
        """Bring an array to the device, row by row whatever its order was; keeps its type."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate memory without a value."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def repeatable(self, step: Step) -> Step:
        """Return a function that does what the step does, faster if possible.

        The step works on tensors at fixed addresses only, and never waits for the device. It may run several times
        before this returns.
        """
        return step


CPU: Final = Device()


class Gpu(Device):
    """A GPU with one stream.

    name: the model of the GPU, as the driver reports it; driver: the version of the driver
    stream: the address of the stream, for runtimes other than PyTorch
    """

    name: str
    driver: str
    stream: int


class CudaGpu(Gpu):
    """The first NVIDIA GPU."""

    def __init__(self) -> None:
        """Raise EngineUnavailable if PyTorch finds no GPU."""
        if not torch.cuda.is_available():
            raise EngineUnavailable(
                "no_gpu", "PyTorch finds no GPU; install its CUDA build and the driver, or use onnx"
            )
        # TF32 has the ten bits of float16; float32 must be float32.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.name = str(torch.cuda.get_device_name(0))
        self.driver = driver_version()
        self.device = torch.device("cuda", 0)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
        self.stream = int(self._stream.cuda_stream)

    @contextmanager
    def working(self) -> Iterator[None]:
        """See `Device`."""
        with device_errors(self.name, is_lost=_is_lost), torch.cuda.stream(self._stream):
            yield

    def repeatable(self, step: Step) -> Step:
        """Capture the step as a CUDA graph, which the GPU repeats without the host; see `Device`."""
        for _ in range(_WARM_UP):
            step()
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile; only this thread's calls belong to the graph.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            step()
        return graph.replay


@contextmanager
def device_errors(name: str, *, is_lost: Callable[[], bool]) -> Iterator[None]:
    """Raise an error of the GPU as DeviceError or DeviceLost.

    is_lost: whether the GPU refuses all work; asked after an error, because only some errors of CUDA are permanent
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"the memory of {name} is full; let no other process use it, or take a larger GPU") from error
    except (RuntimeError, ModelError) as error:
        if is_lost():
            message = f"{name} stopped computing ({type(error).__name__}); see the driver's log (dmesg, nvidia-smi -q)"
            raise DeviceLost(message) from error
        raise


def _is_lost() -> bool:
    """Wait for the GPU. After a fault of memory or of a kernel every call fails, this one too."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def driver_version(path: Path = _DRIVER) -> str:
    """Return the version of NVIDIA's driver; "unknown" where the system does not tell it."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return "unknown"
