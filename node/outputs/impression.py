"""The impression: the first lines of every output, for a radiologist who has five seconds per film.

One numbered line per finding, in the order of `vocabulary.by_urgency`: name, site, probability, and "possible" if so.
Then the objections to the reading, and one line on findings that are not reported, not evaluated or not looked for. No
line concludes "normal".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from models.contract import FindingState
from node.dicom import identity
from node.domain import Film, Finding, Report
from node.outputs import ratio_text, vocabulary, wording
from node.outputs.vocabulary import STATES, by_urgency, urgency
from node.read.findings import zone_of

_OWN_LINES: Final = 5
"""Number of findings with a line each, beside critical ones; the others share one line."""
_NOT_NORMAL: Final = "This is not a report of a normal film."


def of_film(film: Film) -> list[str]:
    """Return the impression of one film, one text a line."""
    if not film.is_read:
        return [wording.not_processed(film), *wording.cautions_of_header(film)]
    heart = ratio_text.wide_heart(film)
    found = [*_found(film), *([] if heart is None else [heart])]
    nothing = [] if wording.reported(film) else [f"{wording.nothing_reported(film)} {_NOT_NORMAL}"]
    return [*found, *nothing, *wording.cautions(film), _rest(film)]


def of_report(report: Report) -> list[str]:
    """Return the impression of a study: that of its film, or one block a film, the most urgent film first."""
    if len(report.films) == 1:
        return of_film(report.films[0])
    return [
        line
        for film in sorted(report.films, key=_place)
        for line in (f"{wording.film_number(report, film)}:", *(f"  {line}" for line in of_film(film)))
    ]


def labeled(lines: Iterable[str]) -> list[str]:
    """Put the research label before the lines of an impression."""
    return [identity.RESEARCH_LABEL, *lines]


def critical_films(report: Report) -> frozenset[str]:
    """Return the SOP Instance UIDs of the films with a critical finding."""
    return frozenset(film.source for film in report.films if any(map(vocabulary.is_critical, film.findings)))


def _place(film: Film) -> tuple[int, bool]:
    """Return the sort key of films: the urgency of the first finding, then whether it is only possible."""
    if findings := by_urgency(wording.reported(film)):
        return urgency(findings[0]), findings[0].state is not FindingState.PRESENT
    return vocabulary.DAYS + (1 if film.is_read else 2), False


def _found(film: Film) -> list[str]:
    """Return the lines about the findings of a film that are reported."""
    findings = by_urgency(wording.reported(film))
    own = max(_OWN_LINES, sum(urgency(finding) == vocabulary.MINUTES for finding in findings))
    lines = [f"{number}. {phrase(finding)}" for number, finding in enumerate(findings[:own], 1)]
    others = "; ".join(wording.uncapitalized(phrase(finding)) for finding in findings[own:])
    return [*lines, f"and: {others}"] if others else lines


def phrase(finding: Finding) -> str:
    """Return a finding in words: "Right pleural effusion, lower zone, 91 %", "Edema, 41 % (possible, ...)"."""
    name = wording.sided(vocabulary.name_of(finding), finding.side)
    mark = f" ({STATES[finding.state]})" if finding.state in vocabulary.MARKS else ""
    return ", ".join(filter(None, (name, zone_of(finding), wording.certainty(finding)))) + mark


def _rest(film: Film) -> str:
    """Return the line about what was not reported, and what was not looked for."""
    below = [finding for finding in film.in_state(FindingState.ABSENT) if finding.reader is None]
    counts = {FindingState.ABSENT: len(below), FindingState.LEFT_OUT: len(film.in_state(FindingState.LEFT_OUT))}
    told = "".join(
        f"{STATES[state].capitalize()}: {count} {'finding' if count == 1 else 'findings'}. "
        for state, count in counts.items()
        if count
    )
    return f"{told}{not_looked_for(film)}"


def not_looked_for(film: Film) -> str:
    """Return the sentence that nothing beyond the list of findings and the analyzed square was searched for."""
    return f"Not looked for: all else{'' if wording.is_whole(film) else ', and all outside the analyzed square'}."
