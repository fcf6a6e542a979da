"""The films of a batch: the network's outputs, and lists of different lengths padded to one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.engines import FloatArray

Picture = tuple[Tensor, Tensor, Tensor]
"""The result of `Chex.encode_image`: patches [F, P, dim], positions [F, P, dim] and cls [F, dim]."""


def fill_up(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad lists of different lengths, [n, width] of each film, with zeros; at least one film.

    Returns [F, longest, width] and the padding [F, longest], True where there is no entry.
    """
    joined = pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows], device=joined.device)
    padding = torch.arange(joined.shape[1], device=joined.device) >= lengths.unsqueeze(1)
    return joined, padding


def as_array(tensor: Tensor) -> FloatArray:
    """Convert a tensor to numpy; the code after it needs no torch."""
    array: FloatArray = tensor.detach().cpu().numpy()
    return array
