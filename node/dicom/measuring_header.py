"""What a header says about measuring: the patient's age, and the size of a pixel where it is calibrated.

A broken attribute counts as absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes

_CALIBRATED: Final = ("GEOMETRY", "FIDUCIAL")
_AGE: Final = re.compile(r"([0-9]{3})([DWMY])")
_DAYS: Final = {"D": 1.0, "W": 7.0, "M": 365.25 / 12, "Y": 365.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringHeader:
    """The attributes of a header on which a measurement depends.

    age_years: completed years at the time of the study; the lower one if age and date of birth disagree; None if
        neither is known
    spacing: mm from row to row and from column to column, in the patient and not at the detector; None if uncalibrated
    """

    age_years: int | None
    spacing: tuple[float, float] | None


def parse_measuring(dataset: Dataset) -> MeasuringHeader:
    """Parse the header of one film."""
    ages = [age for age in (_stated_age(dataset), _age_by_birth(dataset)) if age is not None]
    return MeasuringHeader(age_years=min(ages, default=None), spacing=_calibrated_spacing(dataset))


def _stated_age(dataset: Dataset) -> int | None:
    """Read PatientAge, such as 045Y (PS3.5 6.2, AS)."""
    found = _AGE.fullmatch(attributes.text(dataset, "PatientAge"))
    return int(int(found[1]) * _DAYS[found[2]] / _DAYS["Y"] + 1e-9) if found else None


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


def _calibrated_spacing(dataset: Dataset) -> tuple[float, float] | None:
    """Return the spacing within the patient (PS3.3 10.7.1).

    Pixel Spacing counts if Pixel Spacing Calibration Type says how it was corrected. Imager Pixel Spacing is that of
    the detector, on which the heart is magnified: it counts only with an estimated magnification.
    """
    spacing, calibration = _spacing(dataset, "PixelSpacing"), attributes.text(dataset, "PixelSpacingCalibrationType")
    if spacing is not None and calibration.upper() in _CALIBRATED:
        return spacing
    imager = _spacing(dataset, "ImagerPixelSpacing")
    magnification = attributes.number(dataset, "EstimatedRadiographicMagnificationFactor")
    if imager is None or magnification is None or magnification < 1:
        return None
    return imager[0] / magnification, imager[1] / magnification


def _spacing(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    """Read row spacing and column spacing; None unless both are above 0 (PS3.3 10.7.1.3)."""
    try:
        row, column = (float(str(value)) for value in attributes.values(dataset, keyword))
    except ValueError:
        return None
    return (row, column) if 0 < row < float("inf") and 0 < column < float("inf") else None
