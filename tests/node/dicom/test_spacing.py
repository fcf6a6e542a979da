"""The calibrated spacing of a film, from headers as devices write it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydicom.datadict import tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag

from node.dicom.film_header import calibrated_spacing, has_oblong_pixels
from tests.support import films


def header(**values: object) -> Dataset:
    return films.changed(Dataset(), values)


@pytest.mark.parametrize(
    ("values", "spacing"),
    [
        ({"PixelSpacing": [0.2, 0.1]}, None),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "FIDUCIAL"}, (0.2, 0.1)),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "GEOMETRY"}, (0.2, 0.1)),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "GUESS"}, None),
        ({"PixelSpacing": [0, 0], "PixelSpacingCalibrationType": "GEOMETRY"}, None),
        ({"PixelSpacing": [0.2], "PixelSpacingCalibrationType": "GEOMETRY"}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15]}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "1.5"}, (0.2, 0.1)),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "0.5"}, None),
        ({"EstimatedRadiographicMagnificationFactor": "1.5"}, None),
        (
            {
                "PixelSpacing": [0.3, 0.15],
                "ImagerPixelSpacing": [0.3, 0.15],
                "EstimatedRadiographicMagnificationFactor": "1.5",
            },
            (0.2, 0.1),
        ),
    ],
)
def test_a_spacing_counts_only_within_the_patient(
    values: Mapping[str, object], spacing: tuple[float, float] | None
) -> None:
    found = calibrated_spacing(header(**values))

    assert found == (None if spacing is None else pytest.approx(spacing))


@pytest.mark.parametrize("keyword", ["PixelSpacing", "ImagerPixelSpacing"])
def test_a_broken_attribute_counts_as_absent(keyword: str) -> None:
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    dataset = Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})

    assert calibrated_spacing(dataset) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, False),
        ({"PixelSpacing": [0.4, 0.4]}, False),
        ({"PixelSpacing": [0.4, 0.40001]}, False),
        ({"PixelSpacing": [0.4, 0.8]}, True),
        ({"PixelSpacing": [0.4, 0.4], "ImagerPixelSpacing": [0.4, 0.8]}, True),
        ({"PixelAspectRatio": ["1", "2"]}, True),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0.4, 0.4]}, False),
        ({"PixelAspectRatio": ["1", "2"], "ImagerPixelSpacing": [0.4, 0.4]}, False),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0, 0]}, True),
        ({"PixelSpacing": [0, 0.8]}, False),
    ],
)
def test_pixels_are_oblong_if_rows_and_columns_differ(values: Mapping[str, object], expected: bool) -> None:
    assert has_oblong_pixels(header(**values)) == expected
