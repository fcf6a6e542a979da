"""CLIP vision transformer: encodes pixels into a grid of patch features (spec §2). The picture size is fixed."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.manifest import ImageEncoderSizes
from models.network.attention import ClipLayer


class ImageEncoder(nn.Module):
    """P patches of a square, preceded by a class token, and a projection to the shared dim."""

    def __init__(self, sizes: ImageEncoderSizes) -> None:
        super().__init__()
        width, patch = sizes.width, sizes.patch_size
        # The published weights are for color pictures: the gray picture is used as three equal channels.
        self.channels = 3 if sizes.stem == "patch" else 1
        self.stem = (
            nn.Conv2d(self.channels, width, kernel_size=patch, stride=patch, bias=False)
            if sizes.stem == "patch"
            else convolutions(width, patch=patch, residual=sizes.stem == "residual")
        )
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(1 + sizes.grid**2, width) * width**-0.5)
        self.norm_before = nn.LayerNorm(width)
        self.layers = nn.ModuleList(ClipLayer(width, heads=sizes.heads, causal=False) for _ in range(sizes.layers))
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, sizes.output) * width**-0.5)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode gray films [F, side, side], normalized.

        Returns patches [F, P, output] row by row, positions [F, P, output], which are before any layer norm and the
        same for every film, and cls [F, output]. None of them is of unit length.
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


class Residual(nn.Module):
    """Two convolutions beside a shortcut; its gain starts at zero, so a new block changes nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.second = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.gain = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, grid: Tensor) -> Tensor:
        """Map [F, channel, row, column] to the same shape."""
        inner: Tensor = self.second(functional.gelu(self.first(functional.gelu(grid))))
        return grid + self.gain * inner


def convolutions(width: int, *, patch: int, residual: bool = False) -> nn.Sequential:
    """Return convolutions that halve the picture down to the patch grid, doubling the channels up to `width`.

    residual: with a residual block after each halving but the first, whose picture is too large for it
    """
    steps = patch.bit_length() - 1
    channels = [1, *(width >> step for step in reversed(range(steps)))]
    layers: list[nn.Module] = []
    for given, made in pairwise(channels):
        layer = nn.Conv2d(given, made, kernel_size=3, stride=2, padding=1)
        # PyTorch's default initialization would shrink the signal too much over four layers.
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layers += [layer, *([Residual(made)] if residual and given > 1 else []), nn.GELU()]
    return nn.Sequential(*layers[:-1])
