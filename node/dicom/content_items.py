"""Looks at the content items of a structured report (PS3.3 C.17.3): each with the items that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.dicom.drawn import LeftOut

MOST_ITEMS: Final = 5000
GROUP: Final = "125007"
"""The concept of a measurement group (TID 1410, PS3.16)."""
TRACKING: Final = "112039"
_TRACKING_UID: Final = "112040"
_DEEPEST: Final = 16


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


def referenced(item: Dataset) -> list[str]:
    """Return the SOP Instance UIDs that an item refers to."""
    objects = attributes.items(item, "ReferencedSOPSequence")
    return [uid for found in objects if (uid := attributes.text(found, "ReferencedSOPInstanceUID"))]


def evidence(report: Dataset, keyword: str = "CurrentRequestedProcedureEvidenceSequence") -> set[str]:
    """Return the SOP Instance UIDs of a sequence that names studies, series and objects (PS3.3 C.17.2)."""
    return {
        uid
        for study in attributes.items(report, keyword)
        for series in attributes.items(study, "ReferencedSeriesSequence")
        for uid in referenced(series)
    }


def _code(item: Dataset, keyword: str) -> tuple[str, str]:
    codes = attributes.items(item, keyword)
    if not codes:
        return "", ""
    return attributes.text(codes[0], "CodeValue"), attributes.text(codes[0], "CodeMeaning")
