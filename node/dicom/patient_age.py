"""The age of a patient at the time of a film, as a person would read it in the header.

The lower age counts wherever there are two: a child must not be taken for an adult. A broken attribute counts as
absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.dates import Days, read_date

DATES: Final = ("StudyDate", "AcquisitionDate", "AcquisitionDateTime", "SeriesDate", "ContentDate")
"""When a film was taken, the best first. Instance Creation Date is none: it may be that of a migration years later."""

OLDEST: Final = 130
"""Completed years above which nobody's age is believed."""

_AGE: Final = re.compile(r"([0-9]{1,5})(?:[.,][0-9]+)? *([A-Za-z]*)\.?")
_AGE_STRING: Final = re.compile(r"0*([0-9]{1,3}) *([DWMYdwmy])")
_PER_YEAR: Final = {
    **dict.fromkeys(("D", "DAY", "DAYS"), 365.25),
    **dict.fromkeys(("W", "WK", "WKS", "WEEK", "WEEKS"), 365.25 / 7),
    **dict.fromkeys(("M", "MO", "MOS", "MTH", "MTHS", "MONTH", "MONTHS"), 12.0),
    **dict.fromkeys(("", "Y", "YR", "YRS", "YO", "YEAR", "YEARS"), 1.0),
}
"""How many of a unit make a year; a number without a unit means years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientAge:
    """Completed years; None if no age can be read. has_unit: false if PatientAge is a number alone, taken as years."""

    years: int | None
    has_unit: bool = True


def patient_age(dataset: Dataset) -> PatientAge:
    """Return the age by PatientAge or date of birth, the lower one if both are known."""
    said = attributes.text(dataset, "PatientAge").strip(" \0")
    stated = years_of(said)
    ages = [age for age in (stated, _age_by_birth(dataset)) if age is not None]
    return PatientAge(years=min(ages, default=None), has_unit=stated is None or not said.isdecimal())


def years_of(said: str) -> int | None:
    """Read an age such as 045Y (PS3.5 6.2, AS), 7 Y, 18m, 7 years or 7, in completed years; None if it is none."""
    found = _AGE.fullmatch(said.strip(" \0"))
    unit = None if found is None else _PER_YEAR.get(found[2].upper())
    if found is None or unit is None:
        return None
    years = int(int(found[1]) / unit)
    return years if years <= OLDEST else None


def age_string(said: str) -> str:
    """Return an age as the standard writes it (PS3.5 6.2, AS), or "" if it has no unit, or cannot be read."""
    found = _AGE_STRING.fullmatch(said.strip(" \0"))
    return "" if found is None or years_of(said) is None else f"{int(found[1]):03d}{found[2].upper()}"


def _age_by_birth(dataset: Dataset) -> int | None:
    """Return the age at the first date of the film that is possible beside the date of birth."""
    born = read_date(attributes.text(dataset, "PatientBirthDate"))
    if born is None:
        return None
    taken = (read_date(attributes.text(dataset, keyword)) for keyword in DATES)
    ages = (_years_between(born, day) for day in taken if day is not None)
    return next((age for age in ages if age is not None), None)


def _years_between(born: Days, taken: Days) -> int | None:
    """Return the least number of completed years between two dates; None for an age that nobody has."""
    if taken.last < born.first:
        return None
    years = _completed_years(min(born.last, taken.first), taken.first)
    return years if years <= OLDEST else None


def _completed_years(born: date, day: date) -> int:
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))
