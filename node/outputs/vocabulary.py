"""The one table of the words that people read: states of findings, assessments, names, and the order of lists.

Every output, page, command and statistic takes its words from here. Codes and their meanings stay those of the prompt
set and of `sr.findings`. No word concludes "normal": the network may have missed what it did not report.

`URGENCIES` is a table of this project, not of a society. Its three classes are those of the ACR's work group on
actionable reporting (Larson et al., JACR 2014): communicate within minutes, hours or days. Of the findings of our
prompt sets only pneumothorax is taken from there, as category 1; the network cannot distinguish a tension pneumothorax,
so every pneumothorax is. The others' classes are this project's choice; a site should review them before it relies on
the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from models.contract import FindingState
from node.domain import Assessment, Code, Finding
from node.outputs.patient import short_text
from node.prompt_set import PromptSet

_REVIEW: Final = "possible, please review"
STATES: Final[Mapping[FindingState, str]] = {
    FindingState.PRESENT: "present",
    FindingState.INDETERMINATE: _REVIEW,
    FindingState.UNCALIBRATED: _REVIEW,
    FindingState.ABSENT: "not reported (below threshold, may have been missed)",
    FindingState.LEFT_OUT: "not evaluated by this model",
}
MARKS: Final[Mapping[FindingState, str]] = {
    FindingState.INDETERMINATE: "possible",
    FindingState.UNCALIBRATED: "possible",
}
"""Short text beside a reported finding that is not present."""
UNMEASURED: Final = "its threshold was not measured on such films"
"""Why an uncalibrated finding is only possible."""
READER: Final[Mapping[Assessment, str]] = {
    Assessment.ACCEPTED: "confirmed by a reader",
    Assessment.REJECTED: "rejected by a reader",
    Assessment.MOVED: "box drawn by a reader",
    Assessment.DRAWN: "confirmed, box drawn by a reader",
    Assessment.ADDED: "added by a reader",
    Assessment.REWORDED: "written by a reader",
}
"""Replaces a state, or follows a sentence, after a radiologist's assessment."""

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


def name_of(finding: Finding) -> str:
    """Return the one name of a finding: the meaning of its code."""
    return short_text(finding.code.meaning)


def names(prompts: PromptSet) -> dict[str, str]:
    """Return the name of each finding of a prompt set, by the key of its prompt."""
    return {each.key: short_text(each.name) for each in prompts.prompts if each.finding is not None}


def urgencies(prompts: PromptSet) -> dict[str, int]:
    """Return the urgency of each finding of a prompt set, by the key of its prompt."""
    codes = {each.key: each.finding for each in prompts.prompts if each.finding is not None}
    return {key: _urgency(code) for key, code in codes.items()}


def said_of(finding: Finding) -> str:
    """Return the state of a finding in words, or the radiologist's assessment."""
    return STATES[finding.state] if finding.reader is None else READER[finding.reader.what]


def urgency(finding: Finding) -> int:
    """Return the urgency of a finding: communication within minutes, hours or days; the lowest is the soonest."""
    return _urgency(finding.code)


def _urgency(code: Code) -> int:
    return URGENCIES.get((code.scheme, code.value), DAYS)


def by_urgency(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings for every list: the most urgent first, then present before possible, then the most probable."""
    return sorted(
        findings,
        key=lambda each: (urgency(each), each.state is not FindingState.PRESENT, -(each.probability or 0.0)),
    )


def is_critical(finding: Finding) -> bool:
    """Whether a finding is present and must be communicated within minutes: its study is delivered before others."""
    return finding.state is FindingState.PRESENT and urgency(finding) == MINUTES
