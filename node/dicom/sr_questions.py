"""The questions of a structured report: each region of a group with the words of that group (TID 1410, PS3.16).

The words are, first found: free text that OHIF writes as a code (`CORNERSTONEFREETEXT`), texts, the finding, the
finding site. A region that supports a text or code directly is asked with that one. Measured numbers and tracking
identifiers are no words. Content items (PS3.3 C.17.3) are found with the items that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset

from models.contract import Box
from node.dicom import attributes
from node.dicom.marked_question import LeftOut, MarkedQuestion, pairs, surround, words

_FREE_TEXT: Final = "CORNERSTONEFREETEXT"
_FINDING, _SITE = "121071", "363698007"
MOST_ITEMS: Final = 5000
GROUP: Final = "125007"
"""The concept of a measurement group (TID 1410, PS3.16)."""
TRACKING: Final = "112039"
_TRACKING_UID: Final = "112040"
_DEEPEST: Final = 16

_NO_WORDS: Final = frozenset((TRACKING, "112000", "111001", "111003"))
"""Concepts of texts that identify something: tracking identifier, and names and versions."""


def questions(report: Dataset) -> Iterator[MarkedQuestion | LeftOut]:
    """Yield the questions of a structured report in their order, each once, and its parts that are none."""
    seen = set[object]()
    regions = 0
    groups = []
    for found in walk(report):
        if isinstance(found, LeftOut):
            yield found
            return
        if kind(found.item) == "CONTAINER" and concept(found.item) == GROUP:
            groups.append(found.item)
        if not is_region(found.item):
            continue
        regions += 1
        for question in _of_region(found):
            if question not in seen:
                seen.add(question)
                yield question
    if not regions:
        yield from _without_regions(report, groups)


def is_region(item: Dataset) -> bool:
    """Return whether a content item is a place on a film or in a patient."""
    return kind(item) in ("SCOORD", "SCOORD3D")


def place_of(region: Dataset) -> tuple[list[str], Box] | LeftOut:
    """Return the films of a region, by SOP Instance UID, and the box around it in their pixels."""
    if kind(region) == "SCOORD3D":
        return LeftOut(reason="a region has coordinates of the patient; draw it on the film")
    images = [item for item in attributes.items(region, "ContentSequence") if kind(item) == "IMAGE"]
    films = [film for image in images for film in attributes.references(image)]
    if not films:
        return LeftOut(reason="a region names no film")
    box = surround(attributes.text(region, "GraphicType"), pairs(region, "GraphicData"))
    return box if isinstance(box, LeftOut) else (films, box)


def words_of(group: Dataset) -> str | None:
    """Return the words of a group; None if it has none."""
    inner = attributes.items(group, "ContentSequence")
    codes = [(concept(item), *coded(item)) for item in inner if kind(item) == "CODE"]
    texts = (item for item in inner if kind(item) == "TEXT" and concept(item) not in _NO_WORDS)
    return (
        words(*(meaning for _, value, meaning in codes if value == _FREE_TEXT))
        or words(*(attributes.text(item, "TextValue") for item in texts))
        or words(*(meaning for name, _, meaning in codes if name == _FINDING))
        or words(*(meaning for name, _, meaning in codes if name == _SITE))
    )


def _of_region(found: HeldItem) -> Iterator[MarkedQuestion | LeftOut]:
    place = place_of(found.item)
    if isinstance(place, LeftOut):
        yield place
        return
    films, box = place
    prompt = _own_words(found.above[-1]) or words_of(found.container)
    for film in films:
        yield MarkedQuestion(film=film, box=box, prompt=prompt, tracking=tracking(found.container))


def _without_regions(report: Dataset, groups: list[Dataset]) -> Iterator[MarkedQuestion]:
    """Yield the words of groups, if the report is about one film."""
    films = evidence(report)
    if len(films) == 1:
        for group in groups:
            if (prompt := words_of(group)) is not None:
                yield MarkedQuestion(film=next(iter(films)), box=None, prompt=prompt, tracking=tracking(group))


def _own_words(item: Dataset) -> str | None:
    """Return the words of a text or code that a region supports directly."""
    if concept(item) in _NO_WORDS:
        return None
    if kind(item) == "TEXT":
        return words(attributes.text(item, "TextValue"))
    return words(coded(item)[1]) if kind(item) == "CODE" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldItem:
    """A content item with the items that hold it, outermost first."""

    item: Dataset
    above: tuple[Dataset, ...]

    @property
    def container(self) -> Dataset:
        """The innermost container that holds it; the report itself holds all."""
        return next((item for item in reversed(self.above) if kind(item) == "CONTAINER"), self.above[0])


def walk(report: Dataset) -> Iterator[HeldItem | LeftOut]:
    """Yield the report and its content items in their order; ends with a reason where there are too many."""
    waiting = [HeldItem(item=report, above=())]
    count = 0
    while waiting:
        if count == MOST_ITEMS:
            yield LeftOut(reason=f"only the first {MOST_ITEMS} content items are looked at")
            return
        count += 1
        found = waiting.pop()
        yield found
        if len(found.above) < _DEEPEST:
            above = (*found.above, found.item)
            inner = attributes.items(found.item, "ContentSequence")
            waiting.extend(HeldItem(item=item, above=above) for item in reversed(inner))


def kind(item: Dataset) -> str:
    """Return the value type of an item, or ""."""
    return attributes.text(item, "ValueType")


def concept(item: Dataset) -> str:
    """Return the code of an item's concept name, or ""."""
    return _code(item, "ConceptNameCodeSequence")[0]


def coded(item: Dataset) -> tuple[str, str]:
    """Return value and meaning of a coded answer; both "" if it has none."""
    return _code(item, "ConceptCodeSequence")


def tracking(group: Dataset) -> tuple[str, str]:
    """Return tracking identifier and tracking UID of a group; either may be ""."""
    named = uid = ""
    for item in attributes.items(group, "ContentSequence"):
        if concept(item) == TRACKING:
            named = named or attributes.text(item, "TextValue")
        elif concept(item) == _TRACKING_UID:
            uid = uid or attributes.text(item, "UID")
    return named, uid


def evidence(report: Dataset, *, study_uid: str | None = None) -> set[str]:
    """Return the SOP Instance UIDs of the evidence (PS3.3 C.17.2); study_uid: of this study alone, None for all."""
    return {
        uid
        for study in attributes.items(report, "CurrentRequestedProcedureEvidenceSequence")
        if study_uid in (None, attributes.text(study, "StudyInstanceUID"))
        for series in attributes.items(study, "ReferencedSeriesSequence")
        for uid in attributes.references(series)
    }


def _code(item: Dataset, keyword: str) -> tuple[str, str]:
    codes = attributes.items(item, keyword)
    if not codes:
        return "", ""
    return attributes.text(codes[0], "CodeValue"), attributes.text(codes[0], "CodeMeaning")
