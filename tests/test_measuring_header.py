"""Age and calibrated spacing of a film, from headers as devices write them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydicom.datadict import tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag

from node.dicom.measuring_header import MeasuringHeader, parse_measuring
from tests import films

BORN = {"PatientBirthDate": "20060315", "StudyDate": "20240315"}


def header(**values: object) -> Dataset:
    return films.changed(Dataset(), values)


@pytest.mark.parametrize(
    ("values", "age"),
    [
        ({"PatientAge": "045Y"}, 45),
        ({"PatientAge": "018Y"}, 18),
        ({"PatientAge": "216M"}, 18),
        ({"PatientAge": "215M"}, 17),
        ({"PatientAge": "010D"}, 0),
        ({"PatientAge": "45"}, None),
        (BORN, 18),
        (BORN | {"StudyDate": "20240314"}, 17),
        (BORN | {"StudyDate": ""}, None),
        (BORN | {"PatientBirthDate": "19500229"}, None),
        (BORN | {"StudyDate": "20050101"}, None),
        (BORN | {"PatientAge": "045Y"}, 18),
        (BORN | {"PatientAge": "012Y"}, 12),
        ({}, None),
    ],
)
def test_the_age_is_in_completed_years_and_the_lower_of_two(values: Mapping[str, str], age: int | None) -> None:
    assert parse_measuring(header(**values)).age_years == age


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
    found = parse_measuring(header(**values)).spacing

    assert found == (None if spacing is None else pytest.approx(spacing))


@pytest.mark.parametrize("keyword", ["PatientAge", "PatientBirthDate", "PixelSpacing", "ImagerPixelSpacing"])
def test_a_broken_attribute_counts_as_absent(keyword: str) -> None:
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    dataset = Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})

    assert parse_measuring(dataset) == MeasuringHeader(age_years=None, spacing=None)
