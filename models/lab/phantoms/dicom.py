"""Phantoms as DICOM: Computed Radiography (PS3.3 A.2) and Digital X-Ray for presentation (A.26), of invented patients.

SOP class, bits, polarity and size are drawn from the seed, so that a set covers what modalities send. The seed also
determines the UIDs: the same film always has the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence as Items
from pydicom.uid import (
    UID,
    ComputedRadiographyImageStorage,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
)

from models.lab.phantoms.film import GrayArray
from models.lab.phantoms.non_frontal import OtherKind, other_film, other_gray
from models.lab.phantoms.picture import draw, gray_of, truth_of
from models.lab.phantoms.plan import plan_of
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import Phantom

SIZES = ((1024, 1024), (1760, 2140), (2140, 1760), (2000, 2500), (2048, 2048), (2500, 3000), (3000, 2500))
"""Columns and rows of the films."""
_DRAWN_SIDE = 640
"""Films are drawn with at most this many pixels on the shorter side, and then enlarged."""
_DATE, _TIME = "20000101", "120000"
_REGIONS: Mapping[str, tuple[str, str, str]] = {
    "CHEST": ("816094009", "SCT", "Chest"),
    "HAND": ("85562004", "SCT", "Hand"),
    "SKULL": ("89546003", "SCT", "Skull"),
    "ABDOMEN": ("818981001", "SCT", "Abdomen"),
    "FOOT": ("56459004", "SCT", "Foot"),
    "KNEE": ("72696002", "SCT", "Knee"),
    "SHOULDER": ("16982005", "SCT", "Shoulder"),
    "SPINE": ("421060004", "SCT", "Spine"),
}
_VIEWS: Mapping[str, tuple[str, str, str]] = {
    "AP": ("399348003", "SCT", "antero-posterior"),
    "PA": ("272479007", "SCT", "postero-anterior"),
    "LL": ("399173006", "SCT", "left lateral"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomFilm:
    """A phantom and its DICOM object, in whose middle the phantom's square is."""

    phantom: Phantom
    dataset: Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a film is stored."""

    modality: Literal["CR", "DX"]
    photometric: Literal["MONOCHROME1", "MONOCHROME2"]
    bits: int
    columns: int
    rows: int


def format_of(seed: int) -> Format:
    """Draw the storage format of a seed's film."""
    stream = RandomStream(seed, "format")
    columns, rows = stream.pick(SIZES)
    return Format(
        modality="CR" if stream.chance(0.5) else "DX",
        photometric="MONOCHROME1" if stream.chance(0.4) else "MONOCHROME2",
        bits=stream.pick((12, 12, 14, 15, 16)),
        columns=columns,
        rows=rows,
    )


def film(seed: int, stored: Format | None = None) -> DicomFilm:
    """Make the DICOM film of a seed; stored: None for the format that the seed determines."""
    form = format_of(seed) if stored is None else stored
    columns, rows = _drawn_size(form)
    drawn = draw(plan_of(seed), columns=columns, rows=rows)
    gray = gray_of(drawn)
    left, top = (columns - min(columns, rows)) // 2, (rows - min(columns, rows)) // 2
    square = gray[top : top + min(columns, rows), left : left + min(columns, rows)]
    truth = truth_of(drawn, (square >> 8).astype(np.uint8))
    return DicomFilm(phantom=truth, dataset=_dataset(truth, gray, form, "CHEST"))


def other(seed: int, kind: OtherKind, stored: Format | None = None) -> DicomFilm:
    """Make the DICOM object of a film that must not be read."""
    form = format_of(seed) if stored is None else stored
    columns, rows = _drawn_size(form)
    gray = other_gray(seed, kind, columns=columns, rows=rows)
    truth = other_film(seed, kind, min(columns, rows))
    part = {"lateral": "CHEST", "blank": "CHEST", "noise": "CHEST"}.get(kind, kind.upper())
    return DicomFilm(phantom=truth, dataset=_dataset(truth, gray, form, part))


def _drawn_size(form: Format) -> tuple[int, int]:
    share = min(1.0, _DRAWN_SIDE / min(form.columns, form.rows))
    return round(form.columns * share), round(form.rows * share)


def _dataset(truth: Phantom, gray: GrayArray, form: Format, part: str) -> Dataset:
    meta = FileMetaDataset()
    uids = {name: _uid(truth, name) for name in ("study", "series", "instance")}
    is_cr = form.modality == "CR"
    sop_class: UID = ComputedRadiographyImageStorage if is_cr else DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPClassUID = sop_class
    meta.MediaStorageSOPInstanceUID = uids["instance"]
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = sop_class, uids["instance"]
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = uids["study"], uids["series"]
    _add_patient(dataset, truth, form)
    view = {"LATERAL": "LL", "NONE": ""}.get(truth.view, truth.view)
    dataset.BodyPartExamined, dataset.ViewPosition = part, view
    dataset.PatientOrientation = ["A", "F"] if view == "LL" else ["L", "F"]
    if part == "HAND" and is_cr:
        dataset.Laterality = "R"
    if is_cr:
        dataset.ImageType = ["ORIGINAL", "PRIMARY"]
    else:
        _add_digital(dataset, part, form, spacing=430 / form.columns)
    _add_pixels(dataset, gray, form)
    return dataset


def _add_patient(dataset: Dataset, truth: Phantom, form: Format) -> None:
    dataset.SpecificCharacterSet = "ISO_IR 100"
    dataset.PatientName, dataset.PatientID = f"PHANTOM^{truth.seed:010d}", f"PHANTOM-{truth.seed}"
    dataset.PatientBirthDate, dataset.PatientSex = "", ""
    dataset.StudyDate = dataset.SeriesDate = dataset.AcquisitionDate = dataset.ContentDate = _DATE
    dataset.StudyTime = dataset.SeriesTime = dataset.AcquisitionTime = dataset.ContentTime = _TIME
    dataset.AccessionNumber = dataset.ReferringPhysicianName = ""
    dataset.StudyID, dataset.SeriesNumber, dataset.InstanceNumber = "1", 1, 1
    dataset.StudyDescription, dataset.Modality, dataset.Manufacturer = "Phantom", form.modality, "Phantom"
    dataset.ManufacturerModelName, dataset.SoftwareVersions, dataset.DeviceSerialNumber = "phantoms", "1", "0"


def _add_digital(dataset: Dataset, part: str, form: Format, *, spacing: float) -> None:
    """Add what Digital X-Ray asks for beyond Computed Radiography (PS3.3 C.8.11)."""
    dataset.AnatomicRegionSequence = Items([_code(*_REGIONS[part])])
    dataset.ImageLaterality, dataset.PositionerType = "U", ""
    if dataset.ViewPosition:
        dataset.ViewCodeSequence = Items([_code(*_VIEWS[dataset.ViewPosition])])
    dataset.ImageType = ["ORIGINAL", "PRIMARY", ""]
    dataset.PresentationIntentType = "FOR PRESENTATION"
    dataset.PixelIntensityRelationship = "LOG"
    dataset.PixelIntensityRelationshipSign = -1 if form.photometric == "MONOCHROME2" else 1
    dataset.RescaleIntercept, dataset.RescaleSlope, dataset.RescaleType = "0", "1", "US"
    dataset.PresentationLUTShape = "INVERSE" if form.photometric == "MONOCHROME1" else "IDENTITY"
    dataset.LossyImageCompression = "00"
    dataset.BurnedInAnnotation = "YES"
    dataset.AcquisitionContextSequence = Items([])
    dataset.DetectorType = "DIRECT"
    dataset.ImagerPixelSpacing = [f"{spacing:.4f}"] * 2


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
    return item


def _add_pixels(dataset: Dataset, gray: GrayArray, form: Format) -> None:
    large = cv2.resize(gray, (form.columns, form.rows), interpolation=cv2.INTER_LINEAR_EXACT)
    top = 2**form.bits - 1
    values = large.astype(np.uint16) >> (16 - form.bits)
    if form.photometric == "MONOCHROME1":
        values = top - values
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, form.photometric
    dataset.Rows, dataset.Columns = form.rows, form.columns
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, form.bits, form.bits - 1
    dataset.PixelRepresentation = 0
    dataset.WindowCenter, dataset.WindowWidth = str((top + 1) // 2), str(top + 1)
    dataset.PixelData = values.astype("<u2").tobytes()
    dataset["PixelData"].VR = "OW"


def _uid(truth: Phantom, name: str) -> UID:
    """Derive a UID from a film (PS3.5 B.2)."""
    digest = hashlib.sha256(f"phantom {truth.seed} {truth.view} {name}".encode()).digest()
    return UID(f"2.25.{int.from_bytes(digest[:16], 'big')}")
