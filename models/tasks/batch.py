"""Films of one batch: what the network saw of them, and lists of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.answers import FloatArray

Picture = tuple[Tensor, Tensor, Tensor]
"""What `Chex.encode_image` gives of films: patches [F, P, dim], positions [F, P, dim] and cls [F, dim]."""


def fill_up(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join lists of different lengths, [n, width] of each film, at least one film; the shorter end in zeros.

    Returns [F, longest, width] and the padding [F, longest], True where nothing was given.
    """
    joined = pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows], device=joined.device)
    padding = torch.arange(joined.shape[1], device=joined.device) >= lengths.unsqueeze(1)
    return joined, padding


def as_array(tensor: Tensor) -> FloatArray:
    """Take numbers off the network's device; nothing after it needs torch."""
    array: FloatArray = tensor.detach().cpu().numpy()
    return array
