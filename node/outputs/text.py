"""`report.txt`: the whole report for a person at a terminal, in plain words."""

from __future__ import annotations

from collections.abc import Iterator

from node.domain import Box, Film, Finding, FindingState, Report
from node.outputs import words
from node.outputs.patient import short_text


def render(report: Report) -> str:
    """Write the report as plain text; the research label comes first."""
    lines = [words.intended_use(report), "", f"Study {report.study_uid}"]
    for film in report.films:
        lines += ["", words.film_name(report, film), *(f"  {line}" for line in _film(film))]
    return "\n".join(lines) + "\n"


def _film(film: Film) -> Iterator[str]:
    yield from words.about(film)
    for state in FindingState:
        if findings := film.in_state(state):
            yield f"{words.HEADINGS[state]}:"
            for finding in findings:
                yield from (f"  {line}" for line in _finding(finding))
    if film.sentences:
        yield "Generated sentences (unreviewed):"
    for number, sentence in enumerate(film.sentences, 1):
        boxes = "; ".join(_edges(scored.box) for scored in sentence.boxes) or "no box"
        yield f"  [{number}] {short_text(words.spoken(sentence), 2000)} @ {boxes}"


def _finding(finding: Finding) -> Iterator[str]:
    """Name a finding with its probability, and unless it is absent its side, sentence and boxes.

    The side of an absent one is only that of its best box: named, it would read as if the other side were excluded.
    """
    name, probability = short_text(finding.code.meaning), f"probability {finding.probability:.2f}"
    if finding.state is FindingState.ABSENT:
        yield f"{name}: {probability}"
        return
    side = f", {finding.side}" if finding.side else ""
    yield f"{name}{side}: {probability}"
    if finding.sentence is not None:
        yield f"  sentence [{finding.sentence + 1}]"
    for name, one in words.named_boxes(finding):
        where = f", {one.side}" if one.side else ""
        yield f"  {name}{where}: {_edges(one.box)} (score {one.score:.2f})"


def _edges(box: Box) -> str:
    left, top, right, bottom = box.edges
    return f"columns {left:.0f} to {right:.0f}, rows {top:.0f} to {bottom:.0f}"
