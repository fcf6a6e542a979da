"""Masked means of the losses of a batch; the mean of nothing is 0."""

from __future__ import annotations

from torch import Tensor


def mean_of(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [...] over the entries marked in counted [...], into a scalar."""
    return losses.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def mean_by_film(losses: Tensor, counted: Tensor) -> Tensor:
    """Average losses [F, n] over counted [F, n] within each film, then over the films, into a scalar.

    Films without a counted entry are ignored, as the published training removes them from its batch (spec §10).
    """
    within = losses.masked_fill(~counted, 0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    return mean_of(within, counted.any(dim=1))
