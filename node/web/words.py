"""Words that only the pages say: states of studies and deliveries, kinds of outputs, why a sentence was withheld.

Findings have their words in `outputs.vocabulary`, films in `outputs.wording`, as in every other output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.domain import Note
from node.errors import InputError
from node.output_kinds import MESSAGES, OUTPUTS
from node.outputs import rejection, wording
from node.outputs.vocabulary import STATES, UNMEASURED

STUDY_STATES: Final[Mapping[str, str]] = {
    "receiving": "receiving",
    "reading": "being read",
    "finished": "finished",
    "not_delivered": "not delivered",
    "partly_delivered": "partly delivered",
    "parked": "parked",
    "answer_unreadable": "stored result not readable",
}
"""States of studies as pages show them: a finished study may not be delivered (`StudyLine.shown_state`)."""
FAULTS: Final[Mapping[str, str]] = {
    "damaged": "A stored result is damaged.",
    "other_version": "A stored document was written by another version of the program; see the log.",
}
"""Why a stored result cannot be read, see `studies.Fault`."""
FILTERS: Final[Mapping[str, str]] = {
    **{state: STUDY_STATES[state] for state in ("receiving", "reading", "finished", "not_delivered")},
    "parked": "parked, or a delivery is",
    "critical": "critical",
}
"""The filters of the worklist."""
FILM_STATUSES: Final[Mapping[str, str]] = {
    "read": "read",
    "not_processed": "not processed",
    "left_alone": "gets no answer",
    "waiting": "waits to be read",
    "rejected": "rejected by the archive",
    "answer_unreadable": "stored result not readable",
}
_OTHER_KINDS: Final[Mapping[str, str]] = {
    **{name: kind.title for name, kind in MESSAGES.items()},
    rejection.KIND: "rejection note",
}
"""The kinds of outputs that no writer of `output_kinds` writes."""
WITHHELD: Final[Mapping[str, str]] = {
    "not_measured": "is about the whole film, a finding that this model does not evaluate, or one that is not reported",
    "not_named": "does not name its finding or region",
    "denied": "says that a reported finding is absent",
    "asserted": "asserts what was not found",
    "contradicts": "contradicts what is reported of another finding",
    "wrong_side": "names another side than the boxes",
    "wrong_zone": "names a zone in which its finding has no certain box",
    "side_unknown": "names a side that is not certain",
    "earlier_film": "speaks of an earlier film, which the network never saw",
    "normal_with_finding": "calls a region normal in which a finding lies",
    "says_nothing": "names neither a finding nor the state of a region",
    "unreadable": "repeats itself, breaks off, or is no text",
    "denial": "calls something absent or normal, which the network may have missed",
    "severity": "has a measure, a size of what is not reported, or makes little of what is urgent",
    "corrected": "disagrees with a reader, who corrected a finding",
}
"""The fault of a withheld sentence, by its reason."""

SEARCHED: Final = "Where the network looked for findings it does not report"
NOT_FINDINGS: Final = "no findings: where the network looked for what it does not report"
NO_SENTENCE: Final = (
    "The network's sentence failed the checks and is not shown; its answer is the state, the number and the boxes."
)
WORDED: Final = f"{wording.NOTES[Note.SEVERITY_WORDED].capitalize()}."
ONLY_POSSIBLE: Final = f"Only possible, because {UNMEASURED}."
LOCATED: Final = "Location of a region; neither present nor absent."

ANSWERS: Final[Mapping[str, str]] = {
    **{state: said.capitalize() for state, said in STATES.items()},
    "": LOCATED,
}
"""The state of the answer to a question; "" if it has none."""

SOURCES: Final[Mapping[str, str]] = {
    "page": "on the page",
    "api": "by a program",
    "dicom": "from a workstation",
}
"""Where a question came from, by `AskedQuestion.source`."""

LOOK_FORMS: Final = (
    "List the findings",
    "Summarize",
    "Is there an effusion on the left?",
    "What is in this region?",
    "Heart size?",
)
"""Questions in words that the page of a film in no study suggests; "this region" is a drawn box."""
FORMS: Final = (*LOOK_FORMS, "What changed?")
"""The questions that the page of a study suggests."""


def output_kind(name: str) -> str:
    """Return the pages' name of a kind of output; its own name if the package that wrote it is not installed."""
    if name in _OTHER_KINDS:
        return _OTHER_KINDS[name]
    try:
        return OUTPUTS.entry(name).title
    except InputError:
        return name
