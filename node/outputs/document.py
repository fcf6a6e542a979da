"""The common parts of all DICOM outputs: patient, study, series, equipment, identity.

The SOP Instance UID is derived from the whole content of an object except its own times, its predecessors, its version
and its place in the series (design §5): the same input gives the same UID; another name, probability, program, model,
prompt set or time zone gives another UID. If a round repeats the content of an older round but not of the newest, the
object gets a new UID (`Report.object_uid`). The time zone counts by its name: the same reading in summer and in winter
is one object. To write an object, give `begin` and `evidence` to a class of highdicom,
then call `complete`, add what else it has, and call `seal`.

All times of an object have one offset from UTC (PS3.3 C.12.1.1.8). Study date and time are copied from its film, so the
offset is the film's, else the site's at the time of the study: +0200 for a film of July, also if it is read in
November. The node's own times are converted to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from datetime import tzinfo
from io import BytesIO
from typing import Final, TypedDict, cast

from highdicom import ContributingEquipment
from pydicom import dcmwrite
from pydicom.charset import default_encoding
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filereader import read_dataset
from pydicom.sr.codedict import codes
from pydicom.tag import Tag
from pydicom.uid import UID, ExplicitVRLittleEndian
from pydicom.valuerep import VR

from node.dicom import attributes, identity
from node.dicom.dates import OFFSET, fixed_offset, offset_of, stated_offset
from node.domain import ObjectReference, OutputObject, Report, derive_uid
from node.outputs import highdicom_gaps
from node.outputs.patient import copy_patient, made_at, short_text

_LONGEST_DESCRIPTION: Final = 64
"""Maximum length of a Series Description, in characters (LO, PS3.5 6.2)."""
_LONGEST_NUMBERS: Final = 14
_CUT: Final = "..."
_UNSEALED: Final = derive_uid("unsealed")

# Attributes that may differ between repetitions of one reading of the same object.
_OF_THE_ROUND = frozenset(
    Tag(keyword)
    for keyword in (
        "SOPInstanceUID",
        "InstanceCreationDate",
        "InstanceCreationTime",
        "ContentDate",
        "ContentTime",
        "PresentationCreationDate",
        "PresentationCreationTime",
        "PredecessorDocumentsSequence",
        OFFSET,
    )
)


class Beginning(TypedDict):
    """Common arguments of all highdicom classes; `seal` derives the UID."""

    series_instance_uid: str
    series_number: int
    series_description: str
    sop_instance_uid: str
    instance_number: int
    manufacturer: str
    manufacturer_model_name: str
    device_serial_number: str
    software_versions: tuple[str]
    specific_character_set: str
    contributing_equipment: list[ContributingEquipment]


def begin(
    report: Report,
    *,
    modality: str,
    series_number: int,
    series_description: str,
    instance_number: int,
    about: str = "",
    form: str = "",
) -> Beginning:
    """Return the common arguments of an object: its series and its equipment (PS3.3 C.7.3, C.7.5, C.12.1).

    instance_number: number of the first object of this kind in its series (`writers.numbered`)
    about, form: see `identity.series_uid`
    """
    model, device = report.model, identity.device_uid(report.model)
    versions = [
        identity.VERSION,
        short_text(f"model {model.name} {model.version}"),
        short_text(f"prompts {report.prompts_name} {report.prompts_version}"),
    ]
    own = ContributingEquipment(
        identity.MANUFACTURER,
        codes.DCM.ProcessingEquipment,
        manufacturer_model_name=identity.PROGRAM,
        software_versions=versions,
        device_serial_number=short_text(model.weights_sha256),
        contribution_description="Read by a neural network; not reviewed by a person",
    )
    return Beginning(
        series_instance_uid=identity.series_uid(
            study_uid=report.study_uid, modality=modality, device=device, about=about, form=form
        ),
        series_number=series_number,
        series_description=series_description,
        sop_instance_uid=_UNSEALED,
        instance_number=instance_number,
        manufacturer=identity.MANUFACTURER,
        manufacturer_model_name=identity.PROGRAM,
        device_serial_number=short_text(model.weights_sha256),
        software_versions=cast(tuple[str], versions),  # a list for pydicom; annotated for one
        specific_character_set="ISO_IR 192",
        contributing_equipment=[own],
    )


def evidence(report: Report, received: Dataset) -> Dataset:
    """Return a received object's references as highdicom needs them, with empty patient and study.

    `complete` copies the patient: highdicom 0.28.2 raises AttributeError for a missing attribute, raises other errors
    for an invalid value, and logs a suspicious name. An object without a valid series gets one of its own, because a
    reference to it needs a series (PS3.3 10.8).
    """
    found = Dataset()
    copy_patient(Dataset(), found)
    found.StudyInstanceUID = report.study_uid
    found.SOPClassUID = attributes.text(received, "SOPClassUID")
    found.SOPInstanceUID = uid = attributes.text(received, "SOPInstanceUID")
    found.SeriesInstanceUID = attributes.uid(received, "SeriesInstanceUID") or derive_uid("series of", uid)
    return found


def evidence_of(report: Report, reference: ObjectReference | OutputObject) -> Dataset:
    """Return the same of an object of the study that is not here."""
    item = Dataset()
    item.SeriesInstanceUID = reference.series_instance_uid
    item.SOPClassUID = reference.sop_class_uid
    item.SOPInstanceUID = reference.sop_instance_uid
    return evidence(report, item)


def keep_predecessors(dataset: Dataset, uids: Collection[str]) -> None:
    """Leave only those predecessors in a report that have some UIDs (PS3.3 C.17.2.2)."""
    for study in dataset.get("PredecessorDocumentsSequence", ()):
        for series in study.ReferencedSeriesSequence:
            series.ReferencedSOPSequence = [
                item for item in series.ReferencedSOPSequence if item.ReferencedSOPInstanceUID in uids
            ]
        study.ReferencedSeriesSequence = [
            series for series in study.ReferencedSeriesSequence if series.ReferencedSOPSequence
        ]
        if not study.ReferencedSeriesSequence:
            del dataset.PredecessorDocumentsSequence


def complete(dataset: Dataset, report: Report, source: Dataset) -> None:
    """Copy patient, study and offset from UTC of a received object, and name the program's device (PS3.3 C.7, C.12)."""
    copy_patient(source, dataset)
    if stated_offset(source) is not None:
        dataset.TimezoneOffsetFromUTC = attributes.text(source, OFFSET)
    highdicom_gaps.name_device(dataset, identity.device_uid(report.model))


def series_description(of: str, *, film: Dataset | None = None, part: str = "") -> str:
    """Return the description of a series: its kind, its film or part of the study, and the research label last.

    Lists of viewers show some 20 characters of it. If it is too long, the kind is shortened.

    film: the series' only film; named by its Series and Instance Number, if they are short
    part: see `identity.study_of`
    """
    named = f", part {part}" if part else "" if film is None else _numbers(film)
    end = f"{named} - {identity.SERIES_LABEL}"
    room = _LONGEST_DESCRIPTION - len(end)
    return f"{of if len(of) <= room else of[: room - len(_CUT)].rstrip() + _CUT}{end}"


def _numbers(film: Dataset) -> str:
    """Return " S1", Series Number and, if it is not the first, Instance Number of a film; "" without, or if long."""
    series, image = (attributes.text(film, keyword) for keyword in ("SeriesNumber", "InstanceNumber"))
    if not series.isdecimal():
        return ""
    named = f" S{series} I{image}" if image.isdecimal() and int(image) != 1 else f" S{series}"
    return named if len(named) <= _LONGEST_NUMBERS else ""


def seal(dataset: Dataset, report: Report, *, sources: Iterable[str], zone: tzinfo) -> None:
    """Finish an object: derive its UID, set its times, add the file meta information (PS3.10 7.1).

    sources: SOP Instance UIDs of the films that the object is about
    zone: the site's time zone
    Its elements keep their encoding, so that `save_bytes` does not encode them again.
    """
    model, offset = report.model, zone_of(dataset, report, zone)
    said = Dataset({tag: dataset.get_item(tag) for tag in set(dataset.keys()) - _OF_THE_ROUND})
    _settle_items(said)
    content = BytesIO()
    dcmwrite(content, said, implicit_vr=False, little_endian=True)
    content.seek(0)
    encoded = read_dataset(content, is_implicit_VR=False, is_little_endian=True)
    dataset.update(encoded)
    dataset.set_original_encoding(False, True, encoded.original_character_set)
    dataset.SOPInstanceUID = report.object_uid(
        derive_uid(
            "object",
            report.study_uid,
            *sources,
            str(dataset.SOPClassUID),
            hashlib.sha256(content.getbuffer()).hexdigest(),
            identity.VERSION,
            str(stated_offset(dataset) or zone),
            *(model.name, model.version, model.weights_sha256, model.engine),
            *(report.prompts_name, report.prompts_version, report.prompts_sha256),
        )
    )
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = local_time(dataset, report, zone)
    dataset.TimezoneOffsetFromUTC = offset_of(report.created_at.astimezone(offset))
    meta = FileMetaDataset()
    meta.FileMetaInformationVersion = b"\x00\x01"
    meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = UID(derive_uid("implementation", identity.PROGRAM))
    meta.ImplementationVersionName = short_text(f"CHEX_NODE {identity.VERSION}", 16)
    dataset.file_meta = meta


def _settle_items(dataset: Dataset) -> None:
    """Mark every item of an object as needing no correction before it is encoded.

    The items are made for this encoding, and `dcmwrite` corrects the whole object once. It would correct each item
    again for every sequence around it, which takes a quarter of its time (pydicom 3.0.2).
    """
    for element in dataset:
        for item in element.value if element.VR == VR.SQ else ():
            _settle_items(item)  # first: it decodes text copied from a film by the film's character set
            item.set_original_encoding(False, True, default_encoding)


def save_bytes(dataset: Dataset) -> bytes:
    """Encode a sealed object as a file (PS3.10); the same object always gives the same bytes."""
    buffer = BytesIO()
    dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def zone_of(described: Dataset, report: Report, zone: tzinfo) -> tzinfo:
    """Return the UTC offset of all times in an object, or of the times about a film.

    The stated offset (Timezone Offset From UTC), else the site's offset at the time of the study, or at the start of
    the round if that time is unknown; zone: the site's time zone
    """
    if (stated := stated_offset(described)) is not None:
        return stated
    made = made_at(described)
    local = report.created_at.astimezone(zone) if made is None else made.replace(tzinfo=zone)
    return fixed_offset(local)


def local_time(dataset: Dataset, report: Report, zone: tzinfo) -> tuple[str, str]:
    """Return DA and TM of the start of the round, at the offset of an object; zone: the site's time zone."""
    moment = report.created_at.astimezone(zone_of(dataset, report, zone))
    return f"{moment:%Y%m%d}", f"{moment:%H%M%S}"
