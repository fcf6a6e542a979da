"""Reads what a reader decided about an AI result in a structured report: accepted, rejected, modified or supplemented.

The IHE profile AI Result Assessment is about such reports; its codes were not at hand. A decision is therefore known by
words: a coded item whose concept is an assessment or a decision, with a value of `_MEANINGS`; or by a code of CID 3217.
It is about the finding whose tracking UID (112040, DCM) is in its group. Without one it is about every finding of the
report that the object refers to, or, if it supplements, about a new finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.content_items import (
    HeldItem,
    coded,
    concept,
    concept_meaning,
    evidence,
    kind,
    referenced,
    tracking,
    walk,
)
from node.dicom.drawn import LeftOut
from node.dicom.drawn_reports import is_region, place_of, text_of
from node.domain import Box

_FINDING: Final = "121071"


class Verdict(StrEnum):
    """What a reader decided about a finding of an AI result."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    MODIFIED = "modified"
    SUPPLEMENTED = "supplemented"


_CODES: Final = {"122775": Verdict.ACCEPTED, "122776": Verdict.REJECTED}
"""Agreement and disagreement with prior findings (CID 3217, PS3.16)."""
_MEANINGS: Final = {
    **dict.fromkeys(("accept", "accepted", "agree", "agreed", "confirmed", "true positive"), Verdict.ACCEPTED),
    **dict.fromkeys(("reject", "rejected", "disagree", "disagreed", "false positive"), Verdict.REJECTED),
    **dict.fromkeys(("modify", "modified", "changed", "moved"), Verdict.MODIFIED),
    **dict.fromkeys(("supplement", "supplemented", "added", "missed", "false negative"), Verdict.SUPPLEMENTED),
}
_MISSED: Final = "|".join(meaning for meaning, verdict in _MEANINGS.items() if verdict is Verdict.SUPPLEMENTED)
_SUPPLEMENT: Final = re.compile(rf"(?:{_MISSED})\b(?P<after>.*)|(?P<before>.*)\b(?:{_MISSED})")
_BETWEEN: Final = " :,;-()"
"""May stand between the name of a finding and the words that say that it was missed."""
_BEFORE: Final = ("ai result ", "result ", "finding ")
"""May stand before a meaning, as in "AI Result Accepted"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderDecision:
    """One decision of a reader.

    tracking_uid: of the box whose finding it is about; "" if it is about the whole report, or about a new finding
    films, box: of the region in its group: SOP Instance UIDs, and pixels of the stored film; none if there is none
    names: by which the finding is known: in a report code value and meaning of the finding in its group
    text: the texts of its group, None if it has none
    """

    verdict: Verdict
    tracking_uid: str = ""
    films: tuple[str, ...] = ()
    box: Box | None = None
    names: tuple[str, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAssessment:
    """The decisions of one object; assessed: SOP Instance UIDs of all objects that it refers to."""

    assessed: frozenset[str]
    decisions: tuple[ReaderDecision, ...]
    left_out: tuple[str, ...]


def read(report: Dataset) -> ResultAssessment | None:
    """Read the decisions of a structured report; None if it has none."""
    found = [item for item in walk(report) if isinstance(item, HeldItem)]
    decided = [item for item in found if _is_decision(item.item)]
    if not decided:
        return None
    read_ = list(dict.fromkeys(_assessment(item, report) for item in decided))
    return ResultAssessment(
        assessed=frozenset(_references(report, found)),
        decisions=tuple(item for item in read_ if isinstance(item, ReaderDecision)),
        left_out=tuple(item.reason for item in read_ if isinstance(item, LeftOut)),
    )


def verdict_of(words: str) -> Verdict | None:
    """Return the verdict that words are, and nothing else; None if they are none."""
    return _MEANINGS.get(_plain(words))


def supplement_in(words: str) -> str | None:
    """Return the name in words that begin or end by saying that a finding was missed; None if they do not say so.

    The name is in lower case, "" if there is none.
    """
    found = _SUPPLEMENT.fullmatch(_plain(words))
    return None if found is None else (found["after"] or found["before"] or "").strip(_BETWEEN)


def _is_decision(item: Dataset) -> bool:
    name = concept_meaning(item).casefold()
    return kind(item) == "CODE" and ("assessment" in name or "decision" in name or coded(item)[0] in _CODES)


def _assessment(found: HeldItem, report: Dataset) -> ReaderDecision | LeftOut:
    value, meaning = coded(found.item)
    verdict = _CODES.get(value) or verdict_of(meaning)
    if verdict is None:
        return LeftOut(reason="an assessment is neither accepted, rejected, modified nor supplemented")
    groups = [item for item in reversed(found.above) if kind(item) == "CONTAINER" and item is not report]
    group = next((item for item in groups if tracking(item)[1]), groups[0] if groups else None)
    if group is None:
        return ReaderDecision(verdict=verdict)
    films, box = tuple[str, ...](), None
    for item in attributes.items(group, "ContentSequence"):
        if is_region(item):
            place = place_of(item)
            if isinstance(place, LeftOut):
                return place
            films, box = tuple(place[0]), place[1]
            break
    return ReaderDecision(
        verdict=verdict,
        tracking_uid=tracking(group)[1],
        films=films,
        box=box,
        names=next(_findings(group), ()),
        text=text_of(group),
    )


def _plain(meaning: str) -> str:
    plain = " ".join(meaning.casefold().split()).rstrip(".! ")
    for words in _BEFORE:
        plain = plain.removeprefix(words)
    return plain


def _findings(group: Dataset) -> Iterator[tuple[str, ...]]:
    for item in attributes.items(group, "ContentSequence"):
        if kind(item) == "CODE" and concept(item) == _FINDING:
            yield coded(item)


def _references(report: Dataset, found: list[HeldItem]) -> Iterator[str]:
    yield from referenced(report)
    yield from evidence(report)
    yield from evidence(report, "PredecessorDocumentsSequence")
    for item in found:
        if kind(item.item) == "COMPOSITE":
            yield from referenced(item.item)
