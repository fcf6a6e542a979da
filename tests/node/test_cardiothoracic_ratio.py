"""A measured ratio: its value, its band, its millimeters, and what it refuses to be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine, View
from tests.support import samples


def across(width: float) -> MeasuredLine:
    return MeasuredLine(start=(0.0, 10.0), end=(width, 10.0))


@pytest.mark.parametrize(
    ("heart", "band"), [(494, 0), (495, 1), (500, 1), (544, 1), (545, 2), (595, 3), (600, 3), (990, 3)]
)
def test_the_band_follows_from_the_number_that_people_read(heart: float, band: int) -> None:
    ratio = replace(samples.ratio(), heart=across(heart), thorax=across(1000))

    assert ratio.band == band
    assert ratio.hundredths == math.floor(heart / 10 + 0.5)


@pytest.mark.parametrize("objection", Incomparable)
def test_what_cannot_be_compared_has_no_band(objection: Incomparable) -> None:
    assert samples.ratio(objection=objection).band is None


def test_a_line_has_millimeters_only_with_a_spacing() -> None:
    assert samples.ratio().millimeters(across(100)) is None
    assert samples.ratio(mm_per_pixel=0.2).millimeters(across(100)) == pytest.approx(20)


def test_a_ratio_does_not_depend_on_the_spacing() -> None:
    assert samples.ratio(mm_per_pixel=0.2).value == samples.ratio().value == 720 / 1500


@pytest.mark.parametrize(
    ("start", "end"),
    [((0, 0), (0, 0)), ((5, 0), (0, 0)), ((0, 0), (5, 5)), ((0, 0), (math.inf, 0)), ((0, math.nan), (5, math.nan))],
)
def test_a_line_lies_along_an_axis_and_has_a_length(start: tuple[float, float], end: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a line"):
        MeasuredLine(start=start, end=end)


@pytest.mark.parametrize(
    ("heart", "thorax"),
    [(across(100), across(100)), (MeasuredLine(start=(5.0, 0.0), end=(5.0, 9.0)), across(100))],
    ids=["as wide as the thorax", "along another axis"],
)
def test_a_heart_lies_within_its_thorax(heart: MeasuredLine, thorax: MeasuredLine) -> None:
    with pytest.raises(ValueError, match="heart"):
        CardiothoracicRatio(heart=heart, thorax=thorax)


@pytest.mark.parametrize("view", [View.AP, None])
def test_only_a_pa_view_can_be_compared(view: View | None) -> None:
    with pytest.raises(ValueError, match="PA view"):
        samples.ratio(view=view, objection=None)


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.inf, math.nan])
def test_a_pixel_has_a_size(spacing: float) -> None:
    with pytest.raises(ValueError, match="mm_per_pixel"):
        samples.ratio(mm_per_pixel=spacing)
