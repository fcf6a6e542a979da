"""Pooling under a soft Gaussian box (spec §4.4): differentiable in the box, without edges."""

from __future__ import annotations

import torch
from torch import Tensor

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
