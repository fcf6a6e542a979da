"""Greedy decoding for a GPU: every tensor of a step keeps its address and shape, and the host waits for few tokens.

It uses the layers of `sentence_generator`. There, a step attends to the filled places of the cache, and after each step
the host checks whether all sentences have ended. Here, a step attends to all places with the unfilled ones masked, the
place is a tensor, and the host checks once in `CHECK_EVERY` tokens. A step therefore may be captured as a CUDA graph.

Sentences are generated in `ROWS` rows at a time; rows without a feature count as finished from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

CHECK_EVERY: Final = 8
ROWS: Final = (1, 8, 32)
"""One question, the findings of a film, and a whole prompt set."""
_ALIGNED: Final = 8
"""The number of places is a multiple of this, for the fast attention kernels need an aligned mask, and at least this
many are for tokens, for a step runs a few times before it is captured."""

Step = Callable[[], None]


class StaticWriter:
    """Generates sentences on the generator's device and in its precision. One call at a time.

    Every number of rows is prepared when the writer is made, so a device that cannot do it fails then, not at a film.

    repeatable: returns a function that repeats a step, such as a captured CUDA graph; it may run the step
    """

    @torch.no_grad()
    def __init__(
        self, generator: SentenceGenerator, *, max_length: int, repeatable: Callable[[Step], Step] = lambda step: step
    ) -> None:
        """Raise ValueError where the network has no such positions."""
        if not 1 <= max_length <= generator.sizes.positions:
            raise ValueError(f"max_length is {max_length}; it must lie in 1..{generator.sizes.positions}")
        self._max_length = max_length
        self._rows = {rows: _Rows(generator, rows, max_length, repeatable) for rows in ROWS}

    @torch.no_grad()
    def write(self, features: Tensor) -> Tensor:
        """Generate a sentence per feature [S, dim].

        Returns what `SentenceGenerator.write` returns: the same ids in float32; in float16 ids may differ where two
        tokens are almost equally likely.
        """
        parts = [self._least_rows(len(part)).write(part) for part in torch.split(features, ROWS[-1]) if len(part)]
        ids = torch.cat(parts) if parts else self._nothing(features.device)
        worded = int((ids != SENTENCE_END).any(dim=0).sum())
        return ids[:, : min(self._max_length, worded + 2)]

    def _least_rows(self, count: int) -> _Rows:
        return self._rows[next(rows for rows in ROWS if rows >= count)]

    def _nothing(self, device: torch.device) -> Tensor:
        return torch.zeros((0, self._max_length), dtype=torch.int64, device=device)


class _Rows:
    """The tensors of a number of sentences, allocated once, and the step on them."""

    def __init__(
        self, generator: SentenceGenerator, rows: int, max_length: int, repeatable: Callable[[Step], Step]
    ) -> None:
        weight = generator.tokens.weight
        device, prefix = weight.device, generator.sizes.prefix_length
        room = -(-(prefix + max(max_length, _ALIGNED)) // _ALIGNED) * _ALIGNED
        self._generator = generator
        self._prefix = prefix
        self._max_length = max_length
        self._place = torch.full((1,), prefix, device=device)
        self._places = torch.arange(room, device=device)
        self._caches = [StaticCache(generator, rows, room=room, place=self._place) for _ in generator.layers]
        self._current = torch.full((rows, 1), SENTENCE_END, device=device)
        self._ids = torch.full((rows, room), SENTENCE_END, device=device)
        self._finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self._step = repeatable(self._write_token)

    def write(self, features: Tensor) -> Tensor:
        """Generate a sentence per feature; at most as many as there are rows. Returns ids [S, max_length]."""
        count = len(features)
        self._start(functional.pad(features, (0, 0, 0, len(self._ids) - count)), count)
        for written in range(1, self._max_length):
            self._step()
            if written % CHECK_EVERY == 0 and bool(self._finished.all()):
                break
        return self._ids[:count, : self._max_length].clone()

    def _start(self, features: Tensor, count: int) -> None:
        for cache, (key, value) in zip(self._caches, self._generator.prefix_key_values(features), strict=True):
            cache.start(key, value)
        self._place.fill_(self._prefix)
        self._current.fill_(SENTENCE_END)
        self._ids.fill_(SENTENCE_END)
        self._finished.fill_(False)
        self._finished[count:] = True

    def _write_token(self) -> None:
        """Generate the next token of every sentence; what it changes, it changes in place."""
        position = (self._place - self._prefix).expand(len(self._ids), 1)
        visible = (self._places <= self._place).expand(1, 1, 1, -1)
        logits = self._generator(self._current, position, self._caches, visible)
        chosen = self._generator.tokens.likeliest(logits[:, -1]).masked_fill(self._finished, SENTENCE_END)
        self._place += 1
        self._ids.index_copy_(1, self._place - self._prefix, chosen.unsqueeze(1))
        self._current.copy_(chosen.unsqueeze(1))
        self._finished |= chosen == SENTENCE_END


class StaticCache:
    """Keys and values of one layer, as `KeyValueCache`, but always returned at full length."""

    def __init__(self, generator: SentenceGenerator, rows: int, *, room: int, place: Tensor) -> None:
        """Make room for this many tokens, the prefix included.

        place: [1], the index of the next token; the caller increments it
        """
        sizes, weight = generator.sizes, generator.tokens.weight
        shape = (rows, sizes.heads, room, sizes.width // sizes.heads)
        self._keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.zeros_like(self._keys)
        self._place = place

    def start(self, key: Tensor, value: Tensor) -> None:
        """Begin with a prefix [S, head, L, width of a head].

        Earlier sentences are erased: they are masked, but a masked NaN would still reach the sum.
        """
        for held, given in ((self._keys, key), (self._values, value)):
            held.zero_()
            held[:, :, : given.shape[2]] = given

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [S, head, 1, width of a head] at the current place; returns all places."""
        self._keys.index_copy_(2, self._place, key)
        self._values.index_copy_(2, self._place, value)
        return self._keys, self._values
