"""Content items that both forms of structured report use (PS3.16 TID 1204, 1001, 1004; PS3.3 C.17.3).

Every item has a concept name, even where the standard does not require it: otherwise OHIF shows a blank page.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo

from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept
from pydicom.uid import UID

from node.dicom import identity
from node.domain import Box, Code, ReaderMark, Report
from node.measurement import MeasuredLine
from node.outputs import impression, wording
from node.outputs.patient import long_text, short_text
from node.outputs.sr import content
from node.outputs.sr.content import (
    CONTAINS,
    HAS_CONCEPT_MOD,
    HAS_OBS_CONTEXT,
    INFERRED_FROM,
    SELECTED_FROM,
    Item,
    with_content,
)

COMMENT = Concept("121106", "DCM", "Comment")
FINDING = Concept("121071", "DCM", "Finding")
IMPRESSION = Concept("121073", "DCM", "Impression")
SOURCE = Concept("260753009", "SCT", "Source")
IMAGE_REGION = Concept("111030", "DCM", "Image Region")
_NO_DELIMITERS = str.maketrans(dict.fromkeys("^=\\", " "))
"""The delimiters of a person's name (PS3.5 6.2.1), and of values."""
LANGUAGE = Concept("121049", "DCM", "Language of Content Item and Descendants")
OBSERVER_TYPE = Concept("121005", "DCM", "Observer Type")
PERSON_NAME = Concept("121008", "DCM", "Person Observer Name")
DEVICE_UID = Concept("121012", "DCM", "Device Observer UID")
DEVICE_NAME = Concept("121013", "DCM", "Device Observer Name")
DEVICE_MANUFACTURER = Concept("121014", "DCM", "Device Observer Manufacturer")
DEVICE_MODEL = Concept("121015", "DCM", "Device Observer Model Name")
DEVICE_SERIAL_NUMBER = Concept("121016", "DCM", "Device Observer Serial Number")
ENGLISH = Concept("en-US", "RFC5646", "English (United States)")


def text(value: str, *, name: Concept = COMMENT) -> Item:
    """Make a contained text, without characters that are invalid in DICOM; never empty (PS3.3 C.17.3, type 1C)."""
    return content.text(name, long_text(value) or "-", CONTAINS)


def impression_text(lines: Iterable[str]) -> Item:
    """Make the first text of a report: the research label and the impression, in short lines."""
    return text(wording.wrapped(*impression.labeled(lines)), name=IMPRESSION)


def concept(code: Code) -> Concept:
    """Return a code of the prompt set as a coded concept (PS3.3 8.8); the meaning is LO."""
    return Concept(code.value, short_text(code.scheme, 16), short_text(code.meaning))


def inferred_from(item: Item, *grounds: Item) -> Item:
    """Add the items from which an item was inferred (PS3.3 C.17.3.2.4, INFERRED FROM)."""
    return with_content(item, grounds)


def source_object(source: Dataset) -> Item:
    """Refer to a received object as the source of a statement: an image as IMAGE, any other object as COMPOSITE."""
    return _reference(source, INFERRED_FROM, is_image=is_image(source))


def image(source: Dataset, relationship: str) -> Item:
    """Refer to a received image."""
    return _reference(source, relationship, is_image=True)


def _reference(source: Dataset, relationship: str, *, is_image: bool) -> Item:
    names = str(source.SOPClassUID), str(source.SOPInstanceUID)
    return content.reference(SOURCE, *names, relationship, is_image=is_image)


def region(box: Box, source: Dataset, relationship: str = INFERRED_FROM) -> Item:
    """Refer to a rectangle on a film as the source of a statement."""
    return _polyline(outline(box), source, relationship)


def line(drawn: MeasuredLine, source: Dataset) -> Item:
    """Refer to a line on a film as the source of a number."""
    return _polyline([drawn.start, drawn.end], source, INFERRED_FROM)


def _polyline(points: list[tuple[float, float]], source: Dataset, relationship: str) -> Item:
    return with_content(content.polyline(IMAGE_REGION, points, relationship), [image(source, SELECTED_FROM)])


def outline(box: Box) -> list[tuple[float, float]]:
    """Return a rectangle as a closed line, column and row, clockwise from top left (PS3.3 C.18.6.1.1)."""
    left, top, right, bottom = box.edges
    return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]


def is_image(source: Dataset) -> bool:
    """Return whether an object may be referred to as an image; not if its class is private, hence unknown."""
    return "Image Storage" in UID(str(source.SOPClassUID)).name


def language() -> Item:
    """State the language of the report (TID 1204)."""
    return content.code(LANGUAGE, ENGLISH, HAS_CONCEPT_MOD)


def said_by_reader(item: Item, mark: ReaderMark | None, zone: tzinfo) -> Item:
    """Return an item with the person who observed it in place of the program, and when; as it is without a mark.

    The person is "Reader" if the node does not ask for names.
    """
    if mark is None:
        return item
    observed = content.observed(item, mark.at.astimezone(zone))
    return with_content(observed, person(mark.by) or person("Reader"))


def person(name: str) -> list[Item]:
    """Name a person who took part beside the program (TID 1003); nothing for a blank name."""
    words = short_text(name.translate(_NO_DELIMITERS))
    if not words:
        return []
    return [
        content.code(OBSERVER_TYPE, codes.DCM.Person, HAS_OBS_CONTEXT),
        content.person(PERSON_NAME, f"{words}^", HAS_OBS_CONTEXT),
    ]


def observer(report: Report) -> list[Item]:
    """State who observed: this program with these weights (TID 1001, 1004)."""
    model = f"{identity.PROGRAM} {identity.VERSION}, model {report.model.name} {report.model.version}"
    texts = (
        (DEVICE_NAME, identity.PROGRAM),
        (DEVICE_MANUFACTURER, identity.MANUFACTURER),
        (DEVICE_MODEL, long_text(model)),
        (DEVICE_SERIAL_NUMBER, long_text(report.model.weights_sha256)),
    )
    return [
        content.code(OBSERVER_TYPE, codes.DCM.Device, HAS_OBS_CONTEXT),
        content.uid(DEVICE_UID, identity.device_uid(report.model), HAS_OBS_CONTEXT),
        *(content.text(name, value, HAS_OBS_CONTEXT) for name, value in texts),
    ]
