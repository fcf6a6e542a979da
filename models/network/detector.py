"""Prompt detector: prompts attend to patches, propose boxes, and pool the patches in them (spec §4).

R tokens per prompt, in prompt-major order: token q * R + r proposes box r of prompt q. Boxes are center x, center y,
width, height in 0..1 of the square that the network saw. Patches are pooled under a soft Gaussian box (spec §4.4):
differentiable in the box, without edges.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models import boxes as unit_boxes
from models.manifest import DetectorSizes
from models.network.attention import DecoderLayer, Mlp, hide_from_own_group

_THINNEST = 1e-6
_PEAK_UNIT = 1e12
_PUBLISHED_PATCHES = 49


def soft_boxes(boxes: Tensor, *, grid: int, beta: float) -> Tensor:
    """Weight every patch by its distance from a box's center, in units of the box's width and height.

    boxes: [F, B, 4], center x, center y, width, height in 0..1; an empty box gives zeros
    grid: patches along one side of the square
    beta: steepness of the edge; 2 is a Gaussian whose sigma is the box's full side over the root of 2
    Returns [F, B, P]; the largest weight of a box is 1.
    """
    centers = (torch.arange(grid, dtype=boxes.dtype, device=boxes.device) + 0.5) / grid
    x, y, width, height = boxes.unsqueeze(-1).unbind(dim=-2)
    # So far below a patch that no weight changes; without it an empty box on the middle of a patch divides 0 by 0.
    width, height = width.clamp(min=_THINNEST), height.clamp(min=_THINNEST)
    across = ((centers - x) / width).abs().pow(beta)
    down = ((centers - y) / height).abs().pow(beta)
    weights = torch.exp(-down.unsqueeze(-1) - across.unsqueeze(-2)).flatten(-2)
    # This is weights / (peak + 1e-12), which shrinks a box that lies between all patches. It is written in other units
    # because the ONNX exporter takes the addition of so small a number for an addition of nothing and drops it.
    peak = weights.amax(dim=-1, keepdim=True)
    return weights * _PEAK_UNIT / (peak * _PEAK_UNIT + 1)


def pool(features: Tensor, boxes: Tensor, *, grid: int, beta: float, scaled: bool = False) -> Tensor:
    """Sum patch features [F, P, dim] under soft boxes [F, B, 4].

    scaled: scale the sum to the published number of patches, whatever the grid
    Returns [F, B, dim]. A sum, not a mean: the published weights were trained so (spec §4.4, BUG-3).
    """
    weights = soft_boxes(boxes, grid=grid, beta=beta)
    return (weights * (_PUBLISHED_PATCHES / grid**2) if scaled else weights) @ features


class Detection(NamedTuple):
    """The detector's output: R boxes of each prompt, their tokens and scores, and their aggregate.

    boxes: [F, Q, R, 4], clipped to the square; scores: [F, Q, R]; tokens: [F, Q, R, dim]
    aggregated_scores: [F, Q]; aggregated: [F, Q, dim]
    """

    boxes: Tensor
    scores: Tensor
    tokens: Tensor
    aggregated_scores: Tensor
    aggregated: Tensor


class Detector(nn.Module):
    """DETR-style decoder whose boxes pool with soft edges."""

    def __init__(self, sizes: DetectorSizes, *, grid: int) -> None:
        super().__init__()
        dim = sizes.dim
        self.grid = grid
        self.beta = sizes.beta
        self.scaled_pooling = sizes.pooling == "scaled_sum"
        self.boxes_per_prompt = sizes.boxes_per_prompt
        self.box_tokens = nn.Parameter(torch.randn(sizes.boxes_per_prompt, dim) * 0.02)
        self.layers = nn.ModuleList(
            DecoderLayer(dim, heads=sizes.heads, feedforward=sizes.feedforward) for _ in range(sizes.layers)
        )
        self.norm_box = nn.LayerNorm(dim)
        self.box = Mlp(dim, dim, 4)
        self.norm_patch = nn.LayerNorm(dim)
        self.patch = nn.Linear(dim, dim)
        self.norm_region = nn.LayerNorm(dim)
        self.region = Mlp(dim, sizes.feedforward, dim)
        self.score = Mlp(dim, dim, 1)

    def forward(
        self,
        patches: Tensor,
        positions: Tensor,
        prompts: Tensor,
        *,
        group: int | None,
        padding: Tensor | None = None,
    ) -> Detection:
        """Locate prompts [F, Q, dim] among patches [F, P, dim]; group and padding: see `decode`. Padding gets zeros."""
        decoded = self.decode(patches, positions, prompts, group=group, padding=padding)
        proposed = self.propose(decoded)
        # At evaluation the decoder's token always joins what its box pooled (spec §4.5).
        tokens = self.gather((decoded + self.pool(patches, proposed)) / 2)
        return self.conclude(unit_boxes.clip(proposed), tokens, padding=padding)

    def conclude(self, boxes: Tensor, tokens: Tensor, *, padding: Tensor | None = None) -> Detection:
        """Score boxes [F, Q * R, 4] by their region tokens [F, Q * R, dim], and aggregate each prompt (spec §4.5)."""
        boxes, tokens = self.per_prompt(boxes), self.per_prompt(tokens)
        if padding is not None:
            boxes, tokens = (found.masked_fill(padding[..., None, None], 0) for found in (boxes, tokens))
        scores = torch.sigmoid(self.score(tokens)).squeeze(-1)
        if padding is not None:
            scores = scores * ~padding.unsqueeze(-1)
        return aggregated(boxes, scores, tokens)

    def decode(
        self,
        patches: Tensor,
        positions: Tensor,
        prompts: Tensor,
        *,
        group: int | None,
        padding: Tensor | None = None,
    ) -> Tensor:
        """Decode prompts [F, Q, dim] into tokens [F, Q * R, dim].

        group: R if a prompt's tokens see each other only (reports); None if all prompts of a film see each other, as in
        the published code whenever it is given a query mask (spec §4.2)
        padding: [F, Q], True for prompts that only pad a film's row; without group
        """
        tokens = (prompts.unsqueeze(2) + self.box_tokens).flatten(1, 2)
        memory = patches + positions
        visible = None
        if padding is not None:
            hidden = padding.repeat_interleave(self.boxes_per_prompt, dim=1)
            visible = hide_from_own_group(hidden, group=self.boxes_per_prompt)
        for layer in self.layers:
            tokens = layer(tokens, memory, group=group, visible=visible)
        return tokens

    def propose(self, decoded: Tensor) -> Tensor:
        """Propose a box for each token: [F, Q * R, 4], which may leave the square, as training needs it."""
        proposed: Tensor = torch.sigmoid(self.box(self.norm_box(decoded)))
        return proposed

    def pool(self, patches: Tensor, boxes: Tensor) -> Tensor:
        """Pool patches [F, P, dim] under boxes [F, B, 4], not clipped, into [F, B, dim]. Positions are not used."""
        features = self.patch(self.norm_patch(patches))
        return pool(features, boxes, grid=self.grid, beta=self.beta, scaled=self.scaled_pooling)

    def per_prompt(self, tokens: Tensor) -> Tensor:
        """Split [F, Q * R, n] into [F, Q, R, n]."""
        return tokens.reshape(tokens.shape[0], -1, self.boxes_per_prompt, tokens.shape[-1])

    def gather(self, pooled: Tensor) -> Tensor:
        """Turn pooled features [F, B, dim] into region tokens [F, B, dim]."""
        tokens: Tensor = self.region(self.norm_region(pooled))
        return tokens


def aggregated(boxes: Tensor, scores: Tensor, tokens: Tensor) -> Detection:
    """Aggregate the boxes [F, Q, R, 4], scores [F, Q, R] and tokens [F, Q, R, dim] of each prompt (spec §4.5)."""
    # A prompt whose boxes are all unlikely is shrunk, not normalized (spec §4.5, DEP-7).
    total = scores.sum(dim=-1).clamp(min=1)
    return Detection(
        boxes=boxes,
        scores=scores,
        tokens=tokens,
        aggregated_scores=scores.square().sum(dim=-1) / total,
        aggregated=(scores.unsqueeze(-1) * tokens).sum(dim=-2) / total.unsqueeze(-1),
    )
