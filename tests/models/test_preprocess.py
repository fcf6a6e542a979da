"""The network's input and the square it shows: geometry and pixels must tell the same story."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.manifest import InputRule
from models.reading.preprocess import prepare, square

DIRECT = InputRule(size=224, mean=0.505, std=0.248, resize="direct")
VIA_256 = InputRule(size=224, mean=0.505, std=0.248, resize="via_256")

sides = st.integers(1, 5000)
rules = st.sampled_from([DIRECT, VIA_256])


@given(sides, sides, rules)
def test_square_lies_in_the_film_and_fills_its_short_side(columns: int, rows: int, rule: InputRule) -> None:
    seen = square(columns, rows, rule)

    assert seen.left >= 0 and seen.top >= 0
    assert seen.right <= columns + 1e-9 and seen.bottom <= rows + 1e-9
    width, height = seen.right - seen.left, seen.bottom - seen.top
    assert max(width, height) >= min(columns, rows) - 1e-9
    assert abs(width - height) <= max(columns, rows) / 256


@given(sides, sides, rules)
def test_square_is_central_to_a_pixel_of_the_resized_film(columns: int, rows: int, rule: InputRule) -> None:
    seen = square(columns, rows, rule)

    pixel = 1 if rule is DIRECT else max(1, min(columns, rows) / 255)
    assert abs(seen.left - (columns - seen.right)) <= pixel + 1e-9
    assert abs(seen.top - (rows - seen.bottom)) <= pixel + 1e-9


@pytest.mark.parametrize(
    ("columns", "rows", "rule", "seen"),
    [
        (640, 512, DIRECT, (64, 0, 576, 512)),
        (513, 512, DIRECT, (0, 0, 512, 512)),
        (512, 640, VIA_256, (0, 64, 512, 576)),
        # 512.5 columns round to 512, 513.5 to 514: halves go to even.
        (1025, 512, VIA_256, (128 * 1025 / 512, 0, 384 * 1025 / 512, 512)),
        (1027, 512, VIA_256, (129 * 1027 / 514, 0, 385 * 1027 / 514, 512)),
        (100, 100, VIA_256, (0, 0, 100, 100)),
    ],
)
def test_square_of_known_films(
    columns: int, rows: int, rule: InputRule, seen: tuple[float, float, float, float]
) -> None:
    assert square(columns, rows, rule) == pytest.approx(seen)


@given(st.integers(300, 700), st.integers(300, 700), rules, st.floats(0.2, 0.8), st.floats(0.2, 0.8))
@example(701, 300, VIA_256, 0.5, 0.5)
def test_a_spot_on_the_film_appears_where_the_square_says(
    columns: int, rows: int, rule: InputRule, x: float, y: float
) -> None:
    seen = square(columns, rows, rule)
    column = int(seen.left + x * (seen.right - seen.left))
    row = int(seen.top + y * (seen.bottom - seen.top))
    film = np.zeros((rows, columns), dtype=np.float32)
    film[row - 4 : row + 5, column - 4 : column + 5] = 1

    light = prepare(film, rule) * rule.std + rule.mean

    centers = (np.arange(rule.size) + 0.5) / rule.size
    found_x = (light.sum(axis=0) * centers).sum() / light.sum()
    found_y = (light.sum(axis=1) * centers).sum() / light.sum()
    assert found_x == pytest.approx((column + 0.5 - seen.left) / (seen.right - seen.left), abs=1.5 / rule.size)
    assert found_y == pytest.approx((row + 0.5 - seen.top) / (seen.bottom - seen.top), abs=1.5 / rule.size)


@pytest.mark.parametrize("rule", [DIRECT, VIA_256])
@pytest.mark.parametrize("shape", [(1, 1), (3, 900), (224, 224), (300, 260)])
def test_an_even_film_becomes_an_even_input(rule: InputRule, shape: tuple[int, int]) -> None:
    pixels = prepare(np.full(shape, 0.75, dtype=np.float32), rule)

    assert pixels.shape == (224, 224) and pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, (0.75 - 0.505) / 0.248, atol=1e-5)


def test_a_film_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="0 x 5"):
        square(0, 5, DIRECT)
