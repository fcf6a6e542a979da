"""Write `report.txt`: the whole report as plain text, for a person at a terminal.

Lines are not wrapped. A film has at most 26: a finding, however many boxes it has, is one line.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.contract import FindingState
from node.dicom import identity
from node.domain import Film, Finding, FindingBox, Report
from node.outputs import impression, ratio_text, wording
from node.outputs.vocabulary import READER, by_urgency, name_of, said_of


def render(report: Report) -> str:
    """Return the report as plain text: the impression, then the findings of each film, and identities last."""
    lines = [*impression.labeled(["", "Impression", *impression.of_report(report)])]
    for film in report.films:
        name = ["", wording.film_number(report, film)] if len(report.films) > 1 else [""]
        lines += [*name, *details(film)] if film.is_read or len(report.films) > 1 else []
    films = "; ".join(wording.film_name(report, film) for film in report.films)
    device = identity.device_uid(report.model)
    about = f"{wording.intended_use(report, report.films)} Device {device}. Study {report.study_uid}. {films}."
    return "\n".join([*lines, "", f"About: {about}"]) + "\n"


def details(film: Film) -> Iterator[str]:
    """Yield a film's findings, and the rest."""
    if not film.is_read:
        yield wording.not_processed(film)
        return
    if reported := list(findings(film)):
        yield "Findings"
    yield from (f"{first} {more}".rstrip() for first, more in reported)
    yield from rest(film)


def findings(film: Film) -> Iterator[tuple[str, str]]:
    """Yield each reported finding: its number, name, probability and state; its boxes, sentence and objection."""
    sentences = wording.sentences(film)
    for number, finding in enumerate(by_urgency(wording.reported(film)), 1):
        more = (_boxes(finding), sentences.get(finding.prompt), _objection(finding))
        yield f"{number}. {_finding(finding)}", " ".join(filter(None, more))


def rest(film: Film) -> Iterator[str]:
    """Yield the findings not reported and not evaluated of a film that was read, its ratio, sentences and limits."""
    for heading, names in unreported(film):
        yield f"{heading}: {', '.join(names)}."
    yield from ratio_text.in_findings(film)
    if loose := wording.loose(film, wording.reported(film)):
        yield f"Other sentences: {'; '.join(text for text, _ in loose)}"
    yield f"Limits: {wording.limits(film)}"


def unreported(film: Film) -> Iterator[tuple[str, list[str]]]:
    """Yield headings with names and numbers: findings not reported, not evaluated, or rejected by a radiologist.

    A name has no side: it would seem to exclude the other side.
    """
    groups: dict[str, list[str]] = {}
    for finding in sorted(by_urgency(wording.unreported(film)), key=_judged_last):
        heading = said_of(finding).capitalize()
        groups.setdefault(heading, []).append(f"{name_of(finding)} {wording.below(finding)}".rstrip())
    yield from groups.items()


def _judged_last(finding: Finding) -> tuple[bool, bool]:
    return finding.reader is not None, finding.state is FindingState.LEFT_OUT


def _finding(finding: Finding) -> str:
    """Return name, number and state of a reported finding."""
    name, number = wording.sided(name_of(finding), finding.side), wording.number(finding)
    return f"{name}{f', {number}' if number else ''} ({said_of(finding)})."


def _boxes(finding: Finding) -> str | None:
    boxes = "; ".join(_box(finding, box) for box in finding.boxes)
    return f"{'Box' if len(finding.boxes) == 1 else 'Boxes'}: {boxes}." if boxes else None


def _objection(finding: Finding) -> str | None:
    """Return the objection to a single finding; objections to its film are in the impression."""
    return None if finding.contradiction in wording.OF_FILM else wording.reason_of(finding.contradiction)


def _box(finding: Finding, found: FindingBox) -> str:
    drawn = None if found.reader is None else READER[found.reader.what]
    edges, place = wording.edges(found.box), wording.place_of(finding, found)
    return ", ".join(filter(None, (edges if place is None else f"{place} ({edges})", drawn)))
