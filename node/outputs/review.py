"""Which films wait for a person, and why: the rule of the review queue and of its counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from node.domain import Film, Finding, FindingState
from node.metrics import ReviewReason
from node.outputs import impression, wording
from node.store.study_facts import StudyFacts
from node.store.worklist import ReviewRow


def open_findings(film: Film) -> Sequence[Finding]:
    """Return the findings that a person should look at and nobody has, the most urgent first."""
    waiting = (item for item in film.findings if item.state in wording.MARKS and item.reader is None)
    return impression.by_urgency(waiting)


def reason_of(findings: Sequence[Finding]) -> ReviewReason:
    """Return the one reason for which a film with these findings is counted; a contradiction is told first."""
    if any(finding.contradiction is not None for finding in findings):
        return "contradicted"
    is_near = any(finding.state is FindingState.INDETERMINATE for finding in findings)
    return "near_threshold" if is_near else "uncalibrated"


def rows_of(facts: StudyFacts, films: Iterable[Film]) -> Iterator[ReviewRow]:
    """Yield a row for each film of a study that waits; films: with their corrections, without rejected ones."""
    received_at = {item.sop_instance_uid: item.received_at for item in facts.instances}
    for film in films:
        if film.source in received_at and (findings := open_findings(film)):
            yield ReviewRow(
                study_uid=facts.uid,
                film=film.source,
                reason=reason_of(findings),
                is_stat=facts.is_stat,
                urgency=impression.urgency(findings[0]),
                received_at=received_at[film.source].timestamp(),
            )
