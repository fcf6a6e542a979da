"""The network's engines, beside readings: their GPU, and a question that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from models.errors import Abandoned
from node.errors import AskerGone


def read_gpu() -> tuple[str, str] | None:
    """Return the name of the first GPU and the version of its driver; None without a GPU that PyTorch can use."""
    from models.engines import EngineUnavailable
    from models.engines.devices import CudaGpu

    try:
        gpu = CudaGpu()
    except EngineUnavailable:
        return None
    return gpu.name, gpu.driver


@contextmanager
def while_wanted(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Cancel this thread's queued requests to the network when the client has disconnected. Raises AskerGone.

    is_gone: is asked in this thread, ten times a second
    """
    from models.engines import scheduler

    try:
        with scheduler.while_wanted(is_gone):
            yield
    except Abandoned as error:
        raise AskerGone("nobody waits for this answer any more") from error
