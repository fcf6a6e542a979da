"""The structured report of a study: Comprehensive SR, PS3.16 TID 1500, or TID 2000 where nothing could be read.

One document says everything of one round: what was read, what not and why. It is complete, preliminary and unverified
(PS3.3 C.17.2): a machine wrote it and no person looked at it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from zoneinfo import ZoneInfo

from highdicom.sr import CodeContentItem, ContainerContentItem, RelationshipTypeValues
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept
from pydicom.uid import ComprehensiveSRStorage

from node import attributes, identity
from node.domain import Film, ObjectReference, Report
from node.outputs import document, not_processed, sr_findings, sr_library, words
from node.outputs.patient import best_described, read_text
from node.outputs.sr_items import container, inferred_from, language, observer, source_object, text

SERIES_NUMBER = 9001
REPORT_TITLE = Concept("126000", "DCM", "Imaging Measurement Report")
PROCEDURE_REPORTED = Concept("121058", "DCM", "Procedure reported")
CHEST_RADIOGRAPHY = Concept("399208008", "SCT", "Plain chest X-ray")


def write(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write the one report of a study; none for a study without films.

    sources: header of each film's object by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    if not report.films:
        return []
    words.check(report)
    about = [sources[film.source] for film in sorted(report.films, key=lambda film: (not film.is_read, film.source))]
    dataset = document.begin(
        report,
        best_described(about),
        sop_class=ComprehensiveSRStorage,
        modality="SR",
        series_number=SERIES_NUMBER,
        instance_number=1,
    )
    _describe_document(dataset, report, sources, zone)
    make = _measurement_report if report.read_films else not_processed.content
    for element in make(report, sources):
        dataset[element.tag] = element
    document.seal(dataset, report, sources=[film.source for film in report.films], zone=zone)
    # Known only now, and no part of the UID. A repeated round derives the UID of its own predecessor: that is itself.
    older = [one for one in report.predecessors if one.sop_instance_uid != dataset.SOPInstanceUID]
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
    """Declare the private coding schemes of findings, sites and probabilities (PS3.3 C.12.1.1.1)."""
    codes = {code for film in report.read_films for one in film.findings for code in (one.code, one.site) if code}
    schemes = {code.scheme for code in codes if code.scheme.startswith("99")}
    if any(words.reported(film) for film in report.read_films):
        schemes.add(sr_findings.PRIVATE_SCHEME)
    items = []
    for scheme in sorted(schemes):
        item = Dataset()
        item.CodingSchemeDesignator = scheme
        item.CodingSchemeName = f"Private codes {scheme} of {identity.PROGRAM}"
        item.CodingSchemeResponsibleOrganization = identity.MANUFACTURER
        items.append(item)
    return items


def _references(study_uid: str, references: Iterable[ObjectReference]) -> Dataset:
    """Name objects of the study, by series (PS3.3 C.17.2.1)."""
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
    """Name the orders that the films answer, each once, where they name any (PS3.3 C.17.2.3)."""
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
    """Build the content tree of TID 1500: what it is and what was looked at first, then findings."""
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
    content.append(text(words.intended_use(report)))
    for film in report.films:
        content.append(inferred_from(text(_about(report, film)), source_object(sources[film.source])))
    content.append(sr_library.library(report, sources))
    content.append(sr_findings.measurements(report, sources))
    if evaluations := sr_findings.evaluations(report, sources):
        content.append(evaluations)
    return root


def _about(report: Report, film: Film) -> str:
    """Say of a film what was looked at and that nothing was found, or why nothing was looked at."""
    name = words.film_name(report, film)
    if not film.is_read:
        return f"{name}. {words.not_processed(film)}"
    return " ".join((f"{name}.", words.looked_at(film), *([] if words.reported(film) else [words.NOTHING_NEAR])))
