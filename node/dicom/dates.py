"""Dates as devices write them, the age of a patient at the time of a film, and offsets from UTC (PS3.3 C.12.1.1.8).

A date can be ambiguous, and its user must know. The age is what a person would read in the header:
the lower one counts wherever there are two, for a child must not be taken for an adult. A broken attribute counts as
absent.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes

_SEPARATOR: Final = r"(?P<by>[-./ ])"
_CLOCK: Final = r"(?:[01][0-9]|2[0-3])(?::?[0-5][0-9](?::?[0-5][0-9](?:\.[0-9]+)?)?)?"
_TIME: Final = f"(?:[T ]*{_CLOCK}(?:Z|[-+][0-9]{{2}}:?[0-9]{{2}})?)?"
_YEAR_FIRST: Final = tuple(
    re.compile(form + _TIME)
    for form in (
        "(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})",
        f"(?P<year>[0-9]{{4}}){_SEPARATOR}(?P<month>[0-9]{{1,2}})(?P=by)(?P<day>[0-9]{{1,2}})",
    )
)
_YEAR_LAST: Final = re.compile(f"([0-9]{{1,2}}){_SEPARATOR}([0-9]{{1,2}})(?P=by)(?P<year>[0-9]{{4}}){_TIME}")
_YEAR_ALONE: Final = re.compile("(?P<year>[0-9]{4})")
_WITH_NAME: Final = tuple(
    re.compile(form)
    for form in (
        "(?P<day>[0-9]{1,2})[-./ ]*(?P<name>[A-Za-z]{3,9})[-./, ]*(?P<year>[0-9]{4})",
        "(?P<name>[A-Za-z]{3,9})[-./ ]+(?P<day>[0-9]{1,2})[-./, ]+(?P<year>[0-9]{4})",
    )
)
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DATES: Final = ("StudyDate", "AcquisitionDate", "AcquisitionDateTime", "SeriesDate", "ContentDate")
"""When a film was taken, the best first. Instance Creation Date is none: it may be that of a migration years later."""
OLDEST: Final = 130
"""Largest plausible age, in completed years."""
_AGE: Final = re.compile(r"([0-9]{1,5})(?:[.,][0-9]+)? *([A-Za-z]*)\.?")
_AGE_STRING: Final = re.compile(r"0*([0-9]{1,3}) *([DWMYdwmy])")
_PER_YEAR: Final = {
    **dict.fromkeys(("D", "DAY", "DAYS"), 365.25),
    **dict.fromkeys(("W", "WK", "WKS", "WEEK", "WEEKS"), 365.25 / 7),
    **dict.fromkeys(("M", "MO", "MOS", "MTH", "MTHS", "MONTH", "MONTHS"), 12.0),
    **dict.fromkeys(("", "Y", "YR", "YRS", "YO", "YEAR", "YEARS"), 1.0),
}
"""How many of a unit make a year; a number without a unit means years."""
OFFSET: Final = "TimezoneOffsetFromUTC"
_OFFSET: Final = re.compile(r"([-+])([01][0-9])([0-5][0-9])")
_LEAST, _MOST = timedelta(hours=-12), timedelta(hours=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """The days that a written date may mean, from the first to the last; both are one day if it is certain."""

    first: date
    last: date

    @property
    def only(self) -> date | None:
        """The day, if it is certain."""
        return self.first if self.first == self.last else None


def read_date(text: str) -> Days | None:
    """Read a date, with or without a time behind it; None if it is no date of the calendar.

    A date is uncertain if its day or month is 00 or missing, or if day and month may be exchanged: 05.09.2018. A year
    of two digits is not read.
    """
    value = text.strip(" \0")
    found = [*_year_first(value), *_year_last(value), *_with_name(value)]
    return Days(first=min(days.first for days in found), last=max(days.last for days in found)) if found else None


def _year_first(value: str) -> Iterator[Days]:
    for form in (*_YEAR_FIRST, _YEAR_ALONE):
        if (found := form.fullmatch(value)) is not None:
            numbers = found.groupdict(default="")
            yield from _days(int(numbers["year"]), int(numbers.get("month", 0)), int(numbers.get("day", 0)))


def _year_last(value: str) -> Iterator[Days]:
    if (found := _YEAR_LAST.fullmatch(value)) is not None:
        left, right, year = int(found[1]), int(found[3]), int(found["year"])
        for day, month in {(left, right), (right, left)} if left and right else ():
            yield from _days(year, month, day)


def _with_name(value: str) -> Iterator[Days]:
    for form in _WITH_NAME:
        if (found := form.fullmatch(value)) is not None:
            name = found["name"].capitalize()
            months = [number for number in range(1, 13) if name in (_MONTHS[number - 1], _MONTHS[number - 1][:3])]
            for month in months if int(found["day"]) else ():
                yield from _days(int(found["year"]), month, int(found["day"]))


def _days(year: int, month: int, day: int) -> Iterator[Days]:
    """Yield the days of a date, whose month and day may be 0, unknown; nothing if the calendar lacks it."""
    if not (1 <= year <= 9999 and 0 <= month <= 12 and (month or not day)):
        return
    first, last = date(year, month or 1, 1), date(year, month or 12, calendar.monthrange(year, month or 12)[1])
    if not day:
        yield Days(first=first, last=last)
    elif first <= first + timedelta(days=day - 1) <= last:
        yield Days(first=first.replace(day=day), last=first.replace(day=day))


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
    """Return the least number of completed years between two dates; None for an implausible age."""
    if taken.last < born.first:
        return None
    years = _completed_years(min(born.last, taken.first), taken.first)
    return years if years <= OLDEST else None


def _completed_years(born: date, day: date) -> int:
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def stated_offset(dataset: Dataset) -> timezone | None:
    """Return the offset that an object states; None if it states none, or one that the standard does not know.

    `-0000` is none either: the standard forbids it.
    """
    said = attributes.text(dataset, OFFSET)
    found = _OFFSET.fullmatch(said)
    if found is None or said == "-0000":
        return None
    offset = timedelta(hours=int(found[2]), minutes=int(found[3])) * (-1 if found[1] == "-" else 1)
    return timezone(offset) if _LEAST <= offset <= _MOST else None


def offset_of(moment: datetime) -> str:
    """Return the offset of an aware time, such as +0100."""
    return f"{moment:%z}"[:5]  # offsets before 1900 have seconds


def fixed_offset(moment: datetime) -> timezone:
    """Return the offset of an aware time, in whole minutes as `offset_of` writes it."""
    offset = moment.utcoffset() or timedelta()
    return timezone(timedelta(minutes=int(offset.total_seconds() / 60)))
