"""The offset from UTC in which the times of an object are written (PS3.3 C.12.1.1.8)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes

OFFSET: Final = "TimezoneOffsetFromUTC"
_OFFSET: Final = re.compile(r"([-+])([01][0-9])([0-5][0-9])")
_LEAST, _MOST = timedelta(hours=-12), timedelta(hours=14)


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
