"""CLIP vision transformer: pixels to a grid of patch features (SPEC.md 2). Only one picture size is accepted."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from models.attention import ClipLayer
from models.manifest import ImageEncoderSizes


class ImageEncoder(nn.Module):
    """P patches of a square, a class token before them, and a projection into the shared dim."""

    def __init__(self, sizes: ImageEncoderSizes) -> None:
        super().__init__()
        width, patch = sizes.width, sizes.patch_size
        # The published weights are those of a color network: the gray picture enters as three equal channels.
        self.channels = 3 if sizes.stem == "patch" else 1
        self.stem = (
            nn.Conv2d(self.channels, width, kernel_size=patch, stride=patch, bias=False)
            if sizes.stem == "patch"
            else convolutions(width, patch=patch)
        )
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(1 + sizes.grid**2, width) * width**-0.5)
        self.norm_before = nn.LayerNorm(width)
        self.layers = nn.ModuleList(ClipLayer(width, heads=sizes.heads, causal=False) for _ in range(sizes.layers))
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, sizes.output) * width**-0.5)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode gray films [F, side, side], normalized.

        Returns patches [F, P, output] row by row, positions [F, P, output], which no layer norm has seen and which are
        the same for every film, and cls [F, output]. None of them is of unit length.
        """
        films = pixels.shape[0]
        patches = self.stem(pixels.unsqueeze(1).expand(-1, self.channels, -1, -1)).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(films, 1, -1), patches], dim=1) + self.positions
        tokens = self.norm_before(tokens)
        for layer in self.layers:
            tokens = layer(tokens)
        projected = self.norm_after(tokens) @ self.projection
        positions = (self.positions[1:] @ self.projection).expand(films, -1, -1)
        return projected[:, 1:], positions, projected[:, 0]


def convolutions(width: int, *, patch: int) -> nn.Sequential:
    """Halve a gray picture until a pixel stands for a patch, with twice the channels at each step, `width` at last."""
    steps = patch.bit_length() - 1
    channels = [1, *(width >> step for step in reversed(range(steps)))]
    layers: list[nn.Module] = []
    for given, made in pairwise(channels):
        layer = nn.Conv2d(given, made, kernel_size=3, stride=2, padding=1)
        # The usual start is made for many more inputs and would leave little of a picture after four layers.
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layers += [layer, nn.GELU()]
    return nn.Sequential(*layers[:-1])
