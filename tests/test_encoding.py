"""Encoding: byte for byte what pydicom writes, and what is encoded can still be read and changed."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.dicom import encoding
from node.outputs import document, gsps, secondary_capture
from node.outputs.sr import content
from node.outputs.sr import report as sr
from node.outputs.sr.content import CONTAINS, container, with_content
from node.outputs.sr.items import IMPRESSION
from tests import samples
from tests.samples import BERLIN, bare, cr, film, received, report, several, sources, unread

OF = report(several(), unread(2), film(3))
HEADERS = (samples.named("chrH31.dcm"), bare(2), cr(3))
PICTURE = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def by_pydicom(content: bytes) -> bytes:
    """Return the file that pydicom writes of an object after it has looked at every value."""
    read = dcmread(BytesIO(content))
    copied = Dataset()
    copied.file_meta = read.file_meta
    assert [element for element in read.iterall() if element.is_raw] == []
    for element in read:
        copied.add(element)
    buffer = BytesIO()
    dcmwrite(buffer, copied, enforce_file_format=True)
    return buffer.getvalue()


def test_every_object_is_encoded_as_pydicom_does() -> None:
    films = received(*HEADERS, picture=PICTURE)
    objects = [
        *sr.write(OF, sources(*HEADERS), BERLIN),
        *gsps.write(OF, films, BERLIN),
        *secondary_capture.write(OF, films, BERLIN),
    ]

    assert len(objects) > 8
    for dataset in objects:
        content = document.save_bytes(dataset)
        assert content == by_pydicom(content)


def test_a_code_keeps_each_of_its_meanings() -> None:
    meanings = ("Lung", "Lung structure")  # pydicom holds concepts of one code equal whatever their meanings
    written = Dataset()
    root = with_content(
        container(IMPRESSION),
        [content.code(IMPRESSION, Concept("39607008", "SCT", meaning), CONTAINS) for meaning in meanings],
    )
    for tag, encoded in root.elements():
        written[tag] = encoding.as_raw(tag, encoded)

    assert [item.ConceptCodeSequence[0].CodeMeaning for item in written.ContentSequence] == list(meanings)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("PatientName", "Yamada^Tarou=山田^太郎=やまだ^たろう"),
        ("PatientID", "odd"),
        ("SOPInstanceUID", "1.2.3"),
        ("ImageType", ["DERIVED", "SECONDARY"]),
        ("SoftwareVersions", ["ü", "b"]),
        ("WindowCenter", "12.5"),
        ("ImagerPixelSpacing", [0.1, 0.25]),
        ("InstanceNumber", 7),
        ("Rows", 513),
        ("Columns", None),
        ("GraphicData", [0.5, 1.5, 2.5]),
        ("ShadowColorCIELabValue", [1, 2, 3]),
        ("RealWorldValueSlope", 0.125),
        ("StudyDate", "20240131"),
        ("StudyTime", ""),
        ("ReferencedStudySequence", []),
        ("FrameIncrementPointer", 0x00181063),
        ("EncapsulatedDocument", b"odd"),
    ],
)
def test_values_of_all_kinds_are_encoded_as_pydicom_does(keyword: str, value: object) -> None:
    dataset, inner = Dataset(), Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    setattr(dataset, keyword, value)
    setattr(inner, keyword, value)
    dataset.ContentSequence = [inner, Dataset()]
    buffer = BytesIO()
    dcmwrite(buffer, dataset, implicit_vr=False, little_endian=True)

    assert b"".join(encoded for _, encoded in encoding.elements(dataset)) == buffer.getvalue()


def test_a_sealed_object_can_be_read_and_changed() -> None:
    dataset = sr.write(OF, sources(*HEADERS), BERLIN)[0]
    before = document.save_bytes(dataset)

    [language] = dataset.ContentSequence[0].ConceptCodeSequence
    assert language.CodeValue == "en-US"
    assert document.save_bytes(dataset) == before
    language.CodeMeaning = "Größe"
    changed = dcmread(BytesIO(document.save_bytes(dataset)))
    assert changed.ContentSequence[0].ConceptCodeSequence[0].CodeMeaning == "Größe"
