"""Content items that both forms of structured report use (PS3.16 TID 1204, 1001, 1004; PS3.3 C.17.3).

Every item has a concept name, even where the standard does not require it: otherwise OHIF shows a blank page.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from highdicom.sr import (
    CodeContentItem,
    CodedConcept,
    CompositeContentItem,
    ContainerContentItem,
    ContentSequence,
    DeviceObserverIdentifyingAttributes,
    ImageContentItem,
    LanguageOfContentItemAndDescendants,
    ObservationContext,
    ObserverContext,
    PersonObserverIdentifyingAttributes,
    RelationshipTypeValues,
    ScoordContentItem,
    TextContentItem,
)
from highdicom.sr.value_types import ContentItem
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept
from pydicom.uid import UID

from node.dicom import identity
from node.domain import Box, Code, ReaderMark, Report
from node.measurement import MeasuredLine
from node.outputs import impression, wording
from node.outputs.patient import long_text, short_text

COMMENT = Concept("121106", "DCM", "Comment")
FINDING = Concept("121071", "DCM", "Finding")
IMPRESSION = Concept("121073", "DCM", "Impression")
SOURCE = Concept("260753009", "SCT", "Source")
IMAGE_REGION = Concept("111030", "DCM", "Image Region")
_NO_DELIMITERS = str.maketrans(dict.fromkeys("^=\\", " "))
"""The delimiters of a person's name (PS3.5 6.2.1), and of values."""
ENGLISH = Concept("en-US", "RFC5646", "English (United States)")


def container(name: Concept, *, template: str | None = None, is_root: bool = False) -> ContainerContentItem:
    """Make an empty container."""
    item = ContainerContentItem(
        name=name,
        is_content_continuous=False,
        template_id=template,
        relationship_type=None if is_root else RelationshipTypeValues.CONTAINS,
    )
    item.ContentSequence = ContentSequence()
    return item


def text(value: str, *, name: Concept = COMMENT) -> TextContentItem:
    """Make a contained text, without characters that are invalid in DICOM; never empty (PS3.3 C.17.3, type 1C)."""
    return TextContentItem(name=name, value=long_text(value) or "-", relationship_type=RelationshipTypeValues.CONTAINS)


def impression_text(lines: Iterable[str]) -> TextContentItem:
    """Make the first text of a report: the research label and the impression, in short lines."""
    return text(wording.wrapped(*impression.labeled(lines)), name=IMPRESSION)


def code(name: CodedConcept, value: Concept) -> CodeContentItem:
    """Make a contained question and its coded answer."""
    return CodeContentItem(name=name, value=value, relationship_type=RelationshipTypeValues.CONTAINS)


def concept(code: Code) -> CodedConcept:
    """Encode a code of the prompt set (PS3.3 8.8); the meaning is LO."""
    return CodedConcept(code.value, short_text(code.scheme, 16), short_text(code.meaning))


def inferred_from(item: ContentItem, *grounds: ContentItem) -> ContentItem:
    """Add the items from which an item was inferred (PS3.3 C.17.3.2.4, INFERRED FROM)."""
    item.ContentSequence = ContentSequence(list(grounds))
    return item


def source_object(source: Dataset) -> ContentItem:
    """Refer to a received object as the source of a statement: an image as IMAGE, any other object as COMPOSITE."""
    if is_image(source):
        return image(source, RelationshipTypeValues.INFERRED_FROM)
    return CompositeContentItem(
        name=SOURCE,
        referenced_sop_class_uid=str(source.SOPClassUID),
        referenced_sop_instance_uid=str(source.SOPInstanceUID),
        relationship_type=RelationshipTypeValues.INFERRED_FROM,
    )


def image(source: Dataset, relationship: RelationshipTypeValues) -> ImageContentItem:
    """Refer to a received image."""
    return ImageContentItem(
        name=SOURCE,
        referenced_sop_class_uid=str(source.SOPClassUID),
        referenced_sop_instance_uid=str(source.SOPInstanceUID),
        relationship_type=relationship,
    )


def region(box: Box, source: Dataset) -> ContentItem:
    """Refer to a rectangle on a film as the source of a statement."""
    return _polyline(outline(box), source)


def line(drawn: MeasuredLine, source: Dataset) -> ContentItem:
    """Refer to a line on a film as the source of a number."""
    return _polyline(np.array([drawn.start, drawn.end]), source)


def _polyline(points: np.ndarray, source: Dataset) -> ContentItem:
    item = ScoordContentItem(
        name=IMAGE_REGION,
        graphic_type="POLYLINE",
        graphic_data=points,
        relationship_type=RelationshipTypeValues.INFERRED_FROM,
    )
    item.ContentSequence = ContentSequence([image(source, RelationshipTypeValues.SELECTED_FROM)])
    return item


def outline(box: Box) -> np.ndarray:
    """Return a rectangle as a closed line, [5, column row], clockwise from top left (PS3.3 C.18.6.1.1)."""
    left, top, right, bottom = box.edges
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])


def is_image(source: Dataset) -> bool:
    """Return whether an object may be referred to as an image; not if its class is private, hence unknown."""
    return "Image Storage" in UID(str(source.SOPClassUID)).name


def language() -> LanguageOfContentItemAndDescendants:
    """State the language of the report (TID 1204)."""
    return LanguageOfContentItemAndDescendants(CodedConcept.from_code(ENGLISH))


def reader(mark: ReaderMark) -> list[ContentItem]:
    """State that a person observed an item, not the program; "Reader" if the node does not ask for names."""
    return person(mark.by) or person("Reader")


def person(name: str) -> list[ContentItem]:
    """Name a person who took part beside the program (TID 1003); nothing for a blank name."""
    words = short_text(name.translate(_NO_DELIMITERS))
    if not words:
        return []
    attributes = PersonObserverIdentifyingAttributes(name=f"{words}^")  # highdicom doubts a name of one part
    context = ObserverContext(observer_type=codes.DCM.Person, observer_identifying_attributes=attributes)
    return [item for item in context]


def observer(report: Report) -> ObservationContext:
    """State who observed: this program with these weights (TID 1001, 1004)."""
    device = DeviceObserverIdentifyingAttributes(
        uid=identity.device_uid(report.model),
        name=identity.PROGRAM,
        manufacturer_name=identity.MANUFACTURER,
        model_name=long_text(
            f"{identity.PROGRAM} {identity.VERSION}, model {report.model.name} {report.model.version}"
        ),
        serial_number=long_text(report.model.weights_sha256),
    )
    return ObservationContext(
        observer_device_context=ObserverContext(observer_type=codes.DCM.Device, observer_identifying_attributes=device)
    )
