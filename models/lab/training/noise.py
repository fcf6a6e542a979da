"""Noise that training adds to the network, by hooks on its modules: the network itself contains no noise.

Dropout after attention and after each layer of the decoders' MLPs, inside attention, in the hidden layer of the heads
and around the generator's prefix, and drop path (spec §10). A branch is dropped for a whole film.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.lab.training.stages import Noise
from models.network.attention import Attention, DecoderLayer, Mlp
from models.network.chex import Chex

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@contextlib.contextmanager
def disturbed(network: Chex, noise: Noise) -> Iterator[None]:
    """Add the noise to a network while the context lasts."""
    handles = []
    for place, layers in (("detector", network.detector.layers), ("post", network.post_decoder.layers)):
        for layer in layers:
            if isinstance(layer, DecoderLayer):
                handles += _disturb_layer(layer, noise, all_branches=place == "post")
    for head in (network.detector.box, network.detector.region, network.detector.score):
        handles.append(head.contract.register_forward_pre_hook(_before(noise.dropout)))
    if isinstance(network.generator.prefix, Mlp):
        handles += _disturb_mlp(network.generator.prefix, noise.prefix)
    decoders = (*network.detector.layers.modules(), *network.post_decoder.layers.modules())
    decoding = [module for module in decoders if isinstance(module, Attention)]
    for attention in decoding:
        attention.dropout = noise.attention
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for attention in decoding:
            attention.dropout = 0.0


def _disturb_layer(layer: DecoderLayer, noise: Noise, *, all_branches: bool) -> list[torch.utils.hooks.RemovableHandle]:
    films = [1]

    def count(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        films[0] = inputs[0].shape[0]

    handles = [layer.register_forward_pre_hook(count), *_disturb_mlp(layer.mlp, noise.dropout)]
    for branch in (layer.self_attention, layer.cross_attention):
        handles.append(branch.register_forward_hook(_after(noise.dropout)))
    dropped = [layer.self_attention, layer.mlp, *([layer.cross_attention] if all_branches else [])]
    handles += [branch.register_forward_hook(_drop_path(noise.drop_path, films)) for branch in dropped]
    return handles


def _disturb_mlp(mlp: Mlp, share: float) -> list[torch.utils.hooks.RemovableHandle]:
    return [mlp.contract.register_forward_pre_hook(_before(share)), mlp.register_forward_hook(_after(share))]


def _before(share: float) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def drop(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (functional.dropout(inputs[0], share, module.training), *inputs[1:])

    return drop


def _after(share: float) -> Hook:
    def drop(module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return functional.dropout(output, share, module.training)

    return drop


def _drop_path(share: float, films: list[int]) -> Hook:
    def drop(module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not (module.training and share):
            return output
        kept = (torch.rand(films[0], device=output.device) >= share).to(output.dtype) / (1 - share)
        # The groups of one film are adjacent in the batch of its self-attention.
        return output * kept.repeat_interleave(output.shape[0] // films[0])[:, None, None]

    return drop
