"""Numbers, masks and gradients for the tests of the losses."""

from __future__ import annotations

import torch
from torch import Tensor

LEFT, RIGHT, WHOLE = [0.25, 0.5, 0.5, 1.0], [0.75, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers 0..1, exact enough that no two sums of them are equal."""
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def everything(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def nothing(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def gradients(loss: Tensor, *learned: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in found)
    return list(found)


def learned(*shape: int) -> Tensor:
    return drawn(*shape).float().requires_grad_()
