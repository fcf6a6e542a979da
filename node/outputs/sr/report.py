"""The structured reports of a study: Comprehensive SR, one for each film that was read, and one for the study.

A film's report has a series of its own, for OHIF 3.13.2 shows at best one film's boxes of a report on several. It says
nothing of other films, so it stays the same object when another film arrives. It is a TID 1500 report if there is a
finding to report, else a text (TID 2000). A cardiothoracic ratio has a report of its own (`ratio`). The report on the
study is a text; it is written if the study has several films, or a film that was not read. All are complete,
preliminary and unverified (PS3.3 C.17.2): a machine wrote them and no person reviewed them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from node.domain import Film, ObjectReference, OutputObject, Report
from node.measurement import CardiothoracicRatio
from node.outputs import document, impression, measured, wording
from node.outputs.patient import best_described, read_text
from node.outputs.sr import findings, ratio, text_report
from node.outputs.sr.items import (
    container,
    image,
    impression_text,
    inferred_from,
    language,
    observer,
    source_object,
    text,
)
from node.outputs.wording import uncapitalized

FILM_SERIES_NUMBER, STUDY_SERIES_NUMBER, RATIO_SERIES_NUMBER = 9001, 9003, 9005
"""Series numbers beside 9002 of the presentation states. All films' reports have the same: a place among the films
would change when another film arrives, and the report with it."""

SOP_CLASS = ComprehensiveSRStorage
REPORT_TITLE = Concept("126000", "DCM", "Imaging Measurement Report")
PROCEDURE_REPORTED = Concept("121058", "DCM", "Procedure reported")
CHEST_RADIOGRAPHY = Concept("399208008", "SCT", "Plain chest X-ray")


def write(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write the structured reports of a study: of each film that was read, of each ratio, then of the study.

    sources: header of each film's object by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    wording.check(report)
    written = [_film_report(report, film, sources, zone) for film in report.read_films]
    written += [
        _ratio_report(report, film, stated, sources, zone)
        for film in report.read_films
        if (stated := measured.ratio_of(film)) is not None
    ]
    if _concerns_study(report):
        written.append(_study_report(report, sources, zone))
    return written


def _concerns_study(report: Report) -> bool:
    """Return whether there is something to say that no film's own report says."""
    return len(report.films) > 1 or len(report.read_films) < len(report.films)


def _film_report(report: Report, film: Film, sources: Mapping[str, Dataset], zone: ZoneInfo) -> Dataset:
    """Write the report on one film, under its own patient, or the study's if the film names none."""
    source = sources[film.source]
    dataset = document.begin(
        report,
        source if read_text(source, "PatientID") else best_described(sources.values()),
        sop_class=SOP_CLASS,
        modality="SR",
        series_number=FILM_SERIES_NUMBER,
        instance_number=1,
        about=film.source,
    )
    is_measured = bool(wording.reported(film))
    _describe_document(dataset, report, [source], zone)
    if is_measured and (schemes := _private_schemes(film)):
        dataset.CodingSchemeIdentificationSequence = schemes
    tree = _measurement_report(report, film, source) if is_measured else text_report.of_film(report, film, source)
    _finish(dataset, report, tree, films=[film], about=film.source, zone=zone)
    return dataset


def _ratio_report(
    report: Report, film: Film, stated: CardiothoracicRatio, sources: Mapping[str, Dataset], zone: ZoneInfo
) -> Dataset:
    """Write the report on a film's cardiothoracic ratio, under the same patient as the film's report."""
    source, about = sources[film.source], identity.ratio_of(film.source)
    dataset = document.begin(
        report,
        source if read_text(source, "PatientID") else best_described(sources.values()),
        sop_class=SOP_CLASS,
        modality="SR",
        series_number=RATIO_SERIES_NUMBER,
        instance_number=1,
        about=about,
    )
    dataset.SeriesDescription += f", {uncapitalized(measured.NAME)}"
    _describe_document(dataset, report, [source], zone)
    dataset.CodingSchemeIdentificationSequence = _declared({findings.PRIVATE_SCHEME})
    first = text(wording.wrapped(*impression.labeled(measured.lines(stated))))
    tree = _tree(report, film, source, first=first, sections=[ratio.measurements(report, film, stated, source)])
    _finish(dataset, report, tree, films=[film], about=about, zone=zone)
    return dataset


def _study_report(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> Dataset:
    about = [sources[film.source] for film in sorted(report.films, key=lambda film: (not film.is_read, film.source))]
    dataset = document.begin(
        report,
        best_described(about),
        sop_class=SOP_CLASS,
        modality="SR",
        series_number=STUDY_SERIES_NUMBER,
        instance_number=1,
        about=identity.STUDY,
    )
    _describe_document(dataset, report, [sources[film.source] for film in report.films], zone)
    _finish(dataset, report, text_report.of_study(report, sources), films=report.films, about="", zone=zone)
    return dataset


def _finish(
    dataset: Dataset, report: Report, tree: ContainerContentItem, *, films: Sequence[Film], about: str, zone: ZoneInfo
) -> None:
    """Add the content tree and the identity; about: the film whose report it is, or "" for the study's."""
    for element in tree:
        dataset[element.tag] = element
    document.seal(dataset, report, sources=[film.source for film in films], zone=zone)
    # The UID is known only now, and does not depend on this. A repeated round may have itself as predecessor: skip it.
    older = [earlier for earlier in _replaced(report, about) if earlier.sop_instance_uid != dataset.SOPInstanceUID]
    if older:
        dataset.PredecessorDocumentsSequence = [_references(report.study_uid, older)]


def _replaced(report: Report, about: str) -> list[OutputObject]:
    """Return the earlier reports that a report replaces; about: its film, the film's `ratio_of`, or "" for the study's.

    It replaces the one about the same. Those on no film, or on a film without a report now, are replaced by the
    study's report, or by the only film's if there is none on the study.
    """
    read = {film.source for film in report.read_films}
    is_heir = not about or (about in read and not _concerns_study(report))
    read |= {identity.ratio_of(film.source) for film in report.read_films if measured.ratio_of(film)}
    return [
        earlier
        for earlier in report.predecessors
        if (earlier.film == about and about) or (is_heir and earlier.film not in read)
    ]


def _describe_document(dataset: Dataset, report: Report, films: Sequence[Dataset], zone: ZoneInfo) -> None:
    """Fill the SR Document Series and General modules (PS3.3 C.17.1, C.17.2)."""
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.PerformedProcedureCodeSequence = []
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


def _private_schemes(film: Film) -> list[Dataset]:
    """Declare the private coding schemes of findings, sites, states and probabilities (PS3.3 C.12.1.1.1)."""
    codes = {code for finding in film.findings for code in (finding.code, finding.site) if code}
    return _declared({code.scheme for code in codes if code.scheme.startswith("99")} | {findings.PRIVATE_SCHEME})


def _declared(schemes: Iterable[str]) -> list[Dataset]:
    items = []
    for scheme in sorted(schemes):
        item = Dataset()
        item.CodingSchemeDesignator = scheme
        item.CodingSchemeName = f"Private codes {scheme} of {identity.PROGRAM}"
        item.CodingSchemeResponsibleOrganization = identity.MANUFACTURER
        items.append(item)
    return items


def _references(study_uid: str, references: Iterable[ObjectReference | OutputObject]) -> Dataset:
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


def _measurement_report(report: Report, film: Film, source: Dataset) -> ContainerContentItem:
    sections = (findings.measurements(report, film, source), findings.evaluations(film, source))
    first = impression_text(impression.of_film(film))
    return _tree(report, film, source, first=first, sections=filter(None, sections))


def _tree(
    report: Report, film: Film, source: Dataset, *, first: ContentItem, sections: Iterable[ContainerContentItem]
) -> ContainerContentItem:
    """Build the content tree of TID 1500: a first text and the analyzed part, sections, and the intended use last."""
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
    content.append(first)
    content.append(inferred_from(text(wording.looked_at(film)), source_object(source)))
    content.append(_library(film, source))
    content.extend(sections)
    content.append(text(wording.intended_use(report)))
    return root


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


def _library(film: Film, source: Dataset) -> ContainerContentItem:
    """Describe the film."""
    item, group = container(IMAGE_LIBRARY), container(IMAGE_LIBRARY_GROUP)
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
