"""CLIP text transformer: encodes phrases into one vector per prompt (spec §3).

It also encodes the generated sentences that a report compares. The published training leaves it frozen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.manifest import PromptEncoderSizes
from models.network.attention import ClipLayer
from models.network.token_table import TokenTable


class PromptEncoder(nn.Module):
    """A causal transformer whose output is read at the end-of-text token."""

    def __init__(self, sizes: PromptEncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.tokens = TokenTable(sizes.vocabulary, width, own=sizes.own_tokens)
        self.positions = nn.Parameter(torch.randn(sizes.context, width) * 0.01)
        self.layers = nn.ModuleList(ClipLayer(width, heads=sizes.heads, causal=True) for _ in range(sizes.layers))
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, sizes.output) * width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode token ids [P, context], int64, into [P, output], not of unit length.

        Trailing padding that all rows share may be left out: no earlier token sees it.
        """
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        # The end-of-text token has the largest id of the vocabulary, so argmax finds it.
        end = tokens.argmax(dim=-1)
        last = self.norm_after(hidden)[torch.arange(tokens.shape[0], device=tokens.device), end]
        vectors: Tensor = last @ self.projection
        return vectors
