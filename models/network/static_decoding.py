"""Greedy decoding for a GPU: tensor shapes are constant, and the host does not wait for each token.

It uses the layers of `sentence_generator`. There, a step attends to the filled places of the cache, and after each step
the host checks whether all sentences have ended. Here, a step attends to all places with the unfilled ones masked, the
place is a tensor, and the host checks once in `CHECK_EVERY` tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

CHECK_EVERY = 8


class StaticCache:
    """Keys and values of one layer, as `KeyValueCache`, but always returned at full length."""

    def __init__(self, key: Tensor, value: Tensor, *, room: int, place: Tensor) -> None:
        """Start with a prefix [S, head, L, width of a head] and room for this many tokens.

        place: [1], the index of the next token; the caller increments it
        """
        self._keys = functional.pad(key, (0, 0, 0, room))
        self._values = functional.pad(value, (0, 0, 0, room))
        self._place = place

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [S, head, 1, width of a head] at the current place; returns all places."""
        self._keys.index_copy_(2, self._place, key)
        self._values.index_copy_(2, self._place, value)
        return self._keys, self._values


@torch.no_grad()
def write_static(generator: SentenceGenerator, features: Tensor, *, max_length: int) -> Tensor:
    """Generate a sentence per feature [S, dim], on the generator's device and in its precision.

    Returns what `SentenceGenerator.write` returns: the same ids in float32; in float16 ids may differ where two tokens
    are almost equally likely.
    """
    if not 1 <= max_length <= generator.sizes.positions:
        raise ValueError(f"max_length is {max_length}; it must lie in 1..{generator.sizes.positions}")
    prefix, device = generator.sizes.prefix_length, features.device
    place = torch.full((1,), prefix, device=device)
    places = torch.arange(prefix + max_length, device=device)
    caches = [
        StaticCache(key, value, room=max_length, place=place) for key, value in generator.prefix_key_values(features)
    ]
    ids = torch.full((features.shape[0], max_length), SENTENCE_END, dtype=torch.int64, device=device)
    finished = torch.zeros(features.shape[0], dtype=torch.bool, device=device)
    for written in range(1, max_length):
        current, position = ids[:, written - 1 : written], (place - prefix).expand(features.shape[0], 1)
        logits = generator(current, position, caches, (places <= place).expand(1, 1, 1, -1))
        chosen = generator.tokens.likeliest(logits[:, -1]).masked_fill(finished, SENTENCE_END)
        ids[:, written] = chosen
        finished |= chosen == SENTENCE_END
        place += 1
        if written % CHECK_EVERY == 0 and bool(finished.all()):
            break
    worded = int((ids != SENTENCE_END).any(dim=0).sum())
    return ids[:, : min(max_length, worded + 2)]
