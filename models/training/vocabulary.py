"""Byte-pair vocabularies cut to what a run ever says: tokens that no text has share one embedding while it trains.

A softmax over all tokens, of which most have the same embedding, is a softmax over the others and one more, whose logit
counts as often as it stands for a token. So nothing is approximated, and a step costs hundreds of columns, not 50,257.
At the end the shared embedding is written to every token that it stands for.
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
    """A vocabulary as it is trained. numbers: [total], which embedding a token has; size: of them.

    Order is kept, so that the mark with the largest id has the largest number. Number 0 is the shared one.
    """

    numbers: IntArray
    size: int

    @property
    def shared(self) -> int:
        """How many tokens share the embedding 0; 0 where none does."""
        return int((self.numbers == 0).sum()) if self.size < len(self.numbers) else 0

    def weigh(self, logits: Tensor) -> Tensor:
        """Let the shared token's logit [..., size] count as often as it stands for a token."""
        if not self.shared:
            return logits
        first = logits.new_zeros(self.size)
        first[0] = math.log(self.shared)
        return logits + first

    def spread(self, embeddings: Tensor) -> Tensor:
        """Give every token its embedding: [size, width] to [total, width]."""
        return embeddings[torch.from_numpy(self.numbers).to(embeddings.device)]


def all_words(total: int) -> Words:
    """Give every token its own embedding."""
    return Words(numbers=np.arange(total, dtype=np.int64), size=total)


def seen_words(total: int, seen: Iterable[int]) -> Words:
    """Give an embedding of its own to each token that was seen, and one to all others."""
    used = np.unique(np.fromiter(seen, dtype=np.int64))
    if len(used) == total:
        return all_words(total)
    numbers = np.zeros(total, dtype=np.int64)
    numbers[used] = np.arange(1, len(used) + 1)
    return Words(numbers=numbers, size=len(used) + 1)
