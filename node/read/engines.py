"""The network's engines, beside readings: their GPU, their files on disk, and the place of a person's question in line.

A person's question goes before the films that wait, and leaves once nobody waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.errors import AskerGone


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


def for_person() -> AbstractContextManager[None]:
    """Let what this thread asks the network in the block go before the films that wait."""
    from models.engines import turns

    return turns.for_person()


@contextmanager
def while_wanted(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Let what this thread asks the network in the block leave its queue once who asked has gone. Raises AskerGone.

    is_gone: is asked in this thread, ten times a second; a GPU answers a question that has begun to its end
    """
    from models.engines import scheduler
    from models.errors import Abandoned

    try:
        with scheduler.while_wanted(is_gone):
            yield
    except Abandoned as error:
        raise AskerGone("nobody waits for this answer any more") from error
