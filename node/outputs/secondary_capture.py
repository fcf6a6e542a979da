"""Secondary captures of a film, for workstations that show neither reports nor presentation states (PS3.3 A.8).

Two pictures, in a series of their own for each film: the film with boxes and impression, and a page with the findings.
A film that was not read has the page alone, which says why: an archive that gets nothing but captures must see an
answer to every film. Captures of a film depend on it alone: other films of the study change neither their UIDs nor
their bytes, except that a film which names no patient takes the patient of another one.

The pictures hold no name and no other identity of a patient. Pillow draws them: another version may draw other pixels,
which makes another object (`document.seal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from highdicom.sc import SCImage
from highdicom.sr import CodedConcept
from PIL import Image
from pydicom.dataset import Dataset

from node.dicom import attributes, identity
from node.dicom.spacing import pixel_shape
from node.domain import About, Film, Report, Subject
from node.outputs import document, findings_page, highdicom_gaps, overlay, wording
from node.outputs.kinds import Written
from node.outputs.patient import described_by, read_text
from node.outputs.source import Source

SERIES_NUMBER = 9004
KIND: Final = "sc"
FILM, PAGE = 1, 2
"""Instance numbers in the series of a film."""

_CONTENTS: Final = {
    FILM: "Boxes of reported findings, impression and research label drawn on the film as displayed",
    PAGE: "Page of text with the findings of the film",
}
_ORIENTATIONS: Final = frozenset("ALPRHF")


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write the captures of every film.

    sources: all films by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    for film in report.films:
        header = sources[film.source].header
        patient = described_by(header, (source.header for source in sources.values()))
        picture = sources[film.source].picture() if film.is_read else None
        if picture is not None:
            drawn = overlay.draw(picture, film, shape=pixel_shape(header))
            capture = _begin(report, header, patient, FILM, drawn)
            _describe_film(header, capture)
            yield _finish(capture, report, film, zone)
        page = findings_page.draw(report, film, is_drawn=picture is not None)
        yield _finish(_begin(report, header, patient, PAGE, page), report, film, zone)


def _begin(report: Report, header: Dataset, patient: Dataset, number: int, image: Image.Image) -> Dataset:
    """Start a capture of a film (PS3.3 C.7.6.1, C.7.6.3, C.8.6.1)."""
    dataset = SCImage(
        np.asarray(image),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "F"),  # it insists on one; `describe_capture` takes it out again
        study_instance_uid=report.study_uid,
        **document.begin(
            report,
            modality="OT",
            series_number=SERIES_NUMBER,
            series_description=document.series_description("AI pictures", film=header),
            instance_number=number,
            about=str(header.SOPInstanceUID),
        ),
    )
    document.complete(dataset, report, patient)
    highdicom_gaps.describe_capture(dataset, [])
    dataset.BurnedInAnnotation = "NO"
    dataset.DerivationDescription = f"{identity.RESEARCH_LABEL}: {_CONTENTS[number]}"
    source = Dataset()
    source.ReferencedSOPClassUID = header.SOPClassUID
    source.ReferencedSOPInstanceUID = header.SOPInstanceUID
    source.PurposeOfReferenceCodeSequence = [
        CodedConcept("121322", "DCM", "Source image for image processing operation")
    ]
    dataset.SourceImageSequence = [source]
    return dataset


def _finish(dataset: Dataset, report: Report, film: Film, zone: ZoneInfo) -> Written:
    """Add what depends on whether the film was read, the time and the identity."""
    if film.is_read:
        dataset.BodyPartExamined = "CHEST"
    else:
        dataset.Laterality = ""  # dciodvfy wants to know of either
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=[film.source], zone=zone)
    subject = Subject(about=About.FILM, film=film.source)
    if (version := report.version(str(dataset.SOPInstanceUID), subject, kinds=(KIND,))) > 1:
        dataset.DerivationDescription += f", version {version}"
    return Written(kind=KIND, dataset=dataset, subject=subject, page=int(dataset.InstanceNumber))


def _describe_film(header: Dataset, capture: Dataset) -> None:
    """Copy the directions of rows and columns, which the picture shares with its film, and a lossy compression.

    A film that was compressed with loss stays one in every picture made of it (PS3.3 C.7.6.1.1.5).
    """
    directions = [str(value) for value in attributes.values(header, "PatientOrientation")]
    if len(directions) == 2 and all(word and set(word) <= _ORIENTATIONS for word in directions):
        capture.PatientOrientation = directions
    if read_text(header, "LossyImageCompression") == "01":
        capture.LossyImageCompression = "01"
        for keyword in ("LossyImageCompressionRatio", "LossyImageCompressionMethod"):
            if value := read_text(header, keyword):
                setattr(capture, keyword, value)
