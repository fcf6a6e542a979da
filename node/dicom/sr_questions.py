"""The questions of a structured report: each region of a group with the words of that group (TID 1410, PS3.16).

The words are, first found: free text that OHIF writes as a code (`CORNERSTONEFREETEXT`), texts, the finding, the
finding site. A region that supports a text or code directly is asked with that one. Measured numbers and tracking
identifiers are no words. Content items (PS3.3 C.17.3) are found with the items that hold them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
    has_regions, groups = False, list[Dataset]()
    items = _walk(report)
    for item, above in itertools.islice(items, MOST_ITEMS):
        if kind(item) == "CONTAINER" and concept(item) == GROUP:
            groups.append(item)
        if not is_region(item):
            continue
        has_regions = True
        for question in _of_region(item, above):
            if question not in seen:
                seen.add(question)
                yield question
    if next(items, None) is not None:
        yield LeftOut(reason=f"only the first {MOST_ITEMS} content items are looked at")
    elif not has_regions:
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


def _of_region(region: Dataset, above: tuple[Dataset, ...]) -> Iterator[MarkedQuestion | LeftOut]:
    """Yield the questions of a region; above: the items that hold it, of which the report itself holds all."""
    place = place_of(region)
    if isinstance(place, LeftOut):
        yield place
        return
    films, box = place
    group = next((item for item in reversed(above) if kind(item) == "CONTAINER"), above[0])
    prompt = _own_words(above[-1]) or words_of(group)
    for film in films:
        yield MarkedQuestion(film=film, box=box, prompt=prompt, tracking=tracking(group))


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


def _walk(item: Dataset, above: tuple[Dataset, ...] = ()) -> Iterator[tuple[Dataset, tuple[Dataset, ...]]]:
    """Yield an item and those below it in their order, each with the items that hold it, outermost first."""
    yield item, above
    if len(above) < _DEEPEST:
        for inner in attributes.items(item, "ContentSequence"):
            yield from _walk(inner, (*above, item))


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
