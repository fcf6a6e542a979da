"""Post decoder: region tokens attend to the whole picture once more before sentence generation (spec §6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.manifest import DetectorSizes, PostDecoderSizes
from models.network.attention import DecoderLayer, first_of_each, hide_from_own_group


class PostDecoder(nn.Module):
    """Layers behind a learned gate, then a layer norm: output = norm(tokens + gate * layers(tokens)).

    Without layers, which is an ablation of the paper, each token is only normed.
    """

    def __init__(self, sizes: PostDecoderSizes, *, detector: DetectorSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(detector.dim, heads=detector.heads, feedforward=detector.feedforward)
            for _ in range(sizes.layers)
        )
        self.gate = nn.Parameter(torch.zeros(1))
        self.norm_gate = nn.LayerNorm(detector.dim)

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor,
        *,
        group: int | None,
        visible: Tensor | None = None,
        first_of: int | None = None,
    ) -> Tensor:
        """Update tokens [F, T, dim] by memory [F, P + 1, dim]: patches with positions, then cls without.

        group: 1 where each box sees itself only; None where every token of a film sees every other, as the published
        code does for prompts (spec §6, BUG-5)
        visible: [F, T, T], what of that is not seen after all; only without group
        first_of: return only the first of each run of this many tokens; only without group and visible
        """
        updated = tokens
        for layer in self.layers[:-1]:
            updated = layer(updated, memory, group=group, visible=visible)
        for layer in self.layers[-1:]:
            updated = layer(updated, memory, group=group, visible=visible, first_of=first_of)
        if first_of is not None:
            tokens = first_of_each(tokens, run=first_of)
            updated = updated if self.layers else tokens
        gated: Tensor = self.norm_gate(tokens + self.gate * updated)
        return gated

    def of_prompts(self, aggregated: Tensor, boxes: Tensor, memory: Tensor, *, dropped: Tensor | None = None) -> Tensor:
        """Update each prompt's aggregated token [F, Q, dim], followed by its box tokens [F, Q, R, dim].

        dropped: [F, Q, R], True for box tokens that their own prompt does not see: at random in training (spec §6)
        Returns [F, Q, 1 + R, dim], the aggregated token first.
        """
        tokens = torch.cat([aggregated.unsqueeze(2), boxes], dim=2)
        visible = None
        if dropped is not None:
            hidden = torch.nn.functional.pad(dropped, (1, 0)).flatten(1)
            visible = hide_from_own_group(hidden, group=tokens.shape[2])
        updated: Tensor = self(tokens.flatten(1, 2), memory, group=None, visible=visible)
        return updated.reshape(tokens.shape)

    def of_aggregated(self, aggregated: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        """Return what `of_prompts` gives for the aggregated tokens, [F, Q, dim].

        Reports use no box tokens after the last layer, so that layer skips them: a tenth of the detector's work.
        """
        tokens = torch.cat([aggregated.unsqueeze(2), boxes], dim=2)
        updated: Tensor = self(tokens.flatten(1, 2), memory, group=None, first_of=tokens.shape[2])
        return updated

    def of_boxes(self, tokens: Tensor, memory: Tensor, *, padding: Tensor) -> Tensor:
        """Update box tokens [F, B, dim] that all see each other, as in the paper's tasks (spec §6 and 9.4).

        padding: [F, B], True where a box only pads a film's row; it is hidden from itself only
        """
        updated: Tensor = self(tokens, memory, group=None, visible=hide_from_own_group(padding, group=1))
        return updated
