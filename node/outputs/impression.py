"""The impression: the first lines of every output, for a reader who gives a film five seconds.

Present findings come first, by urgency; then the findings that a person has to look at; then one line about what was
not reported and not looked for. Three lines on most films, at most six; a wide heart, what is not calibrated here, and
notes about view and sides are added to them. No line concludes "normal".

`URGENCIES` is a table of this project, not of a society. Its three classes are those of the ACR's work group on
actionable reporting (Larson et al., JACR 2014): to be told within minutes, hours or days. Of the findings of our prompt
sets only pneumothorax is taken from there, as category 1; the network cannot tell a tension pneumothorax from another,
so all are. Where the others stand is this project's choice, and a site should review it before it relies on the order.
A finding that is present and to be told within minutes is critical: its study is delivered before others, and the HL7
message flags it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from models.contract import FindingState
from node.dicom import identity
from node.domain import Film, Finding, Report
from node.outputs import measured, wording
from node.read.findings import zone_of

MINUTES, HOURS, DAYS = 1, 2, 3

URGENCIES: Final[Mapping[tuple[str, str], int]] = {
    ("SCT", "36118008"): MINUTES,  # pneumothorax
    ("SCT", "19242006"): HOURS,  # pulmonary edema
    ("SCT", "60046008"): HOURS,  # pleural effusion
    ("SCT", "233604007"): HOURS,  # pneumonia
    ("SCT", "95436008"): HOURS,  # consolidation
    ("SCT", "125605004"): HOURS,  # fracture
    ("99CHEX", "ENLARGED_CM"): HOURS,  # enlarged cardiomediastinum
    ("99CHEX", "LUNG_LESION"): DAYS,
    ("DCM", "112001"): DAYS,  # opacity
    ("SCT", "46621007"): DAYS,  # atelectasis
    ("SCT", "8186001"): DAYS,  # cardiomegaly
    ("99CHEX", "PLEURAL_OTHER"): DAYS,
    ("99CHEX", "SUPPORT_DEVICES"): DAYS,
}
"""Urgency of a finding by scheme and code. A finding that is not in the table counts as one of days."""

_OWN_LINES: Final = 3
"""How many present findings get a line each; if there are more, those after the second share a line."""

_NOT_NORMAL: Final = "This is not a report of a normal film."
_STATES: Final = (FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED)


def of_film(film: Film) -> list[str]:
    """Return the impression of one film, one text a line."""
    if not film.is_read:
        return [wording.not_processed(film), *wording.cautions_of_header(film)]
    heart = measured.wide_heart(film)
    found = [*_found(film), *([] if heart is None else [heart])]
    nothing = [] if wording.reported(film) else [f"{wording.nothing_reported(film)} {_NOT_NORMAL}"]
    return [*found, *nothing, *_not_calibrated(film), *wording.cautions(film), _rest(film)]


def of_report(report: Report) -> list[str]:
    """Return the impression of a study: that of its film, or one block a film, the most urgent film first."""
    if len(report.films) == 1:
        return of_film(report.films[0])
    lines = []
    for film in sorted(report.films, key=_place):
        first, *others = of_film(film)
        lines += [f"{wording.film_number(report, film)}: {first}", *(f"  {line}" for line in others)]
    return lines


def in_brief(film: Film) -> list[str]:
    """Return the first line of the impression of one film, and what is to be reviewed on it."""
    return list(dict.fromkeys((of_film(film)[0], *_to_review(film))))


def labeled(lines: Iterable[str]) -> list[str]:
    """Put the research label before the lines of an impression."""
    return [identity.RESEARCH_LABEL, *lines]


def is_critical(finding: Finding) -> bool:
    """Say whether a finding is present and to be told within minutes."""
    return finding.state is FindingState.PRESENT and urgency(finding) == MINUTES


def critical_films(report: Report) -> frozenset[str]:
    """Return the SOP Instance UIDs of the films with a critical finding."""
    return frozenset(film.source for film in report.films if any(map(is_critical, film.findings)))


def by_urgency(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: the most urgent first, and of equally urgent ones the most probable first."""
    return sorted(findings, key=lambda finding: (urgency(finding), -(finding.probability or 0.0)))


def under_headings(film: Film) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each heading with its findings, the most urgent first; none that the model leaves out (`left_out`).

    What a reader rejected stands apart from what the network did not report.
    """
    for state in (*_STATES, FindingState.ABSENT):
        findings = by_urgency(film.in_state(state))
        for heading, is_rejected in ((wording.HEADINGS[state], False), (wording.REJECTED, True)):
            if under := [found for found in findings if wording.is_rejected(found) is is_rejected]:
                yield heading, under


def left_out(film: Film) -> list[Finding]:
    """Return the findings that the model leaves out, the most urgent first."""
    return by_urgency(film.in_state(FindingState.LEFT_OUT))


def urgency(finding: Finding) -> int:
    """Return how soon a finding is to be told: within minutes, hours or days; the lowest number is the soonest."""
    return URGENCIES.get((finding.code.scheme, finding.code.value), DAYS)


def _place(film: Film) -> tuple[int, int]:
    """Return what films are sorted by: the state of the first finding of the impression, and its urgency."""
    for place, state in enumerate(_STATES):
        if findings := film.in_state(state):
            return place, urgency(by_urgency(findings)[0])
    return (len(_STATES), 0) if film.is_read else (len(_STATES) + 1, 0)


def _found(film: Film) -> list[str]:
    """Return the lines about the findings of a film that are reported."""
    present = [_phrase(finding) for finding in by_urgency(film.in_state(FindingState.PRESENT))]
    if len(present) > _OWN_LINES:
        kept = _OWN_LINES - 1
        present = [*present[:kept], f"Also present: {'; '.join(map(wording.uncapitalized, present[kept:]))}"]
    return [*present, *_to_review(film)]


def _to_review(film: Film) -> Iterator[str]:
    for state, mark in wording.MARKS.items():
        if findings := by_urgency(film.in_state(state)):
            yield f"{mark.capitalize()}: {'; '.join(wording.uncapitalized(_phrase(finding)) for finding in findings)}"


def _not_calibrated(film: Film) -> Iterator[str]:
    """Yield the line that names what is to be reviewed because no threshold was measured, and what measures one."""
    if findings := by_urgency(film.in_state(FindingState.UNCALIBRATED)):
        names = wording.joined([wording.uncapitalized(wording.name_of(finding)) for finding in findings])
        yield f"Not calibrated on such films, so only for review: {names}."


def _phrase(finding: Finding) -> str:
    """Return a finding in words: "Right pleural effusion, lower zone, 91 %", or "..., confirmed by a reader"."""
    name = wording.sided(wording.name_of(finding), finding.side)
    place = zone_of(finding) or wording.place_in_doubt(finding)
    return ", ".join(filter(None, (name, place, wording.certainty(finding))))


def _rest(film: Film) -> str:
    """Return the line about what was not reported, and what was not looked for."""
    absent = [finding for finding in film.in_state(FindingState.ABSENT) if finding.reader is None]
    left_out = len(film.in_state(FindingState.LEFT_OUT))
    count, other = len(absent), "other " if wording.reported(film) else ""
    below = f"Not reported, may have been missed: {count} {other}{_findings(count)}. " if count else ""
    never = f"Not assessed by this model, may be there: {left_out} {_findings(left_out)}. " if left_out else ""
    outside = "" if wording.is_whole(film) else ", and all outside the analyzed square"
    return f"{below}{never}Not looked for: all else{outside}."


def _findings(count: int) -> str:
    return "finding" if count == 1 else "findings"
