"""The cardiothoracic ratio of a film: one TID 1501 group, in a report of its own.

OHIF 3.13.2 draws the line below a number only if no group of the report has a region, so the ratio cannot stand beside
the findings. Of a number with two lines it draws the first; so each width is a number with its own line too. The text
of the group, which OHIF adds to the label, says the band, or that the ratio cannot be compared.
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

from node.domain import Film, Report, derive_uid
from node.measurement import CardiothoracicRatio, MeasuredLine
from node.outputs import measured
from node.outputs.sr import findings
from node.outputs.sr.findings import PRIVATE_SCHEME
from node.outputs.sr.items import IMAGE_REGION, POLYLINE, container_of, image_of, text, with_content

RATIO = Concept("CTRATIO", PRIVATE_SCHEME, measured.NAME)
BAND = Concept("CTRATIOBAND", PRIVATE_SCHEME, "Cardiothoracic ratio band")
METHOD = Concept("REGIONBOXES", PRIVATE_SCHEME, "Widths of the network's own region boxes")
HEART_WIDTH = Concept("HEARTWIDTH", PRIVATE_SCHEME, "Width of the heart")
THORAX_WIDTH = Concept("THORAXWIDTH", PRIVATE_SCHEME, "Inner width of the thorax")
NO_UNITS = Concept("1", "UCUM", "no units")
MILLIMETERS = Concept("mm", "UCUM", "millimeter")
PIXELS = Concept("{pixels}", "UCUM", "Pixels")


def measurements(
    report: Report, film: Film, ratio: CardiothoracicRatio, source: Dataset
) -> MeasurementsAndQualitativeEvaluations:
    """Make the group of a film's ratio, the two widths, and what the ratio may be compared with (TID 1500 row 6)."""
    number = _number(RATIO, ratio.hundredths / 100, NO_UNITS, [ratio.heart, ratio.thorax], source)
    widths = [
        _number(name, *_width(ratio, line), [line], source)
        for name, line in ((HEART_WIDTH, ratio.heart), (THORAX_WIDTH, ratio.thorax))
    ]
    group = MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=_tracking_uid(report, film, ratio), identifier=measured.NAME),
        algorithm_id=findings.algorithm(report),
        measurements=[number, *widths],
    )
    with_content(container_of(group), [text(measured.comparison(ratio))])
    return group


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
