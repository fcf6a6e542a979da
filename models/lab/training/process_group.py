"""Processes that train one network together: each has its own films, and all make the same updates.

The first process is the command itself. The others are its children; they end when it ends, because their connection to
it closes. On two cores two processes with one thread each are faster than one process with two threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from models.errors import ModelError
from models.lab.training.runfile import Run

_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """One process of the group."""

    rank: int
    size: int

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def average(self, weights: Sequence[nn.Parameter], numbers: Tensor) -> Tensor:
        """Average the gradients of weights over all processes, in place; a weight without a gradient counts as zeros.

        numbers: [n], further numbers to average, which are returned. Raises ModelError if another process has ended.
        """
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        if self.size == 1:
            return numbers
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), numbers])
        try:
            distributed.all_reduce(flat)
        except RuntimeError as error:
            raise ModelError(
                f"process {self.rank} lost its connection to the others ({error}); run the command again"
            ) from error
        flat /= self.size
        *parts, numbers = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(numbers)])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return numbers


@contextlib.contextmanager
def open_group(run: Run, follow: Callable[[Run, ProcessGroup], None]) -> Iterator[ProcessGroup]:
    """Start the other processes, which run `follow`, and yield this process's place in the group."""
    size = run.machine.processes
    if size == 1:
        yield ProcessGroup(rank=0, size=1)
        return
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        meeting = Path(folder) / "meeting"
        others = [
            context.Process(target=_join, args=(run, follow, rank, meeting), daemon=True) for rank in range(1, size)
        ]
        for other in others:
            other.start()
        try:
            yield _meet(meeting, rank=0, size=size)
        finally:
            distributed.destroy_process_group()
            for other in others:
                other.join(timeout=_PATIENCE.total_seconds())


def _join(run: Run, follow: Callable[[Run, ProcessGroup], None], rank: int, meeting: Path) -> None:
    # The first process decides when to stop, so that all stop after the same step.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    group = _meet(meeting, rank=rank, size=run.machine.processes)
    try:
        follow(run, group)
    except ModelError:
        # The first process reports the error, or has ended itself.
        return
    finally:
        distributed.destroy_process_group()


def _meet(meeting: Path, *, rank: int, size: int) -> ProcessGroup:
    store = distributed.FileStore(str(meeting), size)  # type: ignore[attr-defined] # it is there
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    return ProcessGroup(rank=rank, size=size)
