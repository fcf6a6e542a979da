"""Byte-pair vocabularies reduced to the tokens of a run: all other tokens share one embedding during the training.

A softmax over all tokens, most of which have the same embedding, equals a softmax over the other tokens and the shared
one, if the logit of the shared one is weighted with the number of tokens that it stands for. The result is exact, and a
step costs hundreds of columns instead of 50,257. At the end the shared embedding is copied to every token that it
stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A reduced vocabulary. numbers: [total], the number of each token's embedding; size: the number of embeddings.

    The order is kept, so the end token, which has the largest id, has the largest number. Number 0 is the shared
    embedding.
    """

    numbers: IntArray
    size: int

    @property
    def shared(self) -> int:
        """How many tokens share the embedding 0; 0 if there is none."""
        return int((self.numbers == 0).sum()) if self.size < len(self.numbers) else 0

    def weigh(self, logits: Tensor) -> Tensor:
        """Weight the shared token's logit [..., size] with the number of tokens that it stands for."""
        if not self.shared:
            return logits
        first = logits.new_zeros(self.size)
        first[0] = math.log(self.shared)
        return logits + first

    def spread(self, embeddings: Tensor) -> Tensor:
        """Copy embeddings to all tokens: [size, width] to [total, width]."""
        return embeddings[torch.from_numpy(self.numbers).to(embeddings.device)]


def all_words(total: int) -> Words:
    """Return a vocabulary in which every token has its own embedding."""
    return Words(numbers=np.arange(total, dtype=np.int64), size=total)


def seen_words(total: int, seen: Iterable[int]) -> Words:
    """Return a vocabulary with an embedding for each token that was seen, and one for all others."""
    used = np.unique(np.fromiter(seen, dtype=np.int64))
    if len(used) == total:
        return all_words(total)
    numbers = np.zeros(total, dtype=np.int64)
    numbers[used] = np.arange(1, len(used) + 1)
    return Words(numbers=numbers, size=len(used) + 1)
