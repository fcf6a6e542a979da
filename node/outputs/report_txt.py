"""Write `report.txt`: the whole report as plain text, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from models.contract import Box, FindingState
from node.domain import Film, Finding, Report
from node.outputs import impression, measured, wording
from node.outputs.patient import short_text


def render(report: Report) -> str:
    """Return the report as plain text: the impression, then what each film shows, and identities last."""
    lines = impression.labeled(impression.of_report(report))
    for film in report.films:
        lines += [
            "",
            wording.film_number(report, film),
            *(f"  {line}" for line in (*wording.about(film), *details(film, _measured(film)))),
        ]
    lines += ["", "About this report", *(f"  {line}" for line in _origin(report))]
    return "\n".join(lines) + "\n"


def _origin(report: Report) -> Iterator[str]:
    """Yield what the report is made of and by whom."""
    yield wording.intended_use(report, report.films)
    yield f"Study {report.study_uid}"
    yield from (wording.film_name(report, film) for film in report.films)


def _measured(film: Film) -> Iterator[str]:
    if (ratio := measured.ratio_of(film)) is not None:
        first, *others = measured.lines(ratio)
        yield first
        yield from (f"  {line}" for line in others)


def details(film: Film, measurements: Iterable[str]) -> Iterator[str]:
    """Yield the findings of a film by heading, what is said of its cardiothoracic ratio, and its sentences."""
    for heading, findings in impression.under_headings(film):
        yield f"{heading}:"
        for finding in findings:
            yield from (f"  {line}" for line in _finding(finding))
    if left_out := impression.left_out(film):
        yield f"{wording.HEADINGS[FindingState.LEFT_OUT]}: {', '.join(map(wording.name_of, left_out))}"
    yield from measurements
    if film.sentences:
        yield "Sentences (unreviewed):"
    for number, sentence in enumerate(film.sentences, 1):
        boxes = "; ".join(_edges(scored.box) for scored in sentence.boxes) or "no box"
        yield f"  [{number}] {short_text(wording.spoken(sentence), 2000)} ({boxes})"


def _finding(finding: Finding) -> Iterator[str]:
    """Yield a finding with its probability, or who said it, and unless it is absent its side, sentence and boxes.

    Stating the side of an absent finding would seem to exclude the other side.
    """
    name, sure = wording.name_of(finding), _sure(finding)
    if finding.state is FindingState.ABSENT:
        yield f"{name}: {sure}"
        return
    side = f", {finding.side}" if finding.side else ""
    yield f"{name}{side}: {sure}"
    if finding.sentence is not None:
        yield f"  sentence [{finding.sentence + 1}]"
    if reason := wording.reason_of(finding.contradiction):
        yield f"  {reason}"
    for name, found in wording.named_boxes(finding):
        where = f", {found.side}" if found.side else ""
        zone = wording.zone_of(found.evidence)
        by = f"score {found.score:.2f}" if found.reader is None else wording.READER[found.reader.what]
        yield f"  {name}{where}: {_edges(found.box)} ({by}){f'; {zone}' if zone else ''}"


def _sure(finding: Finding) -> str:
    """Return the probability of a finding, and what a reader said about it."""
    told, mark = finding.output_probability, finding.reader
    number = None if told is None else f"{'' if mark is None else 'AI '}probability {wording.percent(told)}"
    return ", ".join(filter(None, (number, None if mark is None else wording.certainty(finding))))


def _edges(box: Box) -> str:
    left, top, right, bottom = box.edges
    return f"columns {left:.0f} to {right:.0f}, rows {top:.0f} to {bottom:.0f}"
