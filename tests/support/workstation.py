"""Objects that a reader saves at a workstation: presentation states and structured reports about a film."""

from __future__ import annotations

from collections.abc import Sequence

from pydicom.config import IGNORE
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.uid import UID, Comprehensive3DSRStorage, GrayscaleSoftcopyPresentationStateStorage

from node.domain import derive_uid
from tests.support import films

TRACKING = derive_uid("tracking of a reader")
Points = Sequence[float]


def graphic(kind: str, points: Points, *, units: str = "PIXEL", tracking: str = "") -> Dataset:
    item = Dataset()
    item.GraphicAnnotationUnits, item.GraphicDimensions, item.GraphicType = units, 2, kind
    item.NumberOfGraphicPoints, item.GraphicData = len(points) // 2, list(points)
    if tracking:
        item.TrackingID, item.TrackingUID = "place 1", tracking
    return item


def rectangle(left: float, top: float, right: float, bottom: float, *, tracking: str = "") -> Dataset:
    return graphic("POLYLINE", [left, top, right, top, right, bottom, left, bottom, left, top], tracking=tracking)


def note(text: str, x: float, y: float) -> Dataset:
    item = Dataset()
    item.UnformattedTextValue = text
    item.AnchorPoint, item.AnchorPointAnnotationUnits, item.AnchorPointVisibility = [x, y], "PIXEL", "N"
    return item


def state(
    film: Dataset, *, graphics: Sequence[Dataset] = (), texts: Sequence[Dataset] = (), name: str = "state"
) -> Dataset:
    """A presentation state with one annotation on a film."""
    dataset = _begin(film, GrayscaleSoftcopyPresentationStateStorage, "PR", name)
    dataset.ContentLabel, dataset.ContentDescription, dataset.ContentCreatorName = "ASK AI", "", "Reader^Rita"
    image, series, annotation, area = Dataset(), Dataset(), Dataset(), Dataset()
    image.ReferencedSOPClassUID, image.ReferencedSOPInstanceUID = film.SOPClassUID, film.SOPInstanceUID
    series.SeriesInstanceUID, series.ReferencedImageSequence = film.SeriesInstanceUID, [image]
    dataset.ReferencedSeriesSequence = [series]
    area.DisplayedAreaTopLeftHandCorner = [1, 1]
    area.DisplayedAreaBottomRightHandCorner = [int(film.Columns), int(film.Rows)]
    dataset.DisplayedAreaSelectionSequence = [area]
    annotation.ReferencedImageSequence, annotation.GraphicLayer = [image], "READER"
    if graphics:
        annotation.GraphicObjectSequence = list(graphics)
    if texts:
        annotation.TextObjectSequence = list(texts)
    dataset.GraphicAnnotationSequence = [annotation]
    return dataset


def coded(value: str, scheme: str, meaning: str) -> Dataset:
    """A code; its value may be longer than DICOM allows, as OHIF's is."""
    item = Dataset()
    item.add(DataElement("CodeValue", "SH", value, validation_mode=IGNORE))
    item.CodingSchemeDesignator, item.CodeMeaning = scheme, meaning
    return item


def item(kind: str, name: Dataset, *content: Dataset, relationship: str = "CONTAINS", **values: object) -> Dataset:
    """A content item; values: its attributes by keyword."""
    dataset = Dataset()
    dataset.RelationshipType, dataset.ValueType, dataset.ConceptNameCodeSequence = relationship, kind, [name]
    for keyword, value in values.items():
        setattr(dataset, keyword, value)
    if content:
        dataset.ContentSequence = list(content)
    return dataset


def region(film: Dataset, kind: str, points: Points) -> Dataset:
    """A region of a film."""
    referenced = Dataset()
    referenced.ReferencedSOPClassUID, referenced.ReferencedSOPInstanceUID = film.SOPClassUID, film.SOPInstanceUID
    source = item(
        "IMAGE", coded("121112", "DCM", "Source"), relationship="SELECTED FROM", ReferencedSOPSequence=[referenced]
    )
    return item("SCOORD", coded("111030", "DCM", "Image Region"), source, GraphicType=kind, GraphicData=list(points))


def group(*content: Dataset, tracking: str = "") -> Dataset:
    """A measurement group (TID 1410)."""
    identified = [
        item("TEXT", coded("112039", "DCM", "Tracking Identifier"), TextValue="place 1"),
        *([item("UIDREF", coded("112040", "DCM", "Tracking Unique Identifier"), UID=tracking)] if tracking else []),
    ]
    return item("CONTAINER", coded("125007", "DCM", "Measurement Group"), *identified, *content)


def finding(meaning: str, *, value: str = "1", scheme: str = "99TEST", site: bool = False) -> Dataset:
    """The coded finding of a group, or its site."""
    name = coded("363698007", "SCT", "Finding Site") if site else coded("121071", "DCM", "Finding")
    return item("CODE", name, ConceptCodeSequence=[coded(value, scheme, meaning)])


def report(film: Dataset, *groups: Dataset, name: str = "report") -> Dataset:
    """A structured report (TID 1500) about a film."""
    dataset = _begin(film, Comprehensive3DSRStorage, "SR", name)
    dataset.SeriesDescription = "Ask AI"
    dataset.ValueType, dataset.ConceptNameCodeSequence = "CONTAINER", [coded("126000", "DCM", "Report")]
    referenced, series, study = Dataset(), Dataset(), Dataset()
    referenced.ReferencedSOPClassUID, referenced.ReferencedSOPInstanceUID = film.SOPClassUID, film.SOPInstanceUID
    series.SeriesInstanceUID, series.ReferencedSOPSequence = film.SeriesInstanceUID, [referenced]
    study.StudyInstanceUID, study.ReferencedSeriesSequence = film.StudyInstanceUID, [series]
    dataset.CurrentRequestedProcedureEvidenceSequence = [study]
    person = item("PNAME", coded("121008", "DCM", "Person Observer Name"), PersonName="Reader^Rita")
    measurements = item("CONTAINER", coded("126010", "DCM", "Imaging Measurements"), *groups)
    dataset.ContentSequence = [person, measurements]
    return dataset


def _begin(film: Dataset, sop_class: UID, modality: str, name: str) -> Dataset:
    dataset = films.of_class(films.non_image("SR"), sop_class)
    for keyword in ("PatientID", "PatientName", "StudyInstanceUID"):
        setattr(dataset, keyword, film.get(keyword, ""))
    dataset.SOPInstanceUID = derive_uid("workstation", film.SOPInstanceUID, name)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.SeriesInstanceUID = derive_uid("workstation series", film.SOPInstanceUID, name)
    dataset.Modality, dataset.Manufacturer, dataset.InstanceNumber = modality, "Workstation", 7
    return dataset
