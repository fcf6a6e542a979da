"""What every DICOM object that leaves the node shares: patient, study, series, equipment, identity.

An object's SOP Instance UID is derived from everything the object says except its own times and predecessors
(DESIGN.md 5): same input, same UID; another name, probability, program, model, prompt set or time zone, another UID.
What an older round said, but not the newest, is said again under a UID of its own (`Report.object_uid`).
The zone counts by its name, not by the offset in force: the same reading in summer and in winter is one object.
Write an object as `begin`, its own modules, `seal`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from io import BytesIO
from zoneinfo import ZoneInfo

from pydicom import dcmwrite
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian

from node import identity
from node.domain import Report, derive_uid
from node.outputs.patient import copy_patient, short_text

# What a repetition of the same reading may say differently without being another object.
_OF_THE_ROUND = frozenset(
    (
        "SOPInstanceUID",
        "InstanceCreationDate",
        "InstanceCreationTime",
        "ContentDate",
        "ContentTime",
        "PresentationCreationDate",
        "PresentationCreationTime",
        "TimezoneOffsetFromUTC",
    )
)


def begin(
    report: Report, source: Dataset, *, sop_class: str, modality: str, series_number: int, instance_number: int
) -> Dataset:
    """Start an object: patient, study, series and equipment (PS3.3 C.7.1 to C.7.5, C.12.1)."""
    device = identity.device_uid(report.model)
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.SOPClassUID = sop_class
    copy_patient(source, dataset)
    dataset.StudyInstanceUID = report.study_uid
    dataset.Modality = modality
    dataset.SeriesInstanceUID = identity.series_uid(study_uid=report.study_uid, modality=modality, device=device)
    dataset.SeriesNumber = series_number
    dataset.SeriesDescription = f"{identity.RESEARCH_LABEL}: {identity.PROGRAM}"
    dataset.InstanceNumber = instance_number
    _describe_equipment(dataset, report)
    contribution = Dataset()
    contribution.PurposeOfReferenceCodeSequence = [code_item("109102", "DCM", "Processing Equipment")]
    contribution.DeviceUID = device
    contribution.ContributionDescription = "Read by a neural network; not reviewed by a person"
    _describe_equipment(contribution, report)
    dataset.ContributingEquipmentSequence = [contribution]
    return dataset


def seal(dataset: Dataset, report: Report, *, sources: Iterable[str], zone: ZoneInfo) -> None:
    """Finish an object: derive its UID, state its times, add the file meta information (PS3.10 7.1).

    sources: SOP Instance UIDs of what the object is about
    """
    model = report.model
    said = Dataset()
    said.update({element.tag: element for element in dataset if element.keyword not in _OF_THE_ROUND})
    dataset.SOPInstanceUID = report.object_uid(
        derive_uid(
            "object",
            report.study_uid,
            *sources,
            str(dataset.SOPClassUID),
            hashlib.sha256(_encoded(said)).hexdigest(),
            identity.VERSION,
            str(zone),
            *(model.name, model.version, model.weights_sha256, model.engine),
            *(report.prompts_name, report.prompts_version, report.prompts_sha256),
        )
    )
    date, time = local_time(report, zone)
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = date, time
    dataset.TimezoneOffsetFromUTC = f"{report.created_at.astimezone(zone):%z}"[:5]
    meta = FileMetaDataset()
    meta.FileMetaInformationVersion = b"\x00\x01"
    meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = UID(derive_uid("implementation", identity.PROGRAM))
    meta.ImplementationVersionName = short_text(f"CHEX_NODE {identity.VERSION}", 16)
    dataset.file_meta = meta


def save_bytes(dataset: Dataset) -> bytes:
    """Encode a sealed object as a file (PS3.10): the same object, the same bytes."""
    buffer = BytesIO()
    dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def local_time(report: Report, zone: ZoneInfo) -> tuple[str, str]:
    """Return DA and TM of the start of the analysis, in the site's time."""
    moment = report.created_at.astimezone(zone)
    return f"{moment:%Y%m%d}", f"{moment:%H%M%S}"


def code_item(value: str, scheme: str, meaning: str) -> Dataset:
    """Encode a coded concept (PS3.3 8.8)."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
    return item


def _describe_equipment(dataset: Dataset, report: Report) -> None:
    model = report.model
    dataset.Manufacturer = identity.MANUFACTURER
    dataset.ManufacturerModelName = identity.PROGRAM
    dataset.DeviceSerialNumber = short_text(model.weights_sha256)
    dataset.SoftwareVersions = [
        identity.VERSION,
        short_text(f"model {model.name} {model.version}"),
        short_text(f"prompts {report.prompts_name} {report.prompts_version}"),
    ]


def _encoded(dataset: Dataset) -> bytes:
    buffer = BytesIO()
    dcmwrite(buffer, dataset, implicit_vr=False, little_endian=True)
    return buffer.getvalue()
