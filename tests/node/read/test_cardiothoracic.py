"""The cardiothoracic ratio from boxes of regions: what is measured, what is refused, and what the header says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from models.contract import Box
from models.reading.cardiothoracic import EDGE, HEART, LEFT_LUNG, RIGHT_LUNG, ChestWidths, measure_chest
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine, View
from node.dicom.film_header import FilmHeader, parse_header
from node.read import cardiothoracic, prompts
from node.read.framing import Framing, Turn
from tests.support import films, samples
from tests.support.samples import SQUARE
from tests.support.scripted_engine import box

Edges = tuple[float, float, float, float]


def code(value: str, scheme: str) -> Dataset:
    """Return a coded concept."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator = value, scheme
    return item


def chest(
    *, heart: Edges = (0.36, 0.5, 0.66, 0.8), right: Edges = (0.1, 0.1, 0.45, 0.85), left: Edges = (0.55, 0.1, 0.9, 0.9)
) -> dict[str, Box]:
    """Return the boxes of a chest whose lungs have zones of a third each; the upper zones are narrower."""
    regions = {HEART: box(*heart)}
    for keys, (begin, top, end, bottom), outer in ((RIGHT_LUNG, right, 0.08), (LEFT_LUNG, left, 0.0)):
        third = (bottom - top) / 3
        for number, key in enumerate(keys):
            inset = outer if number == 0 else 0.0
            regions[key] = box(begin + inset, top + number * third, end, top + (number + 1) * third)
    return regions


def measured(regions: Mapping[str, Box]) -> ChestWidths:
    found = measure_chest(regions)
    assert found is not None
    return found


def test_the_thorax_reaches_to_the_outer_edges_of_the_lungs() -> None:
    found = measured(chest())

    assert found.ratio == pytest.approx(0.3 / 0.8, abs=1e-6)
    assert (found.heart.left, found.heart.right) == (pytest.approx(0.36), pytest.approx(0.66))
    assert (found.thorax.left, found.thorax.right) == (pytest.approx(0.1), pytest.approx(0.9))


def test_the_lines_lie_at_the_heart_and_at_its_lower_edge() -> None:
    found = measured(chest())

    assert found.heart.height == pytest.approx(0.65)
    assert found.thorax.height == pytest.approx(0.8)


def test_the_line_of_the_thorax_lies_within_both_lungs() -> None:
    assert measured(chest(heart=(0.36, 0.5, 0.66, 0.95))).thorax.height == pytest.approx(0.85)


@given(st.floats(0.5, 1.0), st.floats(0.0, 0.09))
def test_the_ratio_depends_on_no_scale_and_no_shift(scale: float, shift: float) -> None:
    regions = {
        key: replace(part, left=shift + scale * part.left, right=shift + scale * part.right)
        for key, part in chest().items()
    }

    assert measured(regions).ratio == pytest.approx(0.3 / 0.8, abs=1e-5)


@pytest.mark.parametrize("missing", [HEART, RIGHT_LUNG[0], LEFT_LUNG[2]])
def test_a_missing_box_gives_no_ratio(missing: str) -> None:
    regions = chest()
    del regions[missing]

    assert measure_chest(regions) is None


@pytest.mark.parametrize(
    "regions",
    [
        pytest.param(chest(heart=(0.05, 0.5, 0.95, 0.8)), id="heart wider than the thorax"),
        pytest.param(chest(heart=(0.09, 0.5, 0.5, 0.8)), id="heart beyond the right lung"),
        pytest.param(chest(heart=(0.5, 0.5, 0.91, 0.8)), id="heart beyond the left lung"),
        pytest.param(chest(right=(0.55, 0.1, 0.85, 0.9)), id="lungs on one side"),
        pytest.param(chest(right=(0.55, 0.1, 0.9, 0.9), left=(0.1, 0.1, 0.45, 0.9)), id="lungs exchanged"),
        pytest.param(chest(right=(0.1, 0.1, 0.45, 0.4), left=(0.55, 0.5, 0.9, 0.9)), id="lungs share no rows"),
        pytest.param(chest(heart=(0.36, 0.9, 0.66, 0.99)), id="heart shares no rows with the lungs"),
        pytest.param(chest(right=(EDGE - 0.002, 0.1, 0.45, 0.9)), id="cut on the right"),
        pytest.param(chest(left=(0.55, 0.1, 1.002 - EDGE, 0.9)), id="cut on the left"),
        pytest.param(chest(heart=(0.5, 0.5, 0.52, 0.8)), id="a heart as thin as a line"),
        pytest.param(
            chest(heart=(0.45, 0.5, 0.55, 0.8), right=(0.38, 0.1, 0.48, 0.9), left=(0.5, 0.1, 0.6, 0.9)),
            id="a thorax as thin as a spine",
        ),
    ],
)
def test_boxes_that_no_chest_has_give_no_ratio(regions: dict[str, Box]) -> None:
    assert measure_chest(regions) is None


def test_a_lung_at_the_very_margin_is_measured() -> None:
    assert measure_chest(chest(right=(EDGE + 0.002, 0.1, 0.45, 0.9), left=(0.55, 0.1, 0.998 - EDGE, 0.9))) is not None


def test_the_node_asks_for_every_region_that_is_measured() -> None:
    asked = {prompt.key for prompt in prompts.load("chexpert14").prompts}

    assert {HEART, *RIGHT_LUNG, *LEFT_LUNG} <= asked


def test_a_line_is_placed_on_the_stored_film() -> None:
    framing = Framing(columns=samples.COLUMNS, rows=samples.ROWS, square=SQUARE)

    line = framing.line_to_image(left=0.25, right=0.75, height=0.5)

    assert line == MeasuredLine(start=(560, 880), end=(1440, 880))


def test_a_line_on_a_film_stored_on_its_side_is_vertical() -> None:
    framing = Framing(
        columns=samples.ROWS, rows=samples.COLUMNS, square=SQUARE, turn=Turn(transpose=True, mirror_columns=True)
    )

    line = framing.line_to_image(left=0.25, right=0.75, height=0.25)

    assert line.is_vertical
    assert line == MeasuredLine(start=(440, 560), end=(440, 1440))


@pytest.mark.parametrize(
    ("changes", "view"),
    [
        ({"ViewPosition": "PA"}, View.PA),
        ({"ViewPosition": "AP"}, View.AP),
        ({"ViewPosition": "A.P."}, View.AP),
        ({"ViewPosition": "", "BodyPartExamined": "CHEST PA"}, View.PA),
        ({"ViewPosition": "AP", "BodyPartExamined": "CHEST PA"}, None),
        ({"ViewPosition": ""}, None),
        ({"ViewPosition": "AP LLD"}, None),
        ({"ViewPosition": "", "ViewCodeSequence": [code("272479007", "SCT")]}, View.PA),
        ({"ViewPosition": "", "ViewCodeSequence": [code("R-10206", "SRT")]}, View.AP),
        ({"ViewPosition": "PA", "ViewCodeSequence": [code("399348003", "SCT")]}, None),
    ],
)
def test_the_view_is_the_one_that_the_header_names(changes: dict[str, object], view: View | None) -> None:
    header = parse_header(films.changed(samples.cr(), changes))

    assert cardiothoracic.view_of(header) == view


@pytest.mark.parametrize(
    ("view", "age", "objection"),
    [
        ("PA", 18, None),
        ("PA", 17, Incomparable.CHILD),
        ("PA", None, Incomparable.AGE_UNKNOWN),
        ("AP", 45, Incomparable.VIEW_AP),
        ("AP", 3, Incomparable.VIEW_AP),
        ("", 45, Incomparable.VIEW_UNKNOWN),
    ],
)
def test_only_an_adult_in_pa_view_can_be_compared(view: str, age: int | None, objection: Incomparable | None) -> None:
    measured = samples.ratio(view=None, objection=Incomparable.VIEW_UNKNOWN)

    described = cardiothoracic.describe(measured, replace(_header(view), age_years=age), None)

    assert described is not None
    assert described.objection == objection
    assert (described.band is None) == (objection is not None)
    assert described.value == measured.value


def test_millimeters_follow_the_axis_of_the_lines() -> None:
    across = samples.ratio()
    upright = replace(across, heart=_turned(across.heart), thorax=_turned(across.thorax))

    described = [cardiothoracic.describe(ratio, _header("PA"), (0.2, 0.1)) for ratio in (across, upright)]

    assert [ratio.mm_per_pixel for ratio in described if ratio] == [0.1, 0.2]  # between columns, between rows
    assert len({ratio.value for ratio in described if ratio}) == 1


def test_without_boxes_there_is_nothing_to_describe() -> None:
    assert cardiothoracic.describe(None, _header("PA"), None) is None


def _header(view: str) -> FilmHeader:
    """Return the header of an adult's film."""
    return replace(parse_header(films.changed(samples.cr(), {"ViewPosition": view})), age_years=45)


def _turned(line: MeasuredLine) -> MeasuredLine:
    return MeasuredLine(start=line.start[::-1], end=line.end[::-1])


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
