"""The band of a finding in which it is to be reviewed: where it begins, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest

from models.lab.evaluation.bands import measured_band

NOBODY = np.zeros(0)


def test_a_band_begins_where_one_film_in_ten_shows_the_finding() -> None:
    rng = np.random.default_rng(2)
    said = rng.random(8000) ** 2
    there = rng.random(8000) < said  # calibrated: of the films with probability p, so many show the finding

    band = measured_band(said, there, threshold=0.3, normal=NOBODY)

    assert band is not None
    assert band.lower == pytest.approx(0.1, abs=0.05)
    assert band.missed <= 0.1 * band.below
    assert (band.below, band.missed) == ((said < band.lower).sum(), there[said < band.lower].sum())
    assert band.shown / band.within == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("between", "has_band"), [(24, True), (26, False)])
def test_a_band_of_more_than_a_quarter_of_the_films_is_left_out(between: int, *, has_band: bool) -> None:
    said = np.array([0.1] * (90 - between) + [0.3] * between + [0.9] * 10)
    there = said > 0.2

    band = measured_band(said, there, threshold=0.5, normal=NOBODY)

    assert (band is not None) == has_band
    if band is not None:
        assert band.within == between


@pytest.mark.parametrize(
    ("unlikely", "likely", "lower"),
    [
        pytest.param((4, 0), (20, 0), 0.5, id="as likely as not"),
        pytest.param((4, 2), (20, 10), 0.25, id="from where one in ten shows it"),
        pytest.param((10, 5), (20, 10), 0.5, id="too many with those below 0.5"),
        pytest.param((4, 0), (40, 0), 0.8, id="too many with those from 0.5 on"),
        pytest.param((4, 0), (40, 40), None, id="too many in any case"),
    ],
)
def test_a_band_below_a_high_threshold_begins_at_one_half(
    unlikely: tuple[int, int], likely: tuple[int, int], lower: float | None
) -> None:
    """Of 100 films; unlikely, likely: how many have a probability of 0.4 and of 0.6, and how many of these show it."""
    groups = [(0.1, 90 - unlikely[0] - likely[0], 0), (0.4, *unlikely), (0.6, *likely), (0.9, 10, 10)]
    said = np.concatenate([np.full(films, probability) for probability, films, _ in groups])
    there = np.concatenate([np.arange(films) < shown for _, films, shown in groups])

    band = measured_band(said, there, threshold=0.8, normal=NOBODY)

    assert (band and band.lower) == (lower if lower is None else pytest.approx(lower, abs=1e-5))


@pytest.mark.parametrize(
    ("there", "lower"),
    [
        ((0, 0, 0, 1, 1, 1), 0.35),
        ((0, 0, 0, 0, 1, 1), 0.5),
        ((0, 0, 0, 0, 0, 1), 0.5),
        ((1, 1, 1, 1, 1, 1), 0.05),
        ((0, 1, 0, 0, 0, 1), 0.15),
    ],
)
def test_a_band_is_as_wide_as_the_films_ask_for(there: tuple[int, ...], lower: float) -> None:
    said = np.array([0.0] * 20 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    band = measured_band(said, np.array([0] * 20 + list(there), dtype=np.bool_), threshold=0.5, normal=NOBODY)

    assert band is not None and band.lower == pytest.approx(lower, abs=1e-5)


def test_a_finding_that_is_never_present_has_no_band() -> None:
    assert measured_band(np.array([0.1, 0.9]), np.array([False, True]), threshold=1.0, normal=NOBODY) is None


@pytest.mark.parametrize(("between", "lower"), [(1, 0.25), (2, 0.45)])
def test_a_band_holds_at_most_a_tenth_of_the_normal_films(between: int, lower: float) -> None:
    """Of ten films without any finding; between: how many have a probability that reaches the lowest band."""
    said = np.array([0.1] * 80 + [0.4] * 5 + [0.5] * 5 + [0.9] * 10)
    normal = np.array([0.1] * (10 - between) + [0.4] * between)

    band = measured_band(said, said > 0.2, threshold=0.8, normal=normal)

    assert band is not None
    assert band.lower == pytest.approx(lower, abs=1e-5) and band.normal == (0.1 if between == 1 else 0)
