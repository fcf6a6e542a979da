"""How the losses of a batch become one number: only what a mask counts takes part, and a mean of nothing is 0."""

from __future__ import annotations

from torch import Tensor


def mean_of(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [...] where counted [...], all alike, into a scalar."""
    return losses.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def mean_by_film(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [F, n] where counted [F, n] within each film, then over the films, into a scalar.

    Films without anything counted take no part, as the published training leaves them out of its batch (SPEC.md 10).
    """
    within = losses.masked_fill(~counted, 0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    return mean_of(within, counted.any(dim=1))
