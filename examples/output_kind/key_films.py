"""A kind of output: names the films of a study that have a finding to report, so that a reader opens these first.

It is a Key Object Selection Document (PS3.3 A.35.4) with the title Of Interest; a study without such a film has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from highdicom.ko import KeyObjectSelection, KeyObjectSelectionDocument
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.uid import KeyObjectSelectionDocumentStorage

from node.dicom import identity
from node.domain import Film, Report, Subject
from node.output_kinds import OutputKind, Written
from node.outputs import document, highdicom_gaps, wording
from node.outputs.patient import best_described
from node.outputs.source import Source

NAME: Final = "example-key-films"
KIND: Final = OutputKind(
    title="films with a finding",
    sop_class=KeyObjectSelectionDocumentStorage,
    writer="key_films:write",
)
_SERIES_NUMBER: Final = 9101


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write one selection of the films with a finding that is present or to be reviewed."""
    films = [film for film in report.read_films if wording.reported(film)]
    if not films:
        return
    headers = [sources[film.source].header for film in films]
    evidence = [_evidence(report, film, header) for film, header in zip(films, headers, strict=True)]
    selection = KeyObjectSelection(codes.DCM.OfInterest, evidence)
    highdicom_gaps.separate(selection[0])
    dataset: Dataset = KeyObjectSelectionDocument(
        evidence=evidence,
        content=selection,
        **document.begin(
            report,
            modality="KO",
            series_number=_SERIES_NUMBER,
            series_description=document.series_description("AI key films", part=report.part),
            instance_number=1,
            about=identity.study_of(report.part),
        ),
    )
    document.complete(dataset, report, best_described(headers))
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=[film.source for film in films], zone=zone)
    yield Written(kind=NAME, dataset=dataset, subject=Subject(), part=report.part)


def _evidence(report: Report, film: Film, header: Dataset) -> Dataset:
    """Return what highdicom needs of a film; it refers to an object with a size as an image."""
    found = document.evidence(report, header)
    found.Rows, found.Columns = film.rows, film.columns
    return found
