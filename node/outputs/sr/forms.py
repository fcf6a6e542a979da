"""The forms in which reports are written: each is a kind of output (`outputs.kinds`), and a series of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of reports.

    kind: the kind of output (`destinations.outputs`)
    series: what sets the series of this form apart (`identity.SERIES_FORMS`)
    film_number, study_number, ratio_number: Series Number of reports on a film, on the study and on a cardiothoracic
        ratio. All films' reports have the same: a place among the films would change when another film arrives, and the
        report with it.
    """

    kind: str
    series: str
    film_number: int
    study_number: int
    ratio_number: int


COMPREHENSIVE: Final = Form(kind="sr", series="", film_number=9001, study_number=9003, ratio_number=9005)
COMPREHENSIVE_3D: Final = Form(
    kind="sr3d",
    series="sr3d",
    film_number=9011,
    study_number=9013,
    ratio_number=9015,
)
BASIC_TEXT: Final = Form(kind="text", series="text", film_number=9021, study_number=9023, ratio_number=9025)

FORMS: Final[Mapping[str, Form]] = {form.kind: form for form in (COMPREHENSIVE, COMPREHENSIVE_3D, BASIC_TEXT)}
"""Every form by its kind."""
