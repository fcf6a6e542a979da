"""The structured report of a study: Comprehensive SR, PS3.16 TID 1500, or TID 2000 if no film could be read.

One document contains all answers of a round: which films were read, which were not, and why. It is complete,
preliminary and unverified (PS3.3 C.17.2): a machine wrote it and no person reviewed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from zoneinfo import ZoneInfo

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
from pydicom.uid import ComprehensiveSRStorage

from node.dicom import attributes, identity
from node.domain import Film, ObjectReference, Report
from node.outputs import document, impression, wording
from node.outputs.patient import best_described, read_text
from node.outputs.sr import findings
from node.outputs.sr.items import FINDING, container, image, inferred_from, language, observer, source_object, text

SERIES_NUMBER = 9001
SOP_CLASS = ComprehensiveSRStorage
REPORT_TITLE = Concept("126000", "DCM", "Imaging Measurement Report")
PROCEDURE_REPORTED = Concept("121058", "DCM", "Procedure reported")
IMPRESSION = Concept("121073", "DCM", "Impression")
CHEST_RADIOGRAPHY = Concept("399208008", "SCT", "Plain chest X-ray")


def write(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write the structured report of a study; an empty list for a study without films.

    sources: header of each film's object by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    if not report.films:
        return []
    wording.check(report)
    about = [sources[film.source] for film in sorted(report.films, key=lambda film: (not film.is_read, film.source))]
    dataset = document.begin(
        report,
        best_described(about),
        sop_class=SOP_CLASS,
        modality="SR",
        series_number=SERIES_NUMBER,
        instance_number=1,
    )
    _describe_document(dataset, report, sources, zone)
    make = _measurement_report if report.read_films else _not_processed
    for element in make(report, sources):
        dataset[element.tag] = element
    document.seal(dataset, report, sources=[film.source for film in report.films], zone=zone)
    # The UID is known only now, and does not depend on this. A repeated round may have itself as predecessor: skip it.
    older = [reference for reference in report.predecessors if reference.sop_instance_uid != dataset.SOPInstanceUID]
    if older:
        dataset.PredecessorDocumentsSequence = [_references(report.study_uid, older)]
    return [dataset]


def _describe_document(dataset: Dataset, report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> None:
    """Fill the SR Document Series and General modules (PS3.3 C.17.1, C.17.2)."""
    films = [sources[film.source] for film in report.films]
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.PerformedProcedureCodeSequence = []
    if schemes := _private_schemes(report):
        dataset.CodingSchemeIdentificationSequence = schemes
    dataset.CompletionFlag = "COMPLETE"
    dataset.PreliminaryFlag = "PRELIMINARY"
    dataset.VerificationFlag = "UNVERIFIED"
    dataset.ContentDate, dataset.ContentTime = document.local_time(report, zone)
    dataset.CurrentRequestedProcedureEvidenceSequence = [
        _references(
            report.study_uid,
            (
                ObjectReference(
                    sop_class_uid=str(film.SOPClassUID),
                    sop_instance_uid=str(film.SOPInstanceUID),
                    series_instance_uid=str(film.SeriesInstanceUID),
                )
                for film in films
            ),
        )
    ]
    if requests := _requests(report.study_uid, films):
        dataset.ReferencedRequestSequence = requests


def _private_schemes(report: Report) -> list[Dataset]:
    """Declare the private coding schemes of findings, sites, states and probabilities (PS3.3 C.12.1.1.1)."""
    codes = {
        code for film in report.read_films for finding in film.findings for code in (finding.code, finding.site) if code
    }
    schemes = {code.scheme for code in codes if code.scheme.startswith("99")}
    if any(film.findings for film in report.read_films):
        schemes.add(findings.PRIVATE_SCHEME)
    items = []
    for scheme in sorted(schemes):
        item = Dataset()
        item.CodingSchemeDesignator = scheme
        item.CodingSchemeName = f"Private codes {scheme} of {identity.PROGRAM}"
        item.CodingSchemeResponsibleOrganization = identity.MANUFACTURER
        items.append(item)
    return items


def _references(study_uid: str, references: Iterable[ObjectReference]) -> Dataset:
    """Reference objects of the study, by series (PS3.3 C.17.2.1)."""
    by_series: dict[str, list[Dataset]] = defaultdict(list)
    for reference in references:
        item = Dataset()
        item.ReferencedSOPClassUID = reference.sop_class_uid
        item.ReferencedSOPInstanceUID = reference.sop_instance_uid
        by_series[reference.series_instance_uid].append(item)
    study = Dataset()
    study.StudyInstanceUID = study_uid
    study.ReferencedSeriesSequence = []
    for series_uid, instances in by_series.items():
        series = Dataset()
        series.SeriesInstanceUID = series_uid
        series.ReferencedSOPSequence = instances
        study.ReferencedSeriesSequence.append(series)
    return study


def _requests(study_uid: str, films: Iterable[Dataset]) -> list[Dataset]:
    """Return the requests that the films name, each once (PS3.3 C.17.2.3)."""
    found: dict[tuple[str, ...], Dataset] = {}
    keywords = (
        "AccessionNumber",
        "PlacerOrderNumberImagingServiceRequest",
        "FillerOrderNumberImagingServiceRequest",
        "RequestedProcedureID",
        "RequestedProcedureDescription",
    )
    for film in films:
        for request in attributes.items(film, "RequestAttributesSequence") or (film,):
            values = tuple(read_text(request, keyword) or read_text(film, keyword) for keyword in keywords)
            item = Dataset()
            item.StudyInstanceUID = study_uid
            item.ReferencedStudySequence = []
            item.RequestedProcedureCodeSequence = []
            for keyword, value in zip(keywords, values, strict=True):
                setattr(item, keyword, value)
            found.setdefault(values, item)
    return [item for values, item in found.items() if any(values)]


def _measurement_report(report: Report, sources: Mapping[str, Dataset]) -> ContainerContentItem:
    """Build the content tree of TID 1500: impression and analyzed parts, the findings, and the intended use last."""
    root = container(REPORT_TITLE, template="1500", is_root=True)
    content = root.ContentSequence
    content.extend(language())
    content.extend(observer(report))
    content.append(
        CodeContentItem(
            name=PROCEDURE_REPORTED,
            value=CHEST_RADIOGRAPHY,
            relationship_type=RelationshipTypeValues.HAS_CONCEPT_MOD,
        )
    )
    content.append(_impression(report))
    for film in report.films:
        content.append(inferred_from(text(_about(report, film)), source_object(sources[film.source])))
    content.append(_library(report, sources))
    content.append(findings.measurements(report, sources))
    if evaluations := findings.evaluations(report, sources):
        content.append(evaluations)
    content.append(text(wording.intended_use(report)))
    return root


def _impression(report: Report) -> ContentItem:
    """Say first what was found, in short lines."""
    return text(wording.wrapped(*impression.labeled(impression.of_report(report))), name=IMPRESSION)


def _about(report: Report, film: Film) -> str:
    """Return the text about a film: the analyzed part, and that nothing was found; or why it was not read."""
    name = wording.film_name(report, film)
    if not film.is_read:
        return f"{name}. {wording.not_processed(film)}"
    return " ".join((f"{name}.", wording.looked_at(film), *([] if wording.reported(film) else [wording.NOTHING_NEAR])))


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


def _library(report: Report, sources: Mapping[str, Dataset]) -> ContainerContentItem:
    """List the films that were read, in one group: OHIF 3.13.2 uses only the first group."""
    item, group = container(IMAGE_LIBRARY), container(IMAGE_LIBRARY_GROUP)
    for film in report.read_films:
        source = sources[film.source]
        entry = image(source, RelationshipTypeValues.CONTAINS)
        entry.ContentSequence = ContentSequence(list(_describe_film(film, source)))
        group.ContentSequence.append(entry)
    item.ContentSequence.append(group)
    return item


def _describe_film(film: Film, source: Dataset) -> Iterator[ContentItem]:
    yield CodeContentItem(
        name=MODALITY,
        value=MODALITIES.get(read_text(source, "Modality"), OTHER_MODALITY),
        relationship_type=RelationshipTypeValues.HAS_ACQ_CONTEXT,
    )
    columns, rows = wording.size(film)
    for name, pixels in ((PIXEL_DATA_ROWS, rows), (PIXEL_DATA_COLUMNS, columns)):
        yield NumContentItem(
            name=name, value=pixels, unit=PIXELS, relationship_type=RelationshipTypeValues.HAS_ACQ_CONTEXT
        )


IMAGING_REPORT = Concept("18748-4", "LN", "Diagnostic Imaging Report")
IMPRESSIONS = Concept("19005-8", "LN", "Impressions")
FINDINGS = Concept("59776-5", "LN", "Findings")


def _not_processed(report: Report, sources: Mapping[str, Dataset]) -> ContainerContentItem:
    """Build the content tree of TID 2000: why each film has no result."""
    root = container(IMAGING_REPORT, template="2000", is_root=True)
    root.ContentSequence.extend(language())
    root.ContentSequence.extend(observer(report))
    first = container(IMPRESSIONS)
    first.ContentSequence.append(_impression(report))
    root.ContentSequence.append(first)
    section = container(FINDINGS)
    for film in report.films:
        why = wording.wrapped(wording.not_processed(film), wording.film_name(report, film))
        section.ContentSequence.append(inferred_from(text(why, name=FINDING), source_object(sources[film.source])))
    section.ContentSequence.append(text(wording.wrapped(wording.intended_use(report)), name=FINDING))
    root.ContentSequence.append(section)
    return root
