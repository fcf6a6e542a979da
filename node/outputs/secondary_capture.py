"""The secondary capture of a film, for workstations that show neither reports nor presentation states (PS3.3 A.8).

It shows the film with its boxes below the impression, in a series of its own. The capture of a film that was not read
is a text with the reason: an archive that takes captures only must see an answer to every film. A capture depends on
its film alone: other films of the study change neither its UID nor its bytes, except that a film without a patient
takes the patient of another one.

The program writes no identity of a patient into the picture; the film itself may show one. The picture names program
and model, but no time, which would make another object in each round: that is the Content Date. Pillow draws it:
another version may draw other pixels, which makes another object (`document.seal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from highdicom.sc import SCImage
from highdicom.sr import CodedConcept
from pydicom.dataset import Dataset

from node.dicom import attributes, identity, overlays
from node.dicom.film_header import pixel_shape
from node.domain import About, Film, Report, Subject
from node.output_kinds import Written
from node.outputs import document, highdicom_gaps, overlay, wording
from node.outputs.patient import described_by, read_text
from node.outputs.source import Source

SERIES_NUMBER = 9004
KIND: Final = "sc"
_DRAWN: Final = "Boxes of reported findings, impression and research label drawn on the film as displayed"
_HEAD: Final = "Impression and research label of a film that is not drawn"
_ORIENTATIONS: Final = frozenset("ALPRHF")


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write the capture of every film.

    sources: all films by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    for film in report.films:
        patient = described_by(sources[film.source].header, (source.header for source in sources.values()))
        yield _capture(report, film, sources[film.source], patient, zone)


def _capture(report: Report, film: Film, source: Source, patient: Dataset, zone: ZoneInfo) -> Written:
    """Write the capture of one film (PS3.3 C.7.6.1, C.7.6.3, C.8.6.1)."""
    header, picture, made = source.header, source.picture() if film.is_read else None, wording.made_by(report)
    if picture is None:
        drawn, content = overlay.draw_head(film, made=made), _HEAD
    else:
        drawn, content = overlay.draw(picture, film, shape=pixel_shape(header), made=made), _DRAWN
    dataset: Dataset = SCImage(
        np.asarray(drawn),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "F"),  # a required argument; `describe_capture` removes it again
        study_instance_uid=report.study_uid,
        **document.begin(
            report,
            modality="OT",
            series_number=SERIES_NUMBER,
            series_description=document.series_description("AI pictures", film=header),
            instance_number=1,
            about=str(header.SOPInstanceUID),
        ),
    )
    document.complete(dataset, report, patient)
    highdicom_gaps.describe_capture(dataset)
    dataset.DerivationDescription = f"{identity.RESEARCH_LABEL}: {content}"
    dataset.SourceImageSequence = [_source_image(header)]
    if picture is None:
        dataset.BurnedInAnnotation = "NO"
    else:
        _describe_film(header, dataset)
    if film.is_read:
        dataset.BodyPartExamined = "CHEST"
    else:
        dataset.Laterality = ""  # dciodvfy requires one of the two
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=[film.source], zone=zone)
    subject = Subject(about=About.FILM, film=film.source)
    if (version := report.version(str(dataset.SOPInstanceUID), subject, kinds=(KIND,))) > 1:
        dataset.DerivationDescription += f", version {version}"
    return Written(kind=KIND, dataset=dataset, subject=subject)


def _source_image(header: Dataset) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID = header.SOPClassUID
    item.ReferencedSOPInstanceUID = header.SOPInstanceUID
    item.PurposeOfReferenceCodeSequence = [CodedConcept("121322", "DCM", "Source image for image processing operation")]
    return item


def _describe_film(header: Dataset, capture: Dataset) -> None:
    """Copy what the picture shares with its film: directions of rows and columns, lossy compression, burned-in text.

    A film that was compressed with loss stays one in every picture made of it (PS3.3 C.7.6.1.1.5). Text that is burned
    into the film may identify the patient; so may an overlay, which the picture has in its pixels (PS3.3 C.7.6.1).
    """
    burned_in = read_text(header, "BurnedInAnnotation")
    if burned_in == "YES" or (burned_in == "NO" and not overlays.groups_of(header)):
        capture.BurnedInAnnotation = burned_in
    directions = [str(value) for value in attributes.values(header, "PatientOrientation")]
    if len(directions) == 2 and all(word and set(word) <= _ORIENTATIONS for word in directions):
        capture.PatientOrientation = directions
    if read_text(header, "LossyImageCompression") == "01":
        capture.LossyImageCompression = "01"
        for keyword in ("LossyImageCompressionRatio", "LossyImageCompressionMethod"):
            if value := read_text(header, keyword):
                setattr(capture, keyword, value)
