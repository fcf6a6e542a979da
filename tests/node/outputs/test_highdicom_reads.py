"""highdicom's own readers take every output that the node can write, and nothing in it comes from the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from io import BytesIO

import numpy as np
import pytest
from highdicom import imread
from highdicom.ko import KeyObjectSelectionDocument
from highdicom.pr import GraphicLayer, GraphicObject, TextObject
from highdicom.sr import Comprehensive3DSR, ComprehensiveSR, ContentSequence, MeasurementReport
from pydicom.dataset import Dataset
from pydicom.uid import (
    BasicTextSRStorage,
    Comprehensive3DSRStorage,
    ComprehensiveSRStorage,
    GrayscaleSoftcopyPresentationStateStorage,
    KeyObjectSelectionDocumentStorage,
    MultiFrameGrayscaleByteSecondaryCaptureImageStorage,
    SecondaryCaptureImageStorage,
)

from node.outputs import gsps
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from tests.support import every_object, samples

pytestmark = pytest.mark.drill(part="objects")

CLASSES = (
    ComprehensiveSRStorage,
    Comprehensive3DSRStorage,
    BasicTextSRStorage,
    GrayscaleSoftcopyPresentationStateStorage,
    SecondaryCaptureImageStorage,
    KeyObjectSelectionDocumentStorage,
)


@cache
def objects() -> dict[str, Dataset]:
    return dict(every_object.objects())


def of_class(sop_class: str) -> list[Dataset]:
    return [dataset for dataset in objects().values() if dataset.SOPClassUID == sop_class]


def items(holder: Dataset) -> Iterator[Dataset]:
    for item in holder.get("ContentSequence", ()):
        yield item
        yield from items(item)


def test_every_class_that_the_node_writes_is_among_the_objects() -> None:
    assert {dataset.SOPClassUID for dataset in objects().values()} == set(CLASSES)


@pytest.mark.parametrize("document", [ComprehensiveSR, Comprehensive3DSR])
def test_highdicom_reads_every_item_of_a_comprehensive_report(document: type[ComprehensiveSR]) -> None:
    sop_class = {ComprehensiveSR: ComprehensiveSRStorage, Comprehensive3DSR: Comprehensive3DSRStorage}[document]
    written = of_class(sop_class)

    assert any(dataset.ContentTemplateSequence[0].TemplateIdentifier == "1500" for dataset in written)
    for dataset in written:
        read = document.from_dataset(dataset)
        assert len(list(items(read.content[0]))) == len(list(items(dataset)))
        if isinstance(read.content, MeasurementReport):
            groups = read.content.get_planar_roi_measurement_groups() or read.content.get_image_measurement_groups()
            assert all(group.get_measurements() for group in groups)
            assert len(groups) == sum(item.ConceptNameCodeSequence[0].CodeValue == "125007" for item in items(dataset))


def test_highdicom_reads_every_item_of_a_basic_text() -> None:
    for dataset in of_class(BasicTextSRStorage):
        root = Dataset()
        for keyword in ("ValueType", "ContinuityOfContent", "ConceptNameCodeSequence", "ContentSequence"):
            setattr(root, keyword, dataset[keyword].value)

        [read] = ContentSequence.from_sequence([root], is_root=True)

        assert len(list(items(read))) == len(list(items(dataset))) > 3


def test_highdicom_reads_rejection_notes() -> None:
    [note] = of_class(KeyObjectSelectionDocumentStorage)

    read = KeyObjectSelectionDocument.from_dataset(note)

    [study] = note.CurrentRequestedProcedureEvidenceSequence
    named = {
        (study.StudyInstanceUID, series.SeriesInstanceUID, item.ReferencedSOPInstanceUID)
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    assert {read.resolve_reference(uid) for _, _, uid in named} == named
    assert len(read.content.get_references()) == len(named) == 3


def test_highdicom_reads_the_pixels_of_captures() -> None:
    for capture in of_class(SecondaryCaptureImageStorage)[:4]:
        read = imread(BytesIO(save_bytes(capture)))

        assert np.array_equal(read.get_frame(1, apply_icc_profile=False), capture.pixel_array)


def test_classes_of_highdicom_hold_what_states_draw() -> None:
    """highdicom 0.28.2 has no reader of presentation states; its classes refuse what is not valid."""
    for state in of_class(GrayscaleSoftcopyPresentationStateStorage):
        for layer in state.GraphicLayerSequence:
            assert GraphicLayer(layer.GraphicLayer, layer.GraphicLayerOrder, layer.GraphicLayerDescription)
        for annotation in state.GraphicAnnotationSequence:
            for drawn in annotation.get("GraphicObjectSequence", ()):
                points = np.array(drawn.GraphicData).reshape(-1, 2)
                tracking = {"tracking_id": drawn.get("TrackingID"), "tracking_uid": drawn.get("TrackingUID")}
                again = GraphicObject(drawn.GraphicType, points, drawn.GraphicAnnotationUnits, **tracking)
                assert again.NumberOfGraphicPoints == drawn.NumberOfGraphicPoints
            for text in annotation.get("TextObjectSequence", ()):
                place = (*text.BoundingBoxTopLeftHandCorner, *text.BoundingBoxBottomRightHandCorner)
                assert TextObject(text.UnformattedTextValue, text.BoundingBoxAnnotationUnits, bounding_box=place)


def test_every_object_that_a_report_refers_to_is_evidence() -> None:
    for dataset in objects().values():
        references = (reference for item in items(dataset) for reference in item.get("ReferencedSOPSequence", ()))
        evidence = (
            reference
            for study in dataset.get("CurrentRequestedProcedureEvidenceSequence", ())
            for series in study.ReferencedSeriesSequence
            for reference in series.ReferencedSOPSequence
        )
        assert set(map(reference_of, references)) <= set(map(reference_of, evidence))


def reference_of(item: Dataset) -> tuple[str, str]:
    return item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID


def test_a_film_of_a_class_with_several_frames_is_written() -> None:
    header = samples.cr(1)
    header.SOPClassUID = MultiFrameGrayscaleByteSecondaryCaptureImageStorage
    report = samples.report(samples.several())

    [state] = samples.datasets(gsps.write, report, samples.received(header), samples.BERLIN)
    [document] = samples.datasets(sr.write, report, samples.sources(header), samples.BERLIN)

    assert "ModalityLUTSequence" not in state and "RescaleSlope" in state
    assert document.ContentTemplateSequence[0].TemplateIdentifier == "1500"


def test_an_object_of_a_private_class_is_answered() -> None:
    header = samples.bare(1)
    header.SOPClassUID = "1.2.276.0.7230010.3.1.0.1"

    [document] = samples.datasets(sr.write, samples.report(samples.unread(1)), samples.sources(header), samples.BERLIN)

    [study] = document.CurrentRequestedProcedureEvidenceSequence
    assert study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPClassUID == header.SOPClassUID


@pytest.mark.parametrize("name", ["Doe", "A^B^C^D^E^F", "山田^太郎"])
def test_no_name_of_a_patient_reaches_a_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    header = samples.cr(1)
    header.SpecificCharacterSet = "ISO_IR 192"
    header.PatientName = name

    with caplog.at_level("DEBUG"):
        samples.datasets(sr.write, samples.report(samples.several()), samples.sources(header), samples.BERLIN)
        samples.datasets(gsps.write, samples.report(samples.several()), samples.received(header), samples.BERLIN)

    assert name not in caplog.text


def test_no_object_has_a_date_of_the_clock() -> None:
    today = f"{datetime.now(UTC):%Y%m%d}"

    dated = [
        f"{name}: {element.keyword} {element.value}"
        for name, dataset in objects().items()
        for element in dataset.iterall()
        if element.VR in ("DA", "DT") and str(element.value).startswith(today)
    ]

    assert dated == []
