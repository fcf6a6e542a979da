"""What a network proposes for one film, as a test says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.network.detector import Detection


def proposals(
    boxes: Sequence[Sequence[list[float]]], scores: Sequence[Sequence[float]], tokens: Tensor | None = None
) -> Detection:
    """The boxes [C, R, 4] of each class, phrase or sentence on one film, with their scores [C, R]."""
    judged = torch.tensor([scores])
    tokens = torch.ones(*judged.shape, 2) if tokens is None else tokens
    return Detection(
        boxes=torch.tensor([boxes]),
        scores=judged,
        tokens=tokens,
        aggregated_scores=judged.mean(dim=-1),
        aggregated=tokens.mean(dim=2),
    )
