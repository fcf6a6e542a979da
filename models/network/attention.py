"""Attention and the transformer layers that several parts of the network share (spec §2, 3 and 4.1).

Every layer is pre-norm. Queries, keys and values come from one packed matrix, as in the published weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head attention, scaled by the root of the head's width.

    dropout: of attention weights, in training only; the training sets it
    """

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.width = width
        self.heads = heads
        self.dropout = 0.0
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, tokens: Tensor, memory: Tensor | None = None, *, causal: bool = False, visible: Tensor | None = None
    ) -> Tensor:
        """Let tokens [batch, T, width] attend to memory [batch, M, width], or to themselves if there is none.

        visible: [batch, T, M], False where a token must not see another
        """
        if memory is None:
            query, key, value = self.packed(tokens).chunk(3, dim=-1)
        else:
            query = functional.linear(tokens, self.packed.weight[: self.width], self.packed.bias[: self.width])
            both = functional.linear(memory, self.packed.weight[self.width :], self.packed.bias[self.width :])
            key, value = both.chunk(2, dim=-1)
        mask = None if visible is None else visible.unsqueeze(1)
        mixed = functional.scaled_dot_product_attention(
            self._split(query),
            self._split(key),
            self._split(value),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined

    def _split(self, tokens: Tensor) -> Tensor:
        """[batch, T, width] to [batch, head, T, width of a head]."""
        return tokens.reshape(*tokens.shape[:2], self.heads, self.width // self.heads).transpose(1, 2)


class Mlp(nn.Module):
    """Two linear layers with an exact (erf) GELU between them."""

    def __init__(self, width: int, hidden: int, output: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, output)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map [..., width] to [..., output]."""
        mapped: Tensor = self.contract(functional.gelu(self.expand(tokens)))
        return mapped


class ClipLayer(nn.Module):
    """A layer of the two CLIP encoders: attention, then an MLP of four times the width with QuickGELU."""

    def __init__(self, width: int, *, heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads=heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map [batch, T, width] to the same shape."""
        tokens = tokens + self.attention(self.norm_attention(tokens), causal=self.causal)
        hidden = self.expand(self.norm_mlp(tokens))
        updated: Tensor = tokens + self.contract(hidden * torch.sigmoid(1.702 * hidden))
        return updated


class DecoderLayer(nn.Module):
    """A layer of detector and post decoder: among tokens, to the picture, feed-forward; each branch scaled."""

    def __init__(self, dim: int, *, heads: int, feedforward: int) -> None:
        super().__init__()
        self.norm_self = nn.LayerNorm(dim)
        self.self_attention = Attention(dim, heads=heads)
        self.scale_self = _branch_scale(dim)
        self.norm_cross = nn.LayerNorm(dim)
        self.norm_memory = nn.LayerNorm(dim)
        self.cross_attention = Attention(dim, heads=heads)
        self.scale_cross = _branch_scale(dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, feedforward, dim)
        self.scale_mlp = _branch_scale(dim)

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor,
        *,
        group: int | None,
        visible: Tensor | None = None,
        first_of: int | None = None,
    ) -> Tensor:
        """Update tokens [F, T, dim] by memory [F, M, dim].

        group: each run of this many tokens attends within itself only; None: all tokens of a film see each other
        visible: [F, T, T], False where a token must not see another; only without group
        first_of: update only the first of each run of this many tokens; it still sees all tokens of the film; only
        without group and visible
        Returns [F, T, dim], or [F, T / first_of, dim].
        """
        normed = self.norm_self(tokens)
        if first_of is not None:
            tokens = first_of_each(tokens, run=first_of)
            attended = self.self_attention(first_of_each(normed, run=first_of), normed)
        else:
            grouped = normed if group is None else normed.reshape(-1, group, normed.shape[-1])
            attended = self.self_attention(grouped, visible=visible).reshape(tokens.shape)
        tokens = tokens + self.scale_self * attended
        tokens = tokens + self.scale_cross * self.cross_attention(self.norm_cross(tokens), self.norm_memory(memory))
        updated: Tensor = tokens + self.scale_mlp * self.mlp(self.norm_mlp(tokens))
        return updated


def first_of_each(tokens: Tensor, *, run: int) -> Tensor:
    """Return the first of each run of so many tokens [F, T, dim]: [F, T / run, dim]."""
    return tokens.reshape(tokens.shape[0], -1, run, tokens.shape[-1])[:, :, 0]


def hide_from_own_group(hidden: Tensor, *, group: int) -> Tensor:
    """Return the mask for hidden tokens [F, T]: a hidden token is invisible to its own group only.

    The published code combines its two masks like this (spec §4.2, BUG-2), and its weights were trained with it.
    group: number of tokens of one prompt, which are adjacent
    Returns [F, T, T], False where the first does not see the second.
    """
    groups = torch.arange(hidden.shape[1], device=hidden.device) // group
    return ~(hidden.unsqueeze(1) & (groups.unsqueeze(1) == groups))


def _branch_scale(dim: int) -> nn.Parameter:
    """One factor per channel; the published training starts at 0.1 (spec §0)."""
    return nn.Parameter(torch.full((dim,), 0.1))
