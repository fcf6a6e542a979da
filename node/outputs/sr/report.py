"""The structured reports of a study: one for each film that was read, and one for the study.

A film's report has a series of its own, because OHIF 3.13.2 shows at best one film's boxes of a report on several. It
contains nothing of other films, so it stays the same object when another film arrives. It is a TID 1500 report if there
is a finding to report, else a text (TID 2000). A comparable cardiothoracic ratio has a report of its own (`ratio`). The
report on the study is a text; it is written if the study has several films, or a film that was not read. All are
complete, preliminary and unverified (PS3.3 C.17.2): a machine wrote them and no person reviewed them.

Reports are written in up to three forms, each for destinations of its own. A film's report is Comprehensive SR or
Comprehensive 3D SR, with the same content tree; in one form all its versions have one class and one series, also a text
that follows a report with boxes, because OHIF 3.13.2 shows the newest of each class in a series. The report on the
study goes to the destinations of both as the same Comprehensive SR, so that no object is stored under two kinds. Basic
Text SR (PS3.3 A.35.1) allows no number and no coordinates: there every report is a text, and a cardiothoracic ratio has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

from highdicom.coding_schemes import CodingSchemeIdentificationItem
from highdicom.sr import (
    CodeContentItem,
    ContainerContentItem,
    ContentItem,
    ContentSequence,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    NumContentItem,
    ObservationContext,
    RelationshipTypeValues,
)
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept

from node.cardiothoracic_ratio import CardiothoracicRatio
from node.dicom import attributes, identity
from node.domain import About, Film, ObjectReference, OutputObject, Report, Subject
from node.output_kinds import Written
from node.outputs import document, highdicom_gaps, impression, ratio_text, wording
from node.outputs.patient import best_described, described_by, read_text, said
from node.outputs.source import Source
from node.outputs.sr import findings, ratio, text_report
from node.outputs.sr.items import (
    BASIC_TEXT,
    COMPREHENSIVE,
    COMPREHENSIVE_3D,
    FORMS,
    OF_FILM,
    OF_RATIO,
    OF_STUDY,
    Form,
    container_of,
    impression_text,
    inferred_from,
    language,
    observer,
    source_object,
    text,
)

TEMPLATE: Final = "1500"
"""Root template of reports with measurements; `text_report.TEMPLATE` of those without."""
CHEST_RADIOGRAPHY = Concept("399208008", "SCT", "Plain chest X-ray")
DOCUMENTS: Final = {
    COMPREHENSIVE.kind: highdicom_gaps.ComprehensiveReport,
    COMPREHENSIVE_3D.kind: highdicom_gaps.Comprehensive3DReport,
    BASIC_TEXT.kind: highdicom_gaps.TextReport,
}

Group = findings.Group | MeasurementsAndQualitativeEvaluations
Tree = Callable[[int], ContainerContentItem]
"""Makes the content tree of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Everything that a report is written from, except its content.

    series_about: see `identity.series_uid`
    template: its root template, see `output_kinds.Written.template`
    patient: header with its patient and study
    films: its subjects; evidence: other objects that it references as evidence
    schemes: private coding schemes of its codes
    replaced: earlier reports
    """

    form: Form
    series_number: int
    series_description: str
    series_about: str
    subject: Subject
    template: str
    patient: Dataset
    films: Sequence[Dataset]
    evidence: Sequence[ObjectReference] = ()
    schemes: Collection[str] = ()
    replaced: Sequence[OutputObject | ObjectReference] = ()


def write(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write the reports of a study as Comprehensive SR: of each film that was read, of each ratio, then of the study.

    sources: each film by SOP Instance UID
    Raises ValueError for a box outside its film.
    """
    return _reports(report, sources, zone, film_form=COMPREHENSIVE, study_form=COMPREHENSIVE)


def write_3d(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write the reports on films as Comprehensive 3D SR and the study's report as SR; same arguments as `write`."""
    return _reports(report, sources, zone, film_form=COMPREHENSIVE_3D, study_form=COMPREHENSIVE)


def write_text(report: Report, sources: Mapping[str, Source], zone: ZoneInfo) -> Iterator[Written]:
    """Write all reports as Basic Text SR; same arguments as `write`."""
    return _reports(report, sources, zone, film_form=BASIC_TEXT, study_form=BASIC_TEXT)


def _reports(
    report: Report, sources: Mapping[str, Source], zone: ZoneInfo, *, film_form: Form, study_form: Form
) -> Iterator[Written]:
    """Write all reports of a study; film_form: form of those on a film; study_form: form of the one on the study."""
    wording.check(report)
    headers = {uid: source.header for uid, source in sources.items()}
    for film in report.read_films:
        yield _film_report(report, film, headers, zone, form=film_form)
    for film in report.read_films if film_form is not BASIC_TEXT else ():
        if (stated := ratio_text.comparable_ratio_of(film)) is not None:
            yield _ratio_report(report, film, stated, headers, zone, form=film_form)
    if _concerns_study(report):
        yield _study_report(report, headers, zone, form=study_form)


def _concerns_study(report: Report) -> bool:
    """Return whether the study needs a report beside its film's own report."""
    return len(report.films) > 1 or len(report.read_films) < len(report.films)


def _film_report(report: Report, film: Film, sources: Mapping[str, Dataset], zone: ZoneInfo, *, form: Form) -> Written:
    """Write the report on one film, under its own patient, or the study's if the film has none."""
    source = sources[film.source]
    patient = described_by(source, sources.values())
    is_measured = any(finding.boxes for finding in wording.reported(film)) and form is not BASIC_TEXT
    numbers = [] if is_measured or form is BASIC_TEXT else findings.probabilities(film, source)
    schemes = _private_schemes(film) if is_measured else {findings.PRIVATE_SCHEME} if numbers else set[str]()
    subject = Subject(about=About.FILM, film=film.source)
    draft = Draft(
        form=form,
        series_number=form.first + OF_FILM,
        series_description=document.series_description(
            "AI report" if form is BASIC_TEXT else "AI findings", film=source
        ),
        series_about=film.source,
        subject=subject,
        template=TEMPLATE if is_measured else text_report.TEMPLATE,
        patient=patient,
        films=[source],
        schemes=schemes,
        replaced=_replaced(report, subject, kinds=[form.kind]),
    )
    tree_of_film = _measurement_report if is_measured else partial(text_report.of_film, numbers=numbers)
    tree = partial(tree_of_film, report, film, source, zone=document.zone_of(patient, report, zone))
    return document_of(draft, report, tree, zone=zone)


def _ratio_report(
    report: Report,
    film: Film,
    stated: CardiothoracicRatio,
    sources: Mapping[str, Dataset],
    zone: ZoneInfo,
    *,
    form: Form,
) -> Written:
    """Write the report on a film's cardiothoracic ratio, under the same patient as the film's report."""
    source, subject = sources[film.source], Subject(about=About.RATIO, film=film.source)
    draft = Draft(
        form=form,
        series_number=form.first + OF_RATIO,
        series_description=document.series_description("AI heart size", film=source),
        series_about=identity.ratio_of(film.source),
        subject=subject,
        template=TEMPLATE,
        patient=described_by(source, sources.values()),
        films=[source],
        schemes={findings.PRIVATE_SCHEME},
        replaced=_replaced(report, subject, kinds=[form.kind]),
    )

    def tree(version: int) -> ContainerContentItem:
        lines = [*ratio_text.lines(stated), *wording.cautions(film), *wording.version(version)]
        first = text(wording.paragraphs(*impression.labeled(lines)))
        without = replace(film, findings=(), sentences=())  # for a report on the ratio, which no radiologist corrects
        return tree_of(report, without, source, first=first, groups=[ratio.measurements(report, film, stated, source)])

    return document_of(draft, report, tree, zone=zone)


def _study_report(report: Report, sources: Mapping[str, Dataset], zone: ZoneInfo, *, form: Form) -> Written:
    about = [sources[film.source] for film in sorted(report.films, key=lambda film: (not film.is_read, film.source))]
    # A destination of Comprehensive 3D SR has this report too.
    kinds = [form.kind] if form is BASIC_TEXT else [COMPREHENSIVE.kind, COMPREHENSIVE_3D.kind]
    draft = Draft(
        form=form,
        series_number=form.first + OF_STUDY,
        series_description=document.series_description("AI study report", part=report.part),
        series_about=identity.study_of(report.part),
        subject=Subject(),
        template=text_report.TEMPLATE,
        patient=best_described(about),
        films=[sources[film.source] for film in report.films],
        replaced=_replaced(report, Subject(), kinds=kinds),
    )
    return document_of(draft, report, partial(text_report.of_study, report, sources), zone=zone)


def document_of(draft: Draft, report: Report, tree: Tree, *, zone: ZoneInfo) -> Written:
    """Write a report (PS3.3 C.17.1 to C.17.3): its first version, then again with its version."""
    patient, films, form = draft.patient, draft.films, draft.form
    root = _separate(tree(1))
    dataset: Dataset = DOCUMENTS[form.kind](
        evidence=[
            *(document.evidence(report, film) for film in films),
            *(document.evidence_of(report, other) for other in draft.evidence),
        ],
        content=highdicom_gaps.heading(root),
        is_complete=True,
        is_final=False,
        requested_procedures=_requests(report.study_uid, films) or None,
        previous_versions=[document.evidence_of(report, earlier) for earlier in draft.replaced] or None,
        coding_schemes=declared(draft.schemes) or None,
        **document.begin(
            report,
            modality="SR",
            series_number=draft.series_number,
            series_description=draft.series_description,
            instance_number=1,
            about=draft.series_about,
            form=form.series,
        ),
    )
    dataset.ContentSequence = root.ContentSequence
    if form is BASIC_TEXT:
        highdicom_gaps.call_basic_text(dataset)
    document.complete(dataset, report, patient)
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=[str(film.SOPInstanceUID) for film in films], zone=zone)
    # The UID is known only now, and depends on neither version nor predecessors. A repeated round has itself as one.
    older = {earlier.sop_instance_uid for earlier in draft.replaced}
    document.keep_predecessors(dataset, older - {dataset.SOPInstanceUID})
    if (version := report.version(str(dataset.SOPInstanceUID), draft.subject, kinds=FORMS)) > 1:
        dataset.ContentSequence = _separate(tree(version)).ContentSequence
    return Written(kind=form.kind, dataset=dataset, subject=draft.subject, template=draft.template, part=report.part)


def _separate(tree: ContainerContentItem) -> ContainerContentItem:
    highdicom_gaps.separate(tree)
    return tree


def _replaced(report: Report, subject: Subject, *, kinds: Collection[str]) -> list[OutputObject]:
    """Return the earlier reports that a report on a subject replaces.

    It replaces the one on the same film. Those on no film, or on a film without a report now, are replaced by the
    study's report, or by the only film's if there is none on the study. Of an earlier report in several forms it
    replaces those of some kinds, which its destinations have; or any, if none is of these kinds.
    """
    read = {Subject(about=About.FILM, film=film.source) for film in report.read_films}
    takes_rest = subject.about is About.STUDY or (subject in read and not _concerns_study(report))
    read |= {
        Subject(about=About.RATIO, film=film.source)
        for film in report.read_films
        if ratio_text.comparable_ratio_of(film)
    }
    found = [
        earlier
        for earlier in report.predecessors
        if (earlier.subject == subject and subject.film) or (takes_rest and earlier.subject not in read)
    ]
    known = {earlier.subject for earlier in found if earlier.kind in kinds}
    return [earlier for earlier in found if earlier.kind in kinds or earlier.subject not in known]


def _private_schemes(film: Film) -> set[str]:
    """Return the private coding schemes of findings, sites, states and probabilities."""
    codes = {code for finding in film.findings for code in (finding.code, finding.site) if code}
    return {code.scheme for code in codes if code.scheme.startswith("99")} | {findings.PRIVATE_SCHEME}


def declared(schemes: Iterable[str]) -> list[CodingSchemeIdentificationItem]:
    """Declare private coding schemes (PS3.3 C.12.1.1.1)."""
    return [
        CodingSchemeIdentificationItem(
            scheme,
            name=f"Private codes {scheme} of {identity.PROGRAM}",
            responsible_organization=identity.MANUFACTURER,
        )
        for scheme in sorted(schemes)
    ]


def _requests(study_uid: str, films: Iterable[Dataset]) -> list[Dataset]:
    """Return the distinct requests of the films (PS3.3 C.17.2.3)."""
    found: dict[tuple[str, ...], Dataset] = {}
    for film in films:
        for request in attributes.items(film, "RequestAttributesSequence") or (film,):
            values = tuple(read_text(request if said(request, name) else film, name) for name in attributes.REQUESTED)
            item = Dataset()
            item.StudyInstanceUID = study_uid
            item.ReferencedStudySequence = []
            item.RequestedProcedureCodeSequence = []
            for keyword, value in zip(attributes.REQUESTED, values, strict=True):
                setattr(item, keyword, value)
            found.setdefault(values, item)
    return [item for values, item in found.items() if any(values)]


def _measurement_report(
    report: Report, film: Film, source: Dataset, version: int, *, zone: tzinfo
) -> ContainerContentItem:
    return tree_of(
        report,
        film,
        source,
        first=impression_text([*impression.of_film(film), *wording.version(version)]),
        groups=findings.measurements(report, film, source, zone=zone),
        evaluations=findings.evaluations(film, source, zone=zone),
        texts=[] if ratio_text.comparable_ratio_of(film) else map(text, ratio_text.in_findings(film)),
    )


def tree_of(
    report: Report,
    film: Film,
    source: Dataset,
    *,
    first: ContentItem,
    groups: Sequence[Group],
    evaluations: ContainerContentItem | None = None,
    persons: Iterable[ContentItem] = (),
    texts: Iterable[ContentItem] = (),
) -> ContainerContentItem:
    """Build the content tree of TID 1500: a first text and the analyzed part, sections, and the intended use last.

    texts: further texts; persons: observers beside the program (`items.person`)
    """
    context = ObservationContext(observer_device_context=observer(report))
    context.extend(persons)
    measurement_report = MeasurementReport(
        observation_context=context,
        procedure_reported=CHEST_RADIOGRAPHY,
        imaging_measurements=groups,
        language_of_content_item_and_descendants=language(),
    )
    root = container_of(measurement_report)
    *beginning, measurements = root.ContentSequence
    analyzed = inferred_from(text(wording.limits(film)), source_object(source))
    library = highdicom_gaps.image_library(source, _describe_film(film, source))
    root.ContentSequence = ContentSequence([*beginning, first, analyzed, *texts, library, measurements])
    if evaluations is not None:
        root.ContentSequence.append(evaluations)  # TID 1500 row 12, which `MeasurementReport` does not take
    root.ContentSequence.append(text(wording.intended_use(report, [film])))
    return root


PIXELS = Concept("{pixels}", "UCUM", "Pixels")
MODALITIES: Mapping[str, Concept] = {
    "CR": Concept("CR", "DCM", "Computed Radiography"),
    "DX": Concept("DX", "DCM", "Digital Radiography"),
}
RADIOGRAPH = Concept("RG", "DCM", "Radiographic imaging")
"""Any other film that is read, also one that names no modality: TID 1602 asks for one that acquires (CID 29)."""


def _describe_film(film: Film, source: Dataset) -> Iterator[ContentItem]:
    context = RelationshipTypeValues.HAS_ACQ_CONTEXT
    yield CodeContentItem(codes.DCM.Modality, MODALITIES.get(read_text(source, "Modality"), RADIOGRAPH), context)
    columns, rows = wording.size(film)
    for name, pixels in ((codes.DCM.PixelDataRows, rows), (codes.DCM.PixelDataColumns, columns)):
        yield NumContentItem(name, pixels, PIXELS, relationship_type=context)
