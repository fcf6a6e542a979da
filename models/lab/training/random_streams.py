"""Random streams, one for each purpose and step. There is no state that a restart would have to restore."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Open the stream of a purpose: the same arguments give the same random numbers."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers])
    return np.random.Generator(np.random.PCG64(words))


def seed_torch(seed: int, purpose: str, *numbers: int) -> None:
    """Seed PyTorch's single global stream, which dropout draws from."""
    torch.manual_seed(int(stream(seed, purpose, *numbers).integers(2**63)))


def film_numbers(seed: int, stage: int, *, first: int, count: int, films: int) -> list[int]:
    """Return the numbers of the films at places first ... of a stage: an epoch has each film once, in its own order."""
    numbers: list[int] = []
    for place in range(first, first + count):
        epoch, within = divmod(place, films)
        if not numbers or within == 0:
            order = stream(seed, "order", stage, epoch).permutation(films)
        numbers.append(int(order[within]))
    return numbers
