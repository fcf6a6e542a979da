"""Which weights a stage trains, and the initial weights of a network that starts from random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from models.errors import ModelError
from models.lab.training.stages import Stage
from models.network.chex import Chex


def free(network: Chex, stage: Stage) -> list[nn.Parameter]:
    """Enable gradients for the weights of a stage only. Returns them in the network's order. Raises ModelError."""
    names = [name for name, _ in network.named_parameters()]
    for key, beginnings in (("train", stage.train), ("frozen", stage.frozen)):
        for beginning in beginnings:
            if not any(begins_with(name, [beginning]) for name in names):
                raise ModelError(
                    f"stage {stage.name}: {key} names {beginning}, but no weight has a name that begins so"
                )
    learning = []
    for name, parameter in network.named_parameters():
        learns = begins_with(name, stage.train) and not begins_with(name, stage.frozen)
        parameter.requires_grad_(learns)
        if learns:
            learning.append(parameter)
    if not learning:
        raise ModelError(f"stage {stage.name}: all its weights are frozen; correct train and frozen")
    return learning


def begins_with(name: str, beginnings: Sequence[str]) -> bool:
    """Say whether the name of a weight or part begins with one of these dotted names of a run file."""
    return any(name == beginning or name.startswith(f"{beginning}.") for beginning in beginnings)


@torch.no_grad()
def start(network: Chex) -> None:
    """Initialize the embeddings as GPT-2 and CLIP do; PyTorch's default is far too large for them."""
    for embedding in (network.generator.tokens, network.generator.positions, network.prompt_encoder.tokens):
        embedding.weight.normal_(std=0.02)
