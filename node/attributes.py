"""Attributes of foreign objects, read so that a broken value counts as absent.

Objects come from any device; pydicom converts a value when it is first looked at and raises whatever the conversion
meets (a US of three bytes, a DS that is a word). A decision about a film must not end there, and its warnings, which
quote the value, must not reach a log: they may be about a patient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydicom.dataset import Dataset


@contextmanager
def quiet() -> Iterator[None]:
    """Silence pydicom's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def values(dataset: Dataset, keyword: str) -> tuple[object, ...]:
    """Return the values of an attribute; none when it is absent, empty or broken."""
    try:
        with quiet():
            value = dataset.get(keyword)
    except Exception:  # the boundary to pydicom's converters, which document no set of exceptions
        return ()
    if value is None or value == "":
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(value)
    return (value,)


def text(dataset: Dataset, keyword: str) -> str:
    """Return an attribute as text without blanks around it; several values joined as DICOM does."""
    return "\\".join(str(value).strip() for value in values(dataset, keyword) if value is not None)


def number(dataset: Dataset, keyword: str) -> float | None:
    """Return the first value as a finite number."""
    for value in values(dataset, keyword)[:1]:
        try:
            found = float(str(value))
        except ValueError:
            return None
        return found if math.isfinite(found) else None
    return None


def whole(dataset: Dataset, keyword: str) -> int | None:
    """Return the first value as a whole number."""
    found = number(dataset, keyword)
    return int(found) if found is not None and found.is_integer() else None


def items(dataset: Dataset, keyword: str) -> tuple[Dataset, ...]:
    """Return the items of a sequence."""
    return tuple(item for item in values(dataset, keyword) if isinstance(item, Dataset))
