"""The age of a patient, from headers as devices write it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydicom.datadict import tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag

from node.dicom.dates import patient_age
from tests.support import films

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
        ({"PatientAge": "45"}, 45),
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
    assert patient_age(header(**values)).years == age


@pytest.mark.parametrize("keyword", ["PatientAge", "PatientBirthDate"])
def test_a_broken_attribute_counts_as_absent(keyword: str) -> None:
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    dataset = Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})

    assert patient_age(dataset).years is None
