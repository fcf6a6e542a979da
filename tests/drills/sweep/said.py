"""What the words about a film may not do: go beyond what was decided and located. Counted, and objected to.

Shares no rule with `language`: a few expressions over whole sentences, and the evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from models.contract import FindingState
from node.domain import Film, Finding, Note
from node.outputs import impression
from tests.support import samples

_ZONE: Final = re.compile(r"\b(upper|mid|lower) (?:lung )?zones?\b|\b(apex|hilum)\b")
_DENIAL: Final = re.compile(
    r"\b(no|not|without|absent|absence|never|neither|nor|none|free of|excluded|resolved)\b|"
    r"\b(normal|clear|unremarkable|intact)\b"
)
_SEVERE: Final = re.compile(
    r"\b(large|severe|mild|small|massive|moderate|minimal|extensive|tiny|trace|slight|marked|huge|gross|minor|big|subtle)"
    r"(ly)?\b"
)
_REVIEWED: Final = re.compile(r"^Possible, please review\b|\bplease review\b")
_ASSERTS: Final = re.compile(r"^There (is|are)\b")


def objections(film: Film, counts: Counter[str]) -> Iterator[str]:
    """Yield what the words about a film say too much; count sentences by rule, to review, or withheld for a reason."""
    counts.update(f"withheld, {withheld.reason}" for withheld in film.withheld)
    yield from _of_network(film, counts)
    for finding in film.findings:
        yield from _of_finding(film, finding, counts)


def _of_network(film: Film, counts: Counter[str]) -> Iterator[str]:
    for sentence in film.sentences:
        text = sentence.text.lower()
        counts["by rule"] += sentence.by == "rule"
        if sentence.by.startswith("network") and (found := _DENIAL.search(text)):
            yield f"{sentence.prompt}: a denial leaves ({found[0]}): {sentence.text}"
        is_marked = sentence.by.startswith("network") and Note.SEVERITY_WORDED in film.notes
        if (found := _SEVERE.search(text)) and not is_marked:
            yield f"{sentence.prompt}: nothing measured that ({found[0]}): {sentence.text}"


def _of_finding(film: Film, finding: Finding, counts: Counter[str]) -> Iterator[str]:
    if finding.sentence is None:
        return
    sentence = film.sentences[finding.sentence]
    if not finding.state.is_reported:
        yield f"{finding.prompt} is absent, and it is said: {sentence.text}"
        return
    named = {found[1] or found[2] for found in _ZONE.finditer(sentence.text.lower())}
    told = {found[1] or found[2] for found in _ZONE.finditer(_line_of(finding))}
    counts["the network names another zone"] += sentence.by.startswith("network") and bool(named) and named != told
    heights, spoken = ({"upper" if word == "apex" else word for word in found} - {"hilum"} for found in (told, named))
    if (sentence.by == "rule" and named != told) or (heights and spoken and not heights & spoken):
        yield f"{finding.prompt}: another zone than in the impression ({_line_of(finding)}): {sentence.text}"
    located = (finding.evidence, *(box.evidence for box in finding.boxes))
    zones = [None if evidence is None else evidence.zone for evidence in located]
    if sentence.by == "rule" and not all(_lies_in(zone, named) for zone in zones):
        yield f"{finding.prompt}: another zone than its evidence: {sentence.text}"
    if finding.state is FindingState.PRESENT:
        return
    counts["to review"] += 1
    if _ASSERTS.search(sentence.text) or not _REVIEWED.search(sentence.text):
        yield f"{finding.prompt} is {finding.state}, and its sentence does not say so: {sentence.text}"


def _line_of(finding: Finding) -> str:
    """Return what the impression says of a finding alone."""
    return impression.of_film(samples.film(findings=(finding,), sentences=False))[0].lower()


def _lies_in(zone: str | None, named: set[str]) -> bool:
    spelled = {"apex": "apical", "hilum": "hilar"}
    return all(f"_{spelled.get(word, word)}_" in f"_{zone}_" for word in named)
