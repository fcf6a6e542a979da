"""GPT-2 conditioned by learned keys and values instead of a text (P-tuning, spec §7), with greedy decoding.

A feature becomes `prefix_length` keys and values in every layer, which take no text positions. Keys and values are
cached per layer and written in place, so one step costs one token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.manifest import GeneratorSizes
from models.network.attention import Mlp
from models.network.token_table import TokenTable
from models.reading.tokenizers import SENTENCE_END


class KeyValueCache:
    """Keys and values of one layer: the prefix, then one place per token. Allocated once."""

    def __init__(self, key: Tensor, value: Tensor, *, room: int) -> None:
        """Start with a prefix [S, head, L, width of a head] and room for this many tokens."""
        self._length = key.shape[2]
        self._keys = functional.pad(key, (0, 0, 0, room))
        self._values = functional.pad(value, (0, 0, 0, room))

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [S, head, T, width of a head]; returns all of them."""
        end = self._length + key.shape[2]
        self._keys[:, :, self._length : end] = key
        self._values[:, :, self._length : end] = value
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class GeneratorLayer(nn.Module):
    """A layer of GPT-2: attention to everything in the cache, then an MLP of four times the width."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, cache: KeyValueCache, visible: Tensor | None) -> Tensor:
        """Map [S, T, width] to the same shape; visible: see `SentenceGenerator.forward`."""
        packed = self.packed(self.norm_attention(hidden))
        packed = packed.reshape(*hidden.shape[:2], 3, self.heads, hidden.shape[-1] // self.heads)
        query, key, value = packed.transpose(1, 3).unbind(dim=2)
        keys, values = cache.extend(key, value)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        # "gelu_new" of GPT-2 is the tanh approximation; every other part of the network has the exact one.
        updated: Tensor = hidden + self.contract(
            functional.gelu(self.expand(self.norm_mlp(hidden)), approximate="tanh")
        )
        return updated


class SentenceGenerator(nn.Module):
    """Turns region features into token ids. Input and output embedding share one matrix.

    prefixes: how many layers have keys and values of their own in the prefix: all, or one that all share
    """

    def __init__(self, sizes: GeneratorSizes, *, dim: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.dim, self.prefixes = dim, 1 if sizes.prefix_shared else sizes.layers
        output = sizes.prefix_length * self.prefixes * 2 * sizes.width
        self.prefix = Mlp(dim, sizes.prefix_hidden, output) if sizes.prefix_hidden else nn.Linear(dim, output)
        self.tokens = TokenTable(sizes.vocabulary, sizes.width, own=sizes.own_tokens)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList(GeneratorLayer(sizes.width, heads=sizes.heads) for _ in range(sizes.layers))
        self.norm_after = nn.LayerNorm(sizes.width)

    def write(self, features: Tensor, *, max_length: int) -> Tensor:
        """Write a sentence per feature [S, dim]: always the likeliest token, no other rule (spec §7.3).

        max_length: tokens of a sentence, the leading BOS included
        Returns token ids [S, T], int64, from BOS to the end of the longest sentence, T <= max_length; a finished
        sentence is fed and padded with END. Raises ValueError where the network has no such positions.
        """
        if not 1 <= max_length <= self.sizes.positions:
            raise ValueError(f"max_length is {max_length}; it must lie in 1..{self.sizes.positions}")
        caches = self.remember(features, room=max_length)
        ids = torch.full((features.shape[0], max_length), SENTENCE_END, dtype=torch.int64, device=features.device)
        finished = torch.zeros(features.shape[0], dtype=torch.bool, device=features.device)
        for place in range(max_length - 1):
            position = torch.full_like(ids[:, :1], place)
            logits = self(ids[:, place : place + 1], position, caches)
            chosen = self.tokens.likeliest(logits[:, -1]).masked_fill(finished, SENTENCE_END)
            ids[:, place + 1] = chosen
            finished |= chosen == SENTENCE_END
            if finished.all():
                return ids[:, : place + 2]
        return ids

    def remember(self, features: Tensor, *, room: int) -> list[KeyValueCache]:
        """Start the caches for features [S, dim], with room for this many tokens (spec §7.1)."""
        return [KeyValueCache(key, value, room=room) for key, value in self.prefix_key_values(features)]

    def prefix_key_values(self, features: Tensor) -> Tensor:
        """Turn features [S, dim] into the prefix [layer, key or value, S, head, prefix position, width of a head]."""
        sizes = self.sizes
        flat: Tensor = self.prefix(features)
        head_width = sizes.width // sizes.heads
        nested = flat.reshape(-1, sizes.prefix_length, self.prefixes, 2, sizes.heads, head_width)
        return nested.permute(2, 3, 0, 4, 1, 5).expand(sizes.layers, -1, -1, -1, -1, -1)

    def forward(
        self, ids: Tensor, positions: Tensor, caches: Sequence[KeyValueCache], visible: Tensor | None = None
    ) -> Tensor:
        """Return the logits [S, T, row] of the rows of `tokens` after `ids`, and cache the keys and values of `ids`.

        ids, positions: [S, T]; the first text token, BOS, has position 0, because the prefix takes none
        visible: [S, 1, T, prefix and all tokens], True where a token may attend; None allows everything cached, the
        token itself included, which is right for one token at a time
        """
        hidden = self.tokens(ids) + self.positions(positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, cache, visible)
        return self.tokens.logits(self.norm_after(hidden))
