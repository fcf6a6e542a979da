"""The cardiothoracic ratio of a film: one TID 1501 group, in a report of its own.

OHIF 3.13.2 draws the line below a number only if no group of the report has a region, so the ratio needs a report of
its own. Of a number with two lines it draws the first, so each width is a number with its own line too. It labels the
lines with names, values and unit codes of all three numbers, and with any text of the group; so the names are short,
the units are readable, and only the report's first text has the band.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from highdicom.sr import (
    CoordinatesForMeasurement,
    Measurement,
    MeasurementsAndQualitativeEvaluations,
    TrackingIdentifier,
)
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.cardiothoracic_ratio import CardiothoracicRatio, MeasuredLine
from node.domain import Film, Report, derive_uid
from node.outputs import ratio_text
from node.outputs.sr import findings
from node.outputs.sr.findings import PRIVATE_SCHEME
from node.outputs.sr.items import IMAGE_REGION, POLYLINE, image_of

RATIO = Concept("CTRATIO", PRIVATE_SCHEME, ratio_text.NAME)
SHORT_RATIO = Concept(RATIO.value, PRIVATE_SCHEME, "CTR")
BAND = Concept("CTRATIOBAND", PRIVATE_SCHEME, "Cardiothoracic ratio band")
METHOD = Concept("REGIONBOXES", PRIVATE_SCHEME, "Widths of the network's own region boxes")
HEART_WIDTH = Concept("HEARTWIDTH", PRIVATE_SCHEME, "Heart")
THORAX_WIDTH = Concept("THORAXWIDTH", PRIVATE_SCHEME, "Thorax")
NO_UNITS = Concept("1", "UCUM", "no units")
MILLIMETERS = Concept("mm", "UCUM", "millimeter")
PIXELS = Concept("pixels", PRIVATE_SCHEME, "pixels")


def measurements(
    report: Report, film: Film, ratio: CardiothoracicRatio, source: Dataset
) -> MeasurementsAndQualitativeEvaluations:
    """Make the group of a film's ratio, in percent, and the two widths (TID 1500 row 6)."""
    number = _number(SHORT_RATIO, ratio.hundredths, findings.PERCENT, [ratio.heart, ratio.thorax], source)
    widths = [
        _number(name, *_width(ratio, line), [line], source)
        for name, line in ((HEART_WIDTH, ratio.heart), (THORAX_WIDTH, ratio.thorax))
    ]
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=_tracking_uid(report, film, ratio), identifier=ratio_text.NAME),
        algorithm_id=findings.algorithm(report),
        measurements=[number, *widths],
    )


def _number(name: Concept, value: float, unit: Concept, lines: Iterable[MeasuredLine], source: Dataset) -> Measurement:
    drawn = [
        CoordinatesForMeasurement(POLYLINE, np.array([line.start, line.end]), image_of(source), purpose=IMAGE_REGION)
        for line in lines
    ]
    return Measurement(name, value, unit, method=METHOD, referenced_coordinates=drawn)


def _width(ratio: CardiothoracicRatio, line: MeasuredLine) -> tuple[float, Concept]:
    """Return a width and its unit: millimeters if the film's spacing is calibrated, else pixels."""
    millimeters = ratio.millimeters(line)
    return (round(line.length, 1), PIXELS) if millimeters is None else (round(millimeters, 1), MILLIMETERS)


def _tracking_uid(report: Report, film: Film, ratio: CardiothoracicRatio) -> str:
    ends = [f"{place:.3f}" for line in (ratio.heart, ratio.thorax) for place in (*line.start, *line.end)]
    model = report.model
    return derive_uid("tracking", film.source, "ratio", *ends, model.name, model.version, model.weights_sha256)
