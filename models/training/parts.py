"""Which weights a stage trains, and how a network starts that no weights are known of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from models.chex import Chex
from models.errors import ModelError
from models.training.stages import Stage


def free(network: Chex, stage: Stage) -> list[nn.Parameter]:
    """Let a stage's weights learn and nothing else; returns them in the network's order. Raises ModelError."""
    names = [name for name, _ in network.named_parameters()]
    for key, beginnings in (("train", stage.train), ("frozen", stage.frozen)):
        for beginning in beginnings:
            if not any(_is_part(name, [beginning]) for name in names):
                raise ModelError(f"stage {stage.name}: {key} names {beginning}, and no weight begins so")
    learning = []
    for name, parameter in network.named_parameters():
        learns = _is_part(name, stage.train) and not _is_part(name, stage.frozen)
        parameter.requires_grad_(learns)
        if learns:
            learning.append(parameter)
    if not learning:
        raise ModelError(f"stage {stage.name}: everything is frozen; correct train and frozen")
    return learning


@torch.no_grad()
def start(network: Chex) -> None:
    """Bring embeddings to the size that GPT-2 and CLIP start with; PyTorch's own is made for other networks."""
    for embedding in (network.generator.tokens, network.generator.positions, network.prompt_encoder.tokens):
        embedding.weight.normal_(std=0.02)


def _is_part(name: str, beginnings: Sequence[str]) -> bool:
    return any(name == beginning or name.startswith(f"{beginning}.") for beginning in beginnings)
