"""A cardiothoracic ratio in words and as JSON, the same in every output.

A patient film has one only if the model's error was measured on patient films, or if `report.unmeasured_ratio` is set.
Outputs state a ratio with an error; `report.json` also one without. It adds no finding and changes no state. Only a
comparable ratio in the highest band appears in an impression, and only a comparable one has a DICOM object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from models.contract import FindingState
from models.documents import encode
from node.cardiothoracic_ratio import BANDS, CardiothoracicRatio, Incomparable, MeasuredError, MeasuredLine
from node.domain import Film, Json, JsonObject

NAME = "Cardiothoracic ratio"
_JSON_NAME = "cardiothoracic_ratio"
_PHANTOMS = "phantoms"
_HEART = "80891009"
"""The site of findings of the heart (SNOMED CT)."""

OBJECTIONS: Mapping[Incomparable, str] = {
    Incomparable.VIEW_UNKNOWN: "view not known",
    Incomparable.VIEW_AP: "AP view, which magnifies the heart",
    Incomparable.AGE_UNKNOWN: "age not known",
    Incomparable.CHILD: "patient under 18",
    Incomparable.UNMEASURED: "error not measured on such films",
}


def ratio_of(film: Film) -> CardiothoracicRatio | None:
    """Return the ratio that the outputs of a film state: one whose error was measured."""
    return film.ratio if film.ratio is not None and film.ratio.error is not None else None


def comparable_ratio_of(film: Film) -> CardiothoracicRatio | None:
    """Return the ratio of a film that has a report of its own: one that is stated and has a band."""
    ratio = ratio_of(film)
    return ratio if ratio is not None and ratio.objection is None else None


def in_findings(film: Film) -> Iterator[str]:
    """Yield the line about the ratio in the report on a film's findings.

    All of it if it is comparable, a short form if only view or age forbid that, and none if its error was never
    measured on such films.
    """
    ratio = ratio_of(film)
    if ratio is None or ratio.error is None or ratio.objection is Incomparable.UNMEASURED:
        return
    told, *others = lines(ratio)
    yield " ".join((f"{told}.", *others)) if ratio.objection is None else f"{told}; {_error_in_short(ratio.error)}"


def value(ratio: CardiothoracicRatio) -> str:
    """Return the number as people read it: "0.48"."""
    return f"{ratio.hundredths / 100:.2f}"


def comparison(ratio: CardiothoracicRatio) -> str:
    """Return the band in words, or the objection to one: "below 0.50 (PA, adult)", "not comparable: ..."."""
    if ratio.objection is not None:
        return f"not comparable: {OBJECTIONS[ratio.objection]}"
    limits = [f"{limit:.2f}" for limit in BANDS]
    bands = [
        f"below {limits[0]}",
        *(f"from {low} to below {high}" for low, high in pairwise(limits)),
        f"{limits[-1]} or more",
    ]
    return f"{bands[ratio.band or 0]} (PA, adult)"


def lines(ratio: CardiothoracicRatio) -> Iterator[str]:
    """Yield the lines about a ratio, the number first."""
    yield f"{NAME}: {value(ratio)}, {comparison(ratio)}"
    heart, thorax = (_width(ratio, line) for line in (ratio.heart, ratio.thorax))
    yield f"Width of the heart {heart}, inner width of the thorax {thorax}, between the edges of the network's boxes."
    if ratio.error is not None:
        yield _error(ratio.error)
    yield "The ratio by itself raises no finding and changes none."


def wide_heart(film: Film) -> str | None:
    """Return the line "wide heart" with the ratio's error, if the ratio is comparable and in the highest band.

    None for any other ratio, and if a radiologist rejected a finding of the heart.
    """
    ratio = ratio_of(film)
    if ratio is None or ratio.error is None or ratio.band != len(BANDS):
        return None
    of_heart = (finding for finding in film.findings if finding.site is not None and finding.site.value == _HEART)
    if any(finding.reader is not None and finding.state is FindingState.ABSENT for finding in of_heart):
        return None
    return f"Wide heart: {NAME.lower()} {value(ratio)} (PA, adult), {_error_in_short(ratio.error)}"


def to_json(film: Film) -> Json:
    """Return the measurements of a film for report.json."""
    ratio = film.ratio
    if ratio is None:
        return []
    return [
        {
            "name": _JSON_NAME,
            "value": ratio.value,
            "view": ratio.view,
            "comparable": ratio.objection is None,
            "objection": ratio.objection,
            "band": None if ratio.objection else comparison(ratio),
            "heart": _line_to_json(ratio, ratio.heart),
            "thorax": _line_to_json(ratio, ratio.thorax),
            "mm_per_pixel": ratio.mm_per_pixel,
            "error": None if ratio.error is None else encode(ratio.error),
        }
    ]


def _width(ratio: CardiothoracicRatio, line: MeasuredLine) -> str:
    millimeters = ratio.millimeters(line)
    return f"{line.length:.0f} pixels" + ("" if millimeters is None else f" ({millimeters:.0f} mm)")


def _error(error: MeasuredError) -> str:
    never = " It was never measured on patient films." if error.measured_on == _PHANTOMS else ""
    return (
        f"On {_where(error)} the ratio was off by {error.mean_absolute:.3f} on average, 95 % limits of agreement "
        f"{error.lower:+.2f} to {error.upper:+.2f}.{never}"
    )


def _error_in_short(error: MeasuredError) -> str:
    never = ", never measured on patient films" if error.measured_on == _PHANTOMS else ""
    return f"off by {error.mean_absolute:.3f} on average on {_where(error)}{never}"


def _where(error: MeasuredError) -> str:
    population = error.measured_on.replace("_", " ")
    return f"{error.films} {population}" if error.measured_on == _PHANTOMS else f"{error.films} films of {population}"


def _line_to_json(ratio: CardiothoracicRatio, line: MeasuredLine) -> JsonObject:
    return {"line": [*line.start, *line.end], "pixels": line.length, "mm": ratio.millimeters(line)}
