"""Reports of text alone (PS3.16 TID 2000): on a film without a finding to report, and on a whole study.

Apart from numbers, every item and relationship is one that Basic Text SR permits too (PS3.3 A.35.1.3.1): destinations
that ask for `text` get a film's report in this form, also with findings.

A text with the concept name "Finding" is short: name, probability and state of a reported finding. OHIF 3.13.2 breaks
no line of such a text, so a longer one would leave the window. Every other text is a "Comment".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo

from highdicom.sr import ContainerContentItem, ContentItem, TextContentItem
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.domain import Film, ReaderMark, Report
from node.outputs import impression, report_txt, vocabulary, wording
from node.outputs.sr.items import (
    FINDING,
    container,
    impression_text,
    inferred_from,
    language,
    observer,
    said_by_reader,
    source_object,
    text,
    with_content,
)

TEMPLATE = "2000"
IMAGING_REPORT = Concept("18748-4", "LN", "Diagnostic Imaging Report")
IMPRESSIONS = Concept("19005-8", "LN", "Impressions")
FINDINGS = Concept("59776-5", "LN", "Findings")


def of_film(
    report: Report, film: Film, source: Dataset, version: int, *, zone: tzinfo, numbers: Sequence[ContentItem]
) -> ContainerContentItem:
    """Build the report on a film that was read: on one without a finding to report, and on any in Basic Text SR.

    A radiologist's assessment of a finding has a section with its author as observer (TID 2000 row 9).
    zone: the time zone of its times
    numbers: probabilities of findings; none in Basic Text SR
    """
    about = [inferred_from(each, source_object(source)) for each in _texts(film)]
    lines = [*impression.of_film(film), *wording.version(version)]
    return tree_of(report, lines, [*about, *numbers], films=[film], corrected=_corrected(film, zone))


def _texts(film: Film) -> Iterator[TextContentItem]:
    for finding, more in report_txt.findings(film):
        yield text(finding, name=FINDING)
        yield from [text(more)] if more else []
    yield text(wording.paragraphs(*report_txt.rest(film), *wording.drawn(film)))


def _corrected(film: Film, zone: tzinfo) -> Iterator[ContainerContentItem]:
    """Yield a section for each finding that a reader judged, and one for each sentence that a reader wrote."""
    for finding in film.findings:
        if finding.reader is not None:
            judged = f"{vocabulary.name_of(finding)}: {vocabulary.said_of(finding)}."
            yield _section(text(judged, name=FINDING), finding.reader, zone)
        if (sentence := wording.reworded(film, finding)) is not None:
            yield _section(text(f"{vocabulary.name_of(finding)}: {wording.said(sentence)}"), sentence.reader, zone)


def _section(said: TextContentItem, mark: ReaderMark | None, zone: tzinfo) -> ContainerContentItem:
    return with_content(said_by_reader(container(FINDINGS), mark, zone), [said])


def of_study(report: Report, sources: Mapping[str, Dataset], version: int) -> ContainerContentItem:
    """Build the report on a study: the impression of all films, and why films have no result."""
    about_films = []
    for film in report.films:
        said = "Read; its findings are in a report of its own." if film.is_read else wording.not_processed(film)
        about = wording.paragraphs(said, wording.film_name(report, film))
        about_films.append(inferred_from(text(about), source_object(sources[film.source])))
    lines = [*impression.of_report(report), *wording.version(version)]
    return tree_of(report, lines, about_films, films=report.films)


def tree_of(
    report: Report,
    lines: Iterable[str],
    about: Iterable[ContentItem],
    *,
    films: Sequence[Film],
    persons: Iterable[ContentItem] = (),
    corrected: Iterable[ContentItem] = (),
) -> ContainerContentItem:
    """Build the content tree: impression first, intended use last.

    films: the report's
    persons: observers beside the program; corrected: sections with radiologists' assessments
    """
    first = container(IMPRESSIONS, content=[impression_text(lines)])
    use = text(wording.intended_use(report, films))
    section = container(FINDINGS, content=(*about, use))
    content = (*language(), *observer(report), *persons, first, *corrected, section)
    return container(IMAGING_REPORT, template=TEMPLATE, is_root=True, content=content)
