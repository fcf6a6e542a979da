"""The age of a patient at the time of a study. A broken attribute counts as absent."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes

_AGE: Final = re.compile(r"([0-9]{3})([DWMY])")
_PER_YEAR: Final = {"D": 365.25, "W": 365.25 / 7, "M": 12.0, "Y": 1.0}


def patient_age(dataset: Dataset) -> int | None:
    """Return completed years by PatientAge or date of birth, the lower one if both are known; None if neither is."""
    ages = [age for age in (_stated_age(dataset), _age_by_birth(dataset)) if age is not None]
    return min(ages, default=None)


def _stated_age(dataset: Dataset) -> int | None:
    """Read PatientAge, such as 045Y (PS3.5 6.2, AS)."""
    found = _AGE.fullmatch(attributes.text(dataset, "PatientAge"))
    return None if found is None else int(int(found[1]) / _PER_YEAR[found[2]])


def _age_by_birth(dataset: Dataset) -> int | None:
    born, studied = (_date(dataset, keyword) for keyword in ("PatientBirthDate", "StudyDate"))
    if born is None or studied is None or studied < born:
        return None
    return studied.year - born.year - ((studied.month, studied.day) < (born.month, born.day))


def _date(dataset: Dataset, keyword: str) -> date | None:
    try:
        return datetime.strptime(attributes.text(dataset, keyword), "%Y%m%d").date()
    except ValueError:
        return None
