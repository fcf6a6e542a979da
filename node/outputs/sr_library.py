"""The image library of a structured report: the films that were read (PS3.16 TID 1600 to 1603)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from highdicom.sr import (
    CodeContentItem,
    ContainerContentItem,
    ContentSequence,
    NumContentItem,
    RelationshipTypeValues,
)
from highdicom.sr.value_types import ContentItem
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.domain import Film, Report
from node.outputs import words
from node.outputs.patient import read_text
from node.outputs.sr_items import container, image

IMAGE_LIBRARY = Concept("111028", "DCM", "Image Library")
IMAGE_LIBRARY_GROUP = Concept("126200", "DCM", "Image Library Group")
MODALITY = Concept("121139", "DCM", "Modality")
PIXEL_DATA_ROWS = Concept("110910", "DCM", "Pixel Data Rows")
PIXEL_DATA_COLUMNS = Concept("110911", "DCM", "Pixel Data Columns")
PIXELS = Concept("{pixels}", "UCUM", "Pixels")
MODALITIES: Mapping[str, Concept] = {
    "CR": Concept("CR", "DCM", "Computed Radiography"),
    "DX": Concept("DX", "DCM", "Digital Radiography"),
}
OTHER_MODALITY = Concept("OT", "DCM", "Other Modality")


def library(report: Report, sources: Mapping[str, Dataset]) -> ContainerContentItem:
    """List the films that were read, in one group: OHIF 3.13.2 looks at the first only."""
    item, group = container(IMAGE_LIBRARY), container(IMAGE_LIBRARY_GROUP)
    for film in report.read_films:
        source = sources[film.source]
        entry = image(source, RelationshipTypeValues.CONTAINS)
        entry.ContentSequence = ContentSequence(list(_descriptors(film, source)))
        group.ContentSequence.append(entry)
    item.ContentSequence.append(group)
    return item


def _descriptors(film: Film, source: Dataset) -> Iterator[ContentItem]:
    yield CodeContentItem(
        name=MODALITY,
        value=MODALITIES.get(read_text(source, "Modality"), OTHER_MODALITY),
        relationship_type=RelationshipTypeValues.HAS_ACQ_CONTEXT,
    )
    columns, rows = words.size(film)
    for name, pixels in ((PIXEL_DATA_ROWS, rows), (PIXEL_DATA_COLUMNS, columns)):
        yield NumContentItem(
            name=name, value=pixels, unit=PIXELS, relationship_type=RelationshipTypeValues.HAS_ACQ_CONTEXT
        )
