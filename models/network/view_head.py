"""The view head: tells from the patches of a film which view it shows, and whether it is mirrored or rotated.

It is not part of the published network. It reads what the image encoder made for the other parts, and changes none of
them: a model without it gives the same answers.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.manifest import ViewSizes
from models.views import OUTPUTS

_CHANNELS = 32
"""How many numbers describe a cell of the coarse grid; the sides of a film lie in where they are, not in how many."""


class ViewHead(nn.Module):
    """Two linear layers on a coarse grid of patches, in which left and right, above and below stay apart."""

    def __init__(self, sizes: ViewSizes, *, dim: int, grid: int) -> None:
        super().__init__()
        self.cells, self.patches = sizes.cells, grid // sizes.cells
        self.cell = nn.Linear(dim, _CHANNELS)
        self.expand = nn.Linear(sizes.cells**2 * _CHANNELS, sizes.width)
        self.contract = nn.Linear(sizes.width, OUTPUTS)

    def forward(self, patches: Tensor) -> Tensor:
        """Map patches [F, P, dim], row by row, to the outputs [F, 6] of `models.views`."""
        judged: Tensor = self.judge(self.pool(patches))
        return judged

    def pool(self, patches: Tensor) -> Tensor:
        """Average normalized patches [F, P, dim] in the cells of the coarse grid: [F, cells * cells, dim]."""
        films, _, dim = patches.shape
        normal = functional.layer_norm(patches, (dim,))
        grid = normal.reshape(films, self.cells, self.patches, self.cells, self.patches, dim)
        return grid.mean(dim=(2, 4)).reshape(films, self.cells**2, dim)

    def judge(self, pooled: Tensor) -> Tensor:
        """Map what was pooled to the outputs."""
        judged: Tensor = self.contract(functional.gelu(self.expand(functional.gelu(self.cell(pooled)).flatten(1))))
        return judged
