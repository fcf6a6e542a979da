"""Dates as devices write them. Whoever reads one must know whether it can mean more than one day."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

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


_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def _days(year: int, month: int, day: int) -> Iterator[Days]:
    """Yield the days of a date, whose month and day may be 0, unknown; nothing if the calendar lacks it."""
    if not (1 <= year <= 9999 and 0 <= month <= 12 and (month or not day)):
        return
    first, last = date(year, month or 1, 1), date(year, month or 12, calendar.monthrange(year, month or 12)[1])
    if not day:
        yield Days(first=first, last=last)
    elif first <= first + timedelta(days=day - 1) <= last:
        yield Days(first=first.replace(day=day), last=first.replace(day=day))
