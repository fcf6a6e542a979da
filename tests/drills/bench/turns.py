"""Runs that take turns, so that other work on the machine slows all of them alike, and their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")
PLAIN = "plain"
_LIMIT_SECONDS: Final = 240.0


class Taken(NamedTuple, Generic[T]):
    """What one run returned, and the seconds it took."""

    seconds: float
    result: T


Round = Mapping[str, Taken[T]]


def in_turns(runs: Mapping[str, Callable[[], T]], *, rounds: int) -> list[Round[T]]:
    """Run all, round after round, each by its name; no new round begins after four minutes."""
    taken: list[Round[T]] = []
    names, began = list(runs), time.perf_counter()
    while len(taken) < rounds and (not taken or time.perf_counter() - began < _LIMIT_SECONDS):
        # The order alternates, for the load of a machine rises and falls.
        taken.append({name: timed(runs[name]) for name in (names if len(taken) % 2 else names[::-1])})
    return taken


def timed(run: Callable[[], T]) -> Taken[T]:
    """Run once."""
    began = time.perf_counter()
    result = run()
    return Taken(time.perf_counter() - began, result)


def apart(run: Callable[[], T]) -> T:
    """Run in a thread that ends, as a node does.

    A thread that computed with PyTorch has helpers as long as it lives. With those of the plain way beside them, this
    program's would sleep between two products.
    """
    # A new thread takes the number of threads that was set only when it asks for it.
    with ThreadPoolExecutor(1, initializer=torch.get_num_threads) as thread:
        return thread.submit(run).result()


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of each round, the least and the greatest."""
    found = [one / max(other, 1e-9) for one, other in zip(above, below, strict=True)]
    return {
        "ratio": round(median(found), 3),
        "least_ratio": round(min(found), 3),
        "greatest_ratio": round(max(found), 3),
    }
