"""The band of a finding in which it is to be reviewed: where it begins, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest

from models.lab.evaluation.thresholds import measured_band

NOBODY = np.zeros(0)


def test_a_band_begins_where_half_of_what_it_shows_is_there() -> None:
    said = np.arange(1, 100) / 100
    there = (said >= 0.3) & (np.arange(99) % 4 > 0)  # three of four from 0.3 on

    band = measured_band(said, there, threshold=0.5, normal=said[said < 0.2])

    assert band is not None
    assert 2 * band.shown >= band.within > 0
    assert band.lower == pytest.approx(0.2, abs=0.03), "15 of 20 from 0.3 on, and 10 more below"
    assert (band.below, band.missed) == ((said < band.lower).sum(), there[said < band.lower].sum())


@pytest.mark.parametrize(
    ("threshold", "lower"), [pytest.param(0.4, 0.4, id="none"), pytest.param(0.8, 0.5, id="as likely as not")]
)
def test_where_less_is_there_only_what_is_likely_is_to_be_reviewed(threshold: float, lower: float) -> None:
    said = np.arange(1, 100) / 100

    band = measured_band(said, said >= threshold, threshold=threshold, normal=NOBODY)

    assert band is not None and (band.lower, band.shown) == (lower, 0)


def test_a_finding_that_is_never_present_has_no_band() -> None:
    assert measured_band(np.array([0.2]), np.array([True]), threshold=1.0, normal=NOBODY) is None
