"""Common parts of structured reports: their forms, and content items (PS3.16 TID 1001, 1204; PS3.3 C.17.3).

Each form is a kind of output (`output_kinds`), and a series of its own. Items are made with highdicom. Every item has
a concept name, even where the standard does not require it: otherwise OHIF shows a blank page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from highdicom.sr import (
    CodedConcept,
    CompositeContentItem,
    ContainerContentItem,
    ContentItem,
    ContentSequence,
    DeviceObserverIdentifyingAttributes,
    GraphicTypeValues,
    ImageContentItem,
    LanguageOfContentItemAndDescendants,
    ObserverContext,
    PersonObserverIdentifyingAttributes,
    RelationshipTypeValues,
    ScoordContentItem,
    SourceImageForRegion,
    TextContentItem,
)
from highdicom.sr.templates import Template
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept
from pydicom.uid import UID

from models.contract import Box
from node.dicom import identity
from node.domain import Code, ReaderMark, Report
from node.outputs import highdicom_gaps, impression, wording
from node.outputs.patient import long_text, short_text

COMMENT = Concept("121106", "DCM", "Comment")
FINDING = Concept("121071", "DCM", "Finding")
IMPRESSION = Concept("121073", "DCM", "Impression")
SOURCE = Concept("260753009", "SCT", "Source")
IMAGE_REGION = Concept("111030", "DCM", "Image Region")
ENGLISH = CodedConcept("en-US", "RFC5646", "English (United States)")
POLYLINE: Final = GraphicTypeValues.POLYLINE
_NO_DELIMITERS = str.maketrans(dict.fromkeys("^=\\", " "))
"""The delimiters of a person's name (PS3.5 6.2.1), and of values."""

Points = npt.NDArray[np.float64]
"""[point, 2]: column and row on an image (PS3.3 C.18.6)."""

ItemT = TypeVar("ItemT", bound=ContentItem)


def container(
    name: Concept, *, template: str | None = None, is_root: bool = False, content: Iterable[ContentItem] = ()
) -> ContainerContentItem:
    """Make a container of separate items; template: the identifier of its template (PS3.3 C.18.8)."""
    relationship = None if is_root else RelationshipTypeValues.CONTAINS
    item = ContainerContentItem(name, is_content_continuous=False, template_id=template, relationship_type=relationship)
    return with_content(item, content)


def with_content(item: ItemT, content: Iterable[ContentItem]) -> ItemT:
    """Add content to an item, and return it."""
    added = list(content)
    if "ContentSequence" not in item and added:
        item.ContentSequence = ContentSequence(added)
        return item
    for each in added:  # a new sequence would check every existing item again
        item.ContentSequence.append(each)
    return item


def text(value: str, *, name: Concept = COMMENT) -> TextContentItem:
    """Make a contained text, without characters that are invalid in DICOM; never empty (PS3.3 C.17.3, type 1C)."""
    return TextContentItem(name, long_text(value) or "-", RelationshipTypeValues.CONTAINS)


def impression_text(lines: Iterable[str]) -> TextContentItem:
    """Make the first text of a report: the research label and the impression."""
    return text(wording.paragraphs(*impression.labeled(lines)), name=IMPRESSION)


def concept(code: Code) -> Concept:
    """Return a code of the prompt set as a coded concept (PS3.3 8.8); the meaning is LO."""
    return Concept(code.value, short_text(code.scheme, 16), short_text(code.meaning))


def inferred_from(item: ItemT, *grounds: ContentItem) -> ItemT:
    """Add the items from which an item was inferred (PS3.3 C.17.3.2.4, INFERRED FROM)."""
    return with_content(item, grounds)


def source_object(source: Dataset) -> ContentItem:
    """Refer to a received object as the source of a statement: an image as IMAGE, any other object as COMPOSITE."""
    kind = ImageContentItem if is_image(source) else CompositeContentItem
    names = str(source.SOPClassUID), str(source.SOPInstanceUID)
    return kind(SOURCE, *names, relationship_type=RelationshipTypeValues.INFERRED_FROM)


def image_of(source: Dataset) -> SourceImageForRegion:
    """Refer to a film as the source image of a region."""
    return SourceImageForRegion(str(source.SOPClassUID), str(source.SOPInstanceUID))


def region(box: Box, source: Dataset) -> ScoordContentItem:
    """Refer to a rectangle on a film as the source of a statement."""
    item = ScoordContentItem(
        IMAGE_REGION, POLYLINE, outline(box), relationship_type=RelationshipTypeValues.INFERRED_FROM
    )
    return with_content(item, [image_of(source)])


def outline(box: Box) -> Points:
    """Return a rectangle as a closed line, clockwise from top left (PS3.3 C.18.6.1.1)."""
    left, top, right, bottom = box.edges
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], dtype=np.float64)


def is_image(source: Dataset) -> bool:
    """Return whether an object may be referred to as an image; not if its class is private, hence unknown."""
    return "Image Storage" in UID(str(source.SOPClassUID)).name


def language() -> LanguageOfContentItemAndDescendants:
    """State the language of the report (TID 1204)."""
    return LanguageOfContentItemAndDescendants(ENGLISH)


def said_by_reader(item: ItemT, mark: ReaderMark | None, zone: tzinfo) -> ItemT:
    """Name the radiologist and the time as an item's observer in place of the program; without a mark, do nothing.

    The person is "Reader" if the node has no sign-in.
    """
    if mark is None:
        return item
    highdicom_gaps.observed(item, mark.at.astimezone(zone))
    return with_content(item, person(mark.by) or person("Reader"))


def person(name: str) -> list[ContentItem]:
    """Name a person who took part beside the program (TID 1003); nothing for a blank name."""
    words = short_text(name.translate(_NO_DELIMITERS))
    if not words:
        return []
    return [*ObserverContext(codes.DCM.Person, PersonObserverIdentifyingAttributes(f"{words}^"))]


def observer(report: Report) -> ObserverContext:
    """State who observed: this program with these weights (TID 1001, 1004)."""
    model = f"{identity.PROGRAM} {identity.VERSION}, model {report.model.name} {report.model.version}"
    device = DeviceObserverIdentifyingAttributes(
        uid=identity.device_uid(report.model),
        name=identity.PROGRAM,
        manufacturer_name=identity.MANUFACTURER,
        model_name=long_text(model),
        serial_number=long_text(report.model.weights_sha256),
    )
    return ObserverContext(codes.DCM.Device, device)


def container_of(template: Template) -> ContainerContentItem:
    """Return the root container of a measurement group or of a report."""
    [item] = template
    return cast(ContainerContentItem, item)


OF_FILM, OF_STUDY, OF_RATIO, OF_ANSWER = 1, 3, 5, 7
"""Added to `Form.first`: the Series Numbers of reports on a film, the study, a cardiothoracic ratio, and an answer.

All films' reports have the same: a place among the films would change when another film arrives, and the report too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of reports.

    kind: the kind of output (`destinations.outputs`)
    series: distinguishes the series of this form, see `identity.series_uid`
    first: the number before its Series Numbers
    """

    kind: str
    series: str
    first: int


COMPREHENSIVE: Final = Form(kind="sr", series="", first=9000)
COMPREHENSIVE_3D: Final = Form(kind="sr3d", series="sr3d", first=9010)
BASIC_TEXT: Final = Form(kind="text", series="text", first=9020)

FORMS: Final[Mapping[str, Form]] = {form.kind: form for form in (COMPREHENSIVE, COMPREHENSIVE_3D, BASIC_TEXT)}
"""Every form by its kind."""
