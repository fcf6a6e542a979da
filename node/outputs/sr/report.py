"""The structured reports of a study: one for each film that was read, and one for the study.

A film's report has a series of its own, for OHIF 3.13.2 shows at best one film's boxes of a report on several. It says
nothing of other films, so it stays the same object when another film arrives. It is a TID 1500 report if there is a
finding to report, else a text (TID 2000). A cardiothoracic ratio has a report of its own (`ratio`). The report on the
study is a text; it is written if the study has several films, or a film that was not read. All are complete,
preliminary and unverified (PS3.3 C.17.2): a machine wrote them and no person reviewed them.

Reports are written in up to three forms, each for destinations of its own. A film's report is Comprehensive SR or
Comprehensive 3D SR, with the same content tree; in one form all its versions have one class and one series, also a text
that follows a report with boxes, because OHIF 3.13.2 shows the newest of each class in a series. The report on the
study goes to the destinations of both as the same Comprehensive SR, so that no object is stored under two kinds. Basic
Text SR (PS3.3 A.35.1) allows no number and no coordinates: there every report is a text, and a cardiothoracic ratio has
none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.dicom import attributes, encoding, identity
from node.domain import Film, ObjectReference, OutputObject, Report
from node.measurement import CardiothoracicRatio
from node.outputs import document, impression, measured, wording
from node.outputs.patient import REQUESTED, best_described, described_by, read_text, said
from node.outputs.sr import content, findings, ratio, text_report
from node.outputs.sr.content import CONTAINS, HAS_ACQ_CONTEXT, HAS_CONCEPT_MOD, Item, container, with_content
from node.outputs.sr.forms import BASIC_TEXT, COMPREHENSIVE, COMPREHENSIVE_3D, FORMS, Form
from node.outputs.sr.items import (
    image,
    impression_text,
    inferred_from,
    language,
    observer,
    source_object,
    text,
)

REPORT_TITLE = Concept("126000", "DCM", "Imaging Measurement Report")
PROCEDURE_REPORTED = Concept("121058", "DCM", "Procedure reported")
CHEST_RADIOGRAPHY = Concept("399208008", "SCT", "Plain chest X-ray")


def write(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write the reports of a study as Comprehensive SR: of each film that was read, of each ratio, then of the study.

    sources: header of each film's object by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    return _reports(report, sources, zone, film_form=COMPREHENSIVE, study_form=COMPREHENSIVE)


def write_3d(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write those on films as Comprehensive 3D SR and that on the study as `write` does; arguments as there."""
    return _reports(report, sources, zone, film_form=COMPREHENSIVE_3D, study_form=COMPREHENSIVE)


def write_text(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo) -> list[Dataset]:
    """Write all reports as Basic Text SR; arguments as in `write`."""
    return _reports(report, sources, zone, film_form=BASIC_TEXT, study_form=BASIC_TEXT)


def _reports(
    report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo, *, film_form: Form, study_form: Form
) -> list[Dataset]:
    """Write all reports of a study; film_form: of those on a film; study_form: of that on the study."""
    wording.check(report)
    written = [_film_report(report, film, sources, zone, form=film_form) for film in report.read_films]
    written += [
        _ratio_report(report, film, stated, sources, zone, form=film_form)
        for film in report.read_films
        if film_form is not BASIC_TEXT and (stated := measured.ratio_of(film)) is not None
    ]
    if _concerns_study(report):
        written.append(_study_report(report, sources, zone, form=study_form))
    return written


def _concerns_study(report: Report) -> bool:
    """Return whether there is something to say that no film's own report says."""
    return len(report.films) > 1 or len(report.read_films) < len(report.films)


def _film_report(report: Report, film: Film, sources: Mapping[str, Dataset], zone: ZoneInfo, *, form: Form) -> Dataset:
    """Write the report on one film, under its own patient, or the study's if the film names none."""
    source = sources[film.source]
    dataset = document.begin(
        report,
        described_by(source, sources.values()),
        sop_class=form.sop_class,
        modality="SR",
        series_number=form.film_number,
        instance_number=1,
        about=film.source,
        form=form.series,
    )
    dataset.SeriesDescription = document.series_description(document.SERIES_DESCRIPTION, source)
    is_measured = bool(wording.reported(film)) and form is not BASIC_TEXT
    describe_document(dataset, report, [source], zone)
    if is_measured and (schemes := _private_schemes(film)):
        dataset.CodingSchemeIdentificationSequence = schemes
    tree_of_film = _measurement_report if is_measured else text_report.of_film
    tree = partial(tree_of_film, report, film, source, zone=document.zone_of(dataset, zone))
    replaced = _replaced(report, film.source, kinds=[form.kind])
    finish(dataset, report, tree, about=film.source, films=[film], replaced=replaced, zone=zone)
    return dataset


def _ratio_report(
    report: Report,
    film: Film,
    stated: CardiothoracicRatio,
    sources: Mapping[str, Dataset],
    zone: ZoneInfo,
    *,
    form: Form,
) -> Dataset:
    """Write the report on a film's cardiothoracic ratio, under the same patient as the film's report."""
    source, about = sources[film.source], identity.ratio_of(film.source)
    dataset = document.begin(
        report,
        described_by(source, sources.values()),
        sop_class=form.sop_class,
        modality="SR",
        series_number=form.ratio_number,
        instance_number=1,
        about=about,
        form=form.series,
    )
    dataset.SeriesDescription = document.series_description(f"{identity.RESEARCH_LABEL}: CTR", source)
    describe_document(dataset, report, [source], zone)
    dataset.CodingSchemeIdentificationSequence = declared({findings.PRIVATE_SCHEME})

    def tree(version: int) -> Item:
        first = text(wording.wrapped(*impression.labeled([*wording.version(version), *measured.lines(stated)])))
        sections = [ratio.measurements(report, film, stated, source)]
        without = replace(film, findings=(), sentences=())  # says nothing of them, and no reader corrects a ratio
        return tree_of(report, without, source, first=first, sections=sections)

    replaced = _replaced(report, about, kinds=[form.kind])
    finish(dataset, report, tree, about=about, films=[film], replaced=replaced, zone=zone)
    return dataset


def _study_report(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo, *, form: Form) -> Dataset:
    about = [sources[film.source] for film in sorted(report.films, key=lambda film: (not film.is_read, film.source))]
    dataset = document.begin(
        report,
        best_described(about),
        sop_class=form.sop_class,
        modality="SR",
        series_number=form.study_number,
        instance_number=1,
        about=identity.study_of(report.part),
        form=form.series,
    )
    dataset.SeriesDescription = identity.described_part(document.SERIES_DESCRIPTION, report.part)
    describe_document(dataset, report, [sources[film.source] for film in report.films], zone)
    # A destination of Comprehensive 3D SR has this report too.
    kinds = [form.kind] if form is BASIC_TEXT else [COMPREHENSIVE.kind, COMPREHENSIVE_3D.kind]
    tree, replaced = partial(text_report.of_study, report, sources), _replaced(report, "", kinds=kinds)
    finish(dataset, report, tree, about="", films=report.films, replaced=replaced, zone=zone)
    return dataset


def finish(
    dataset: Dataset,
    report: Report,
    tree: Callable[[int], Item],
    *,
    about: str,
    films: Sequence[Film],
    replaced: Iterable[OutputObject | ObjectReference] = (),
    zone: ZoneInfo,
) -> None:
    """Add the content tree, the identity, and the earlier reports that this one replaces.

    tree: makes the content tree of a version; about: as `OutputObject.film`
    """
    _fill(dataset, tree(1))
    document.seal(dataset, report, sources=[film.source for film in films], zone=zone)
    # The UID is known only now, and depends on neither version nor predecessors.
    if (version := report.version(str(dataset.SOPInstanceUID), about=about, kinds=FORMS)) > 1:
        _fill(dataset, tree(version))
    # A repeated round may have itself as predecessor: skip it.
    older = [earlier for earlier in replaced if earlier.sop_instance_uid != dataset.SOPInstanceUID]
    if older:
        dataset.PredecessorDocumentsSequence = [_references(report.study_uid, older)]


def _fill(dataset: Dataset, tree: Item) -> None:
    for tag, encoded in tree.elements():
        dataset[tag] = encoding.as_raw(tag, encoded)


def _replaced(report: Report, about: str, *, kinds: Collection[str]) -> list[OutputObject]:
    """Return the earlier reports that a report replaces; about: its film, the film's `ratio_of`, or "" for the
    study's.

    It replaces the one on the same film. Those on no film, or on a film without a report now, are replaced by the
    study's report, or by the only film's if there is none on the study. Of an earlier report in several forms it
    replaces those of some kinds, which its destinations have; or any, if none is of these kinds.
    """
    read = {film.source for film in report.read_films}
    is_heir = not about or (about in read and not _concerns_study(report))
    read |= {identity.ratio_of(film.source) for film in report.read_films if measured.ratio_of(film)}
    found = [
        earlier
        for earlier in report.predecessors
        if (earlier.film == about and about) or (is_heir and earlier.film not in read)
    ]
    known = {earlier.film for earlier in found if earlier.kind in kinds}
    return [earlier for earlier in found if earlier.kind in kinds or earlier.film not in known]


def describe_document(
    dataset: Dataset,
    report: Report,
    films: Sequence[Dataset],
    zone: ZoneInfo,
    *,
    evidence: Iterable[ObjectReference] = (),
) -> None:
    """Fill the SR Document Series and General modules (PS3.3 C.17.1, C.17.2); evidence: other than the films."""
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.PerformedProcedureCodeSequence = []
    dataset.CompletionFlag = "COMPLETE"
    dataset.PreliminaryFlag = "PRELIMINARY"
    dataset.VerificationFlag = "UNVERIFIED"
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    dataset.CurrentRequestedProcedureEvidenceSequence = [
        _references(
            report.study_uid,
            (
                *(
                    ObjectReference(
                        sop_class_uid=str(film.SOPClassUID),
                        sop_instance_uid=str(film.SOPInstanceUID),
                        series_instance_uid=str(film.SeriesInstanceUID),
                    )
                    for film in films
                ),
                *evidence,
            ),
        )
    ]
    if requests := _requests(report.study_uid, films):
        dataset.ReferencedRequestSequence = requests


def _private_schemes(film: Film) -> list[Dataset]:
    """Declare the private coding schemes of findings, sites, states and probabilities (PS3.3 C.12.1.1.1)."""
    codes = {code for finding in film.findings for code in (finding.code, finding.site) if code}
    return declared({code.scheme for code in codes if code.scheme.startswith("99")} | {findings.PRIVATE_SCHEME})


def declared(schemes: Iterable[str]) -> list[Dataset]:
    """Declare private coding schemes (PS3.3 C.12.1.1.1)."""
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
    for film in films:
        for request in attributes.items(film, "RequestAttributesSequence") or (film,):
            values = tuple(read_text(request if said(request, name) else film, name) for name in REQUESTED)
            item = Dataset()
            item.StudyInstanceUID = study_uid
            item.ReferencedStudySequence = []
            item.RequestedProcedureCodeSequence = []
            for keyword, value in zip(REQUESTED, values, strict=True):
                setattr(item, keyword, value)
            found.setdefault(values, item)
    return [item for values, item in found.items() if any(values)]


def _measurement_report(report: Report, film: Film, source: Dataset, version: int, *, zone: tzinfo) -> Item:
    sections = (
        findings.measurements(report, film, source, zone=zone),
        findings.evaluations(film, source, zone=zone),
    )
    first = impression_text([*wording.version(version), *impression.of_film(film)])
    return tree_of(report, film, source, first=first, sections=filter(None, sections))


def tree_of(
    report: Report,
    film: Film,
    source: Dataset,
    *,
    first: Item,
    sections: Iterable[Item],
    persons: Iterable[Item] = (),
) -> Item:
    """Build the content tree of TID 1500: a first text and the analyzed part, sections, and the intended use last.

    persons: observers beside the program (`items.person`)
    """
    procedure = content.code(PROCEDURE_REPORTED, CHEST_RADIOGRAPHY, HAS_CONCEPT_MOD)
    analyzed = inferred_from(text(wording.looked_at(film)), source_object(source))
    use = text(wording.intended_use(report, [film]))
    return with_content(
        container(REPORT_TITLE, relationship="", template="1500"),
        (language(), *observer(report), *persons, procedure, first, analyzed, _library(film, source), *sections, use),
    )


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
RADIOGRAPH = Concept("RG", "DCM", "Radiographic imaging")
"""Any other film that is read, also one that names no modality: TID 1602 asks for one that acquires (CID 29)."""


def _library(film: Film, source: Dataset) -> Item:
    """Describe the film."""
    entry = with_content(image(source, CONTAINS), _describe_film(film, source))
    return with_content(container(IMAGE_LIBRARY), [with_content(container(IMAGE_LIBRARY_GROUP), [entry])])


def _describe_film(film: Film, source: Dataset) -> Iterator[Item]:
    yield content.code(MODALITY, MODALITIES.get(read_text(source, "Modality"), RADIOGRAPH), HAS_ACQ_CONTEXT)
    columns, rows = wording.size(film)
    for name, pixels in ((PIXEL_DATA_ROWS, rows), (PIXEL_DATA_COLUMNS, columns)):
        yield content.number(name, pixels, PIXELS, HAS_ACQ_CONTEXT)
