"""Soft boxes against their formula, written out in double precision (spec §4.4)."""

from __future__ import annotations

import pytest
import torch

from models.network.detector import pool, soft_boxes

GRID = 7


@pytest.mark.parametrize("center", [0.0, 0.3, 0.5 / GRID])
def test_empty_box_gives_numbers(center: float) -> None:
    weights = soft_boxes(torch.tensor([[[center, center, 0.0, 0.0]]]), grid=GRID, beta=2.0)

    assert weights.isfinite().all()


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
