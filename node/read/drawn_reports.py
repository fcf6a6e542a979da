"""The questions of a structured report: each region of a group with the words of that group (TID 1410, PS3.16).

The words are, first found: free text that OHIF writes as a code (`CORNERSTONEFREETEXT`), texts, the finding, the
finding site. A region that supports a text or code directly is asked with that one. Measured numbers and tracking
identifiers are no words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.read.drawn import LeftOut, MarkedQuestion, pairs, surround, words

_MOST_ITEMS: Final = 5000
_DEEPEST: Final = 16
_FREE_TEXT: Final = "CORNERSTONEFREETEXT"
_GROUP, _TRACKING, _TRACKING_UID = "125007", "112039", "112040"
_FINDING, _SITE = "121071", "363698007"
_NO_WORDS: Final = frozenset((_TRACKING, "112000", "111001", "111003"))
"""Concepts of texts that identify something: tracking identifier, and names and versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A content item with the items that hold it, outermost first."""

    item: Dataset
    above: tuple[Dataset, ...]


def questions(report: Dataset) -> Iterator[MarkedQuestion | LeftOut]:
    """Yield the questions of a structured report in their order, each once, and what cannot be one."""
    seen = set[object]()
    regions = 0
    groups = []
    for count, found in enumerate(_walk(report)):
        if count >= _MOST_ITEMS:
            yield LeftOut(reason=f"only the first {_MOST_ITEMS} content items are looked at")
            return
        if _kind(found.item) == "CONTAINER" and _concept(found.item) == _GROUP:
            groups.append(found.item)
        if _kind(found.item) not in ("SCOORD", "SCOORD3D"):
            continue
        regions += 1
        for question in _of_region(found):
            if question not in seen:
                seen.add(question)
                yield question
    if not regions:
        yield from _without_regions(report, groups)


def _walk(report: Dataset) -> Iterator[_Found]:
    waiting = [_Found(item=report, above=())]
    while waiting:
        found = waiting.pop()
        yield found
        if len(found.above) < _DEEPEST:
            above = (*found.above, found.item)
            inner = attributes.items(found.item, "ContentSequence")
            waiting.extend(_Found(item=item, above=above) for item in reversed(inner))


def _of_region(found: _Found) -> Iterator[MarkedQuestion | LeftOut]:
    if _kind(found.item) == "SCOORD3D":
        yield LeftOut(reason="a region has coordinates of the patient; draw it on the film")
        return
    images = [item for item in attributes.items(found.item, "ContentSequence") if _kind(item) == "IMAGE"]
    films = [film for image in images for film in _referenced(image)]
    if not films:
        yield LeftOut(reason="a region names no film")
        return
    box = surround(attributes.text(found.item, "GraphicType"), pairs(found.item, "GraphicData"))
    if isinstance(box, LeftOut):
        yield box
        return
    group = next((item for item in reversed(found.above) if _kind(item) == "CONTAINER"), found.above[0])
    prompt = _own_words(found.above[-1]) or _words_of(group)
    for film in films:
        yield MarkedQuestion(film=film, box=box, prompt=prompt, tracking=_tracking(group))


def _without_regions(report: Dataset, groups: list[Dataset]) -> Iterator[MarkedQuestion]:
    """Yield the words of groups, if the report is about one film."""
    films = {
        uid
        for study in attributes.items(report, "CurrentRequestedProcedureEvidenceSequence")
        for series in attributes.items(study, "ReferencedSeriesSequence")
        for uid in _referenced(series)
    }
    if len(films) == 1:
        for group in groups:
            if (prompt := _words_of(group)) is not None:
                yield MarkedQuestion(film=next(iter(films)), box=None, prompt=prompt, tracking=_tracking(group))


def _own_words(item: Dataset) -> str | None:
    """Return the words of a text or code that a region supports directly."""
    if _concept(item) in _NO_WORDS:
        return None
    if _kind(item) == "TEXT":
        return words(attributes.text(item, "TextValue"))
    return words(_value(item)[1]) if _kind(item) == "CODE" else None


def _words_of(group: Dataset) -> str | None:
    inner = attributes.items(group, "ContentSequence")
    codes = [(_concept(item), *_value(item)) for item in inner if _kind(item) == "CODE"]
    texts = [
        attributes.text(item, "TextValue")
        for item in inner
        if _kind(item) == "TEXT" and _concept(item) not in _NO_WORDS
    ]
    return (
        words(*(meaning for _, value, meaning in codes if value == _FREE_TEXT))
        or words(*texts)
        or words(*(meaning for concept, _, meaning in codes if concept == _FINDING))
        or words(*(meaning for concept, _, meaning in codes if concept == _SITE))
    )


def _tracking(group: Dataset) -> tuple[str, str]:
    named = uid = ""
    for item in attributes.items(group, "ContentSequence"):
        if _concept(item) == _TRACKING:
            named = named or attributes.text(item, "TextValue")
        elif _concept(item) == _TRACKING_UID:
            uid = uid or attributes.text(item, "UID")
    return named, uid


def _referenced(item: Dataset) -> list[str]:
    objects = attributes.items(item, "ReferencedSOPSequence")
    return [uid for found in objects if (uid := attributes.text(found, "ReferencedSOPInstanceUID"))]


def _kind(item: Dataset) -> str:
    return attributes.text(item, "ValueType")


def _concept(item: Dataset) -> str:
    """Return the code of an item's concept name, or ""."""
    names = attributes.items(item, "ConceptNameCodeSequence")
    return attributes.text(names[0], "CodeValue") if names else ""


def _value(item: Dataset) -> tuple[str, str]:
    """Return value and meaning of a coded answer."""
    values = attributes.items(item, "ConceptCodeSequence")
    if not values:
        return "", ""
    return attributes.text(values[0], "CodeValue"), attributes.text(values[0], "CodeMeaning")
