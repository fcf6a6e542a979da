"""Random streams, one for each purpose and step: nothing is drawn from a state that a restart would lose."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Open the stream of a purpose: equal arguments, equal draws."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers])
    return np.random.Generator(np.random.PCG64(words))


def seed_torch(seed: int, purpose: str, *numbers: int) -> None:
    """Let PyTorch, which has one stream for all, begin anew; its dropout draws from it."""
    torch.manual_seed(int(stream(seed, purpose, *numbers).integers(2**63)))


def film_numbers(seed: int, stage: int, *, first: int, count: int, films: int) -> list[int]:
    """Say which films stand in places first ... of a stage: every film once in an epoch, in an order of its own."""
    numbers: list[int] = []
    for place in range(first, first + count):
        epoch, within = divmod(place, films)
        if not numbers or within == 0:
            order = stream(seed, "order", stage, epoch).permutation(films)
        numbers.append(int(order[within]))
    return numbers
