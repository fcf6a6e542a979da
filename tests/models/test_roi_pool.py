"""Soft boxes against their formula, written out in double precision (spec §4.4)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.network.detector import pool, soft_boxes

GRID = 7

BOXES = {
    "an ordinary box": (0.4, 0.6, 0.3, 0.2),
    "the whole square": (0.5, 0.5, 1.0, 1.0),
    "a box that lies between all patches": (0.43, 0.43, 0.019, 0.02),
    "a box beyond the square": (1.3, -0.2, 0.2, 0.2),
}


def weights_of(box: tuple[float, float, float, float]) -> NDArray[np.float64]:
    x, y, width, height = box
    centers = (np.arange(GRID) + 0.5) / GRID
    across, down = np.exp(-(((centers - x) / width) ** 2)), np.exp(-(((centers - y) / height) ** 2))
    weights: NDArray[np.float64] = np.outer(down, across)
    weights /= weights.max() + 1e-12
    return weights


@pytest.mark.parametrize("box", BOXES.values(), ids=BOXES.keys())
def test_soft_box_follows_its_formula(box: tuple[float, float, float, float]) -> None:
    weights = soft_boxes(torch.tensor([[box]]), grid=GRID, beta=2.0)

    np.testing.assert_allclose(weights.reshape(GRID, GRID), weights_of(box), atol=2e-5)


@pytest.mark.parametrize("center", [0.0, 0.3, 0.5 / GRID])
def test_empty_box_gives_numbers(center: float) -> None:
    weights = soft_boxes(torch.tensor([[[center, center, 0.0, 0.0]]]), grid=GRID, beta=2.0)

    assert weights.isfinite().all()


def test_pooling_sums_and_does_not_average() -> None:
    features = torch.ones(1, GRID * GRID, 4)
    box = (0.5, 0.5, 0.4, 0.4)

    pooled = pool(features, torch.tensor([[box]]), grid=GRID, beta=2.0)

    np.testing.assert_allclose(pooled[0, 0], np.full(4, weights_of(box).sum()), rtol=1e-5)


def test_a_finer_grid_can_give_sums_of_the_same_size() -> None:
    coarse, fine = (
        pool(torch.ones(1, grid**2, 1), torch.tensor([[[0.5, 0.5, 0.4, 0.4]]]), grid=grid, beta=2.0, scaled=True)
        for grid in (GRID, 2 * GRID)
    )
    published = pool(torch.ones(1, GRID**2, 1), torch.tensor([[[0.5, 0.5, 0.4, 0.4]]]), grid=GRID, beta=2.0)

    assert torch.equal(coarse, published)
    assert fine.item() == pytest.approx(coarse.item(), rel=0.05)


def test_rows_are_y_and_columns_are_x() -> None:
    weights = soft_boxes(torch.tensor([[[0.9, 0.1, 0.2, 0.2]]]), grid=GRID, beta=2.0).reshape(GRID, GRID)

    row, column = divmod(int(weights.argmax()), GRID)
    assert (row, column) == (0, GRID - 1)
