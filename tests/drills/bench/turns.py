"""Runs that take turns, so that other work on the machine slows all of them alike, and their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[T]):
    """What one run returned, the seconds it took, and those of processor time of all threads of this process."""

    seconds: float
    core_seconds: float
    result: T


Round = Mapping[str, Taken[T]]


def in_turns(runs: Mapping[str, Callable[[], T]], *, rounds: int, limit_seconds: float) -> list[Round[T]]:
    """Run all, round after round, each by its name; no new round begins after the time limit."""
    taken: list[Round[T]] = []
    names, began = list(runs), time.perf_counter()
    while len(taken) < rounds and (not taken or time.perf_counter() - began < limit_seconds):
        # The order alternates, for the load of a machine rises and falls.
        taken.append({name: timed(runs[name]) for name in (names if len(taken) % 2 else names[::-1])})
    return taken


def timed(run: Callable[[], T]) -> Taken[T]:
    """Run once."""
    began, core_began = time.perf_counter(), time.process_time()
    result = run()
    return Taken(seconds=time.perf_counter() - began, core_seconds=time.process_time() - core_began, result=result)


def apart(run: Callable[[], T]) -> T:
    """Run in a thread that ends, as a node does.

    A thread that computed with PyTorch has helpers as long as it lives. With those of the plain way beside them, this
    program's would sleep between two products.
    """
    # A new thread takes the number of threads that was set only when it asks for it.
    with ThreadPoolExecutor(1, initializer=torch.get_num_threads) as thread:
        return thread.submit(run).result()


def beside_plain(rounds: Sequence[Round[T]], name: str, *, count: int = 1) -> dict[str, float]:
    """Compare a run with the plain one: the ratio is taken in each round, before the median.

    count: how many films a run has; seconds are those of one
    core_seconds, core_ratio: of processor time, which changes least with other work on the machine
    """
    pairs = [(taken[name], taken[PLAIN]) for taken in rounds]
    seconds = beside((ours.seconds / count, plain.seconds / count) for ours, plain in pairs)
    cores = [(ours.core_seconds / count, plain.core_seconds / count) for ours, plain in pairs]
    return seconds | _beside(cores, prefix="core_")


def beside(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Return the medians and the spread of seconds of ours and of the plain way, and of their ratio."""
    pairs = list(pairs)
    return _beside(pairs, prefix="") | {"rounds": len(pairs)}


def _beside(pairs: Sequence[tuple[float, float]], *, prefix: str) -> dict[str, float]:
    ours, plain = ([pair[place] for pair in pairs] for place in (0, 1))
    ratios = [theirs / max(own, 1e-9) for own, theirs in pairs]
    return {
        **spread(ours, f"{prefix}seconds"),
        **spread(plain, f"plain_{prefix}seconds"),
        **spread(ratios, f"{prefix}ratio"),
    }


def spread(values: Sequence[float], name: str) -> dict[str, float]:
    """Return the median of values, the least and the greatest."""
    digits = 2 if name.endswith("ratio") else 4
    least, greatest = round(min(values), digits), round(max(values), digits)
    return {name: round(median(values), digits), f"least_{name}": least, f"greatest_{name}": greatest}
