"""CLIP text transformer: phrases to one vector per prompt (SPEC.md 3).

Sentences pass through it too, when a report compares them. Training leaves it as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.attention import ClipLayer
from models.manifest import PromptEncoderSizes


class PromptEncoder(nn.Module):
    """A causal transformer that is read at the end-of-text token."""

    def __init__(self, sizes: PromptEncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.tokens = nn.Embedding(sizes.vocabulary, width)
        self.positions = nn.Parameter(torch.randn(sizes.context, width) * 0.01)
        self.layers = nn.ModuleList(ClipLayer(width, heads=sizes.heads, causal=True) for _ in range(sizes.layers))
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, sizes.output) * width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode token ids [P, context], int64, into [P, output], not of unit length.

        A tail of the context that is padding in every row may be left out: nothing before it looks that far.
        """
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        # The end-of-text token has the largest id of the vocabulary, so its place is where the ids peak.
        end = tokens.argmax(dim=-1)
        last = self.norm_after(hidden)[torch.arange(tokens.shape[0], device=tokens.device), end]
        vectors: Tensor = last @ self.projection
        return vectors
