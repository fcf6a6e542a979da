"""The groups of films whose answers are watched apart: by sex, age band and projection. Nothing of a patient is stored.

A film belongs to one group of each kind, `unknown` where neither its header nor, for the projection, its picture tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.patient_age import patient_age
from node.domain import Film

UNKNOWN: Final = "unknown"
_SEXES: Final[Mapping[str, str]] = {"F": "female", "M": "male", "O": "other"}
_AGES: Final[tuple[tuple[int, str], ...]] = ((80, "80_up"), (60, "60_79"), (40, "40_59"), (18, "18_39"), (0, "0_17"))
_PROJECTIONS: Final = ("AP", "PA")


def groups_of(film: Film, header: Dataset) -> tuple[str, str, str]:
    """Return the groups of a film, of `metrics.GROUPS`: Patient's Sex (0010,0040), age at the study, AP or PA."""
    sex = _SEXES.get(attributes.text(header, "PatientSex"), UNKNOWN)
    return f"sex_{sex}", f"age_{_band(patient_age(header))}", f"view_{_projection(film)}"


def _band(years: int | None) -> str:
    return UNKNOWN if years is None else next((band for least, band in _AGES if years >= least), UNKNOWN)


def _projection(film: Film) -> str:
    told = () if film.view is None else (film.view.tag, film.view.seen)
    return next((view for view in told if view in _PROJECTIONS), None) or UNKNOWN
