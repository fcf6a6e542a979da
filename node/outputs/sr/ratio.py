"""The cardiothoracic ratio of a film: one TID 1501 group, in a report of its own.

OHIF 3.13.2 draws the line below a number only if no group of the report has a region, so the ratio cannot stand beside
the findings. Of a number with two lines it draws the first; so each width is a number with its own line too. The text
of the group, which OHIF adds to the label, says the band, or that the ratio cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.domain import Film, Report, derive_uid
from node.measurement import CardiothoracicRatio, MeasuredLine
from node.outputs import measured
from node.outputs.sr import content, findings
from node.outputs.sr.content import CONTAINS, HAS_CONCEPT_MOD, Item, container, with_content
from node.outputs.sr.findings import PRIVATE_SCHEME
from node.outputs.sr.items import line, text

RATIO = Concept("CTRATIO", PRIVATE_SCHEME, measured.NAME)
BAND = Concept("CTRATIOBAND", PRIVATE_SCHEME, "Cardiothoracic ratio band")
MEASUREMENT_METHOD = Concept("370129005", "SCT", "Measurement Method")
METHOD = Concept("REGIONBOXES", PRIVATE_SCHEME, "Widths of the network's own region boxes")
HEART_WIDTH = Concept("HEARTWIDTH", PRIVATE_SCHEME, "Width of the heart")
THORAX_WIDTH = Concept("THORAXWIDTH", PRIVATE_SCHEME, "Inner width of the thorax")
NO_UNITS = Concept("1", "UCUM", "no units")
MILLIMETERS = Concept("mm", "UCUM", "millimeter")
PIXELS = Concept("{pixels}", "UCUM", "Pixels")


def measurements(report: Report, film: Film, ratio: CardiothoracicRatio, source: Dataset) -> Item:
    """Encode the ratio of a film, the two widths, and what the ratio may be compared with (TID 1500 row 6)."""
    number = _number(RATIO, ratio.hundredths / 100, NO_UNITS, [ratio.heart, ratio.thorax], source)
    widths = [
        _number(name, *_width(ratio, line), [line], source)
        for name, line in ((HEART_WIDTH, ratio.heart), (THORAX_WIDTH, ratio.thorax))
    ]
    tracked = findings.tracking(measured.NAME, _tracking_uid(report, film, ratio))
    about = text(measured.comparison(ratio))
    group = (*tracked, *findings.algorithm(report), number, *widths, about)
    item = container(findings.IMAGING_MEASUREMENTS)
    return with_content(item, [with_content(container(findings.GROUP, template="1501"), group)])


def _number(name: Concept, value: float, unit: Concept, lines: Iterable[MeasuredLine], source: Dataset) -> Item:
    method = content.code(MEASUREMENT_METHOD, METHOD, HAS_CONCEPT_MOD)
    grounds = (line(drawn, source) for drawn in lines)
    return with_content(content.number(name, value, unit, CONTAINS), (method, *grounds))


def _width(ratio: CardiothoracicRatio, line: MeasuredLine) -> tuple[float, Concept]:
    """Return a width and its unit: millimeters if the film's spacing is calibrated, else pixels."""
    millimeters = ratio.millimeters(line)
    return (round(line.length, 1), PIXELS) if millimeters is None else (round(millimeters, 1), MILLIMETERS)


def _tracking_uid(report: Report, film: Film, ratio: CardiothoracicRatio) -> str:
    ends = [f"{place:.3f}" for line in (ratio.heart, ratio.thorax) for place in (*line.start, *line.end)]
    model = report.model
    return derive_uid("tracking", film.source, "ratio", *ends, model.name, model.version, model.weights_sha256)
