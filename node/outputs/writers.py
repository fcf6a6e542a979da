"""Writes the DICOM objects of a report, makes that report, and says which of them a destination gets."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from types import FunctionType
from zoneinfo import ZoneInfo

from pydicom.uid import UID

from node import plugins
from node.domain import About, Film, ModelIdentity, OutputObject, Report, derive_uid
from node.output_kinds import OUTPUTS, Written
from node.outputs import document, rejection
from node.outputs.source import Source
from node.outputs.sr.items import BASIC_TEXT, COMPREHENSIVE, COMPREHENSIVE_3D, FORMS
from node.outputs.sr.text_report import TEMPLATE as TEXT
from node.outputs.study_parts import Part
from node.prompt_set import PromptSet
from node.store.rounds import RoundMark

Writer = Callable[[Report, Mapping[str, Source], ZoneInfo], Iterator[Written]]
"""Gets a report, and each of its films by SOP Instance UID. Writes the same whenever it gets the same."""


def make_report(
    study_uid: str,
    films: Iterable[Film],
    *,
    model: ModelIdentity,
    prompts: PromptSet,
    created_at: datetime,
    earlier: tuple[tuple[OutputObject, ...], ...] = (),
) -> Report:
    """Make a report of films, model and prompt set; the films are sorted, so their order of arrival has no effect."""
    return Report(
        study_uid=study_uid,
        films=tuple(sorted(films, key=lambda film: film.source)),
        model=model,
        prompts_name=prompts.name,
        prompts_version=prompts.version,
        prompts_sha256=prompts.sha256,
        created_at=created_at,
        earlier=earlier,
    )


def report_on(part: Part, report: Report, *, earlier: tuple[tuple[OutputObject, ...], ...] = ()) -> Report:
    """Return the report on one part of a study; earlier: `written_on` it.

    Reports on another patient or request, as which a film was received before, are no predecessors.
    """
    films = tuple(film for film in report.films if film.source in part.films)
    reports = [tuple(output for output in outputs if output.kind in FORMS) for outputs in earlier]
    newest = next(filter(None, reversed(reports)), ())
    own = tuple(output for output in newest if not output.identity.contradicts(part.identity))
    return replace(report, films=films, part=part.name, earlier=earlier, predecessors=own)


def write_objects(
    report: Report, sources: Mapping[str, Source], *, zone: ZoneInfo, kinds: Collection[str]
) -> Iterator[Written]:
    """Write every object of the wanted kinds for one report, each once.

    What needs pictures is written last and film by film, so that each film is decoded at most once.
    """
    own = {film.source: sources[film.source] for film in report.films}  # what others say is not about this patient
    for said, wanted in divided(report, kinds):
        yield from write_kinds(said, own, zone=zone, kinds=wanted)


def divided(report: Report, kinds: Collection[str]) -> Iterator[tuple[Report, tuple[str, ...]]]:
    """Divide what is written for a report: first the kinds that need no picture, then film by film those that do."""
    drawn = tuple(kind for kind in kinds if OUTPUTS.entry(kind).needs_picture)
    if report.films and (texts := tuple(kind for kind in kinds if kind not in drawn)):
        yield report, texts
    for film in report.films if drawn else ():
        yield replace(report, films=(film,)), drawn


def write_kinds(
    report: Report, sources: Mapping[str, Source], *, zone: ZoneInfo, kinds: Collection[str]
) -> Collection[Written]:
    """Write some kinds of objects for a report as `divided` makes it; sources: all films of the whole."""
    written = (made for kind in kinds for made in writer_of(kind)(report, sources, zone))
    return {str(made.dataset.SOPInstanceUID): made for made in written}.values()


def writer_of(kind: str) -> Writer:
    """Return the writer of a kind, which is imported now if it was not before."""
    writer: Writer = plugins.load(OUTPUTS.entry(kind).writer, FunctionType)
    return writer


def sop_class_of(kind: str) -> UID:
    """Return the SOP class of the objects of a kind, rejection notes included."""
    return rejection.SOP_CLASS if kind == rejection.KIND else UID(OUTPUTS.entry(kind).sop_class)


def classes_wanted(outputs: Collection[str]) -> dict[UID, str]:
    """Return the SOP classes that a destination must accept, each with the entry of its setting that needs it."""
    wanted = {sop_class_of(kind): kind for kind in outputs}
    if COMPREHENSIVE_3D.kind in outputs:
        wanted.setdefault(sop_class_of(COMPREHENSIVE.kind), COMPREHENSIVE_3D.kind)  # of reports on studies
    return wanted


def with_receivers(
    written: Iterable[OutputObject], destinations: Mapping[str, Collection[str]], *, known: Iterable[OutputObject] = ()
) -> tuple[OutputObject, ...]:
    """Return outputs of a round with the names of their destinations.

    Rejection notes and withdrawals keep their receivers: the destinations that may have the void outputs.
    destinations: by name, the kinds of outputs that each gets; known: outputs of earlier rounds, with their receivers
    """
    outputs = list(written)
    got: dict[str, set[str]] = defaultdict(set)
    for output in known:
        got[output.sop_instance_uid].update(output.receivers)
    for name, wanted in destinations.items():
        for output in for_destination(outputs, wanted):
            got[output.sop_instance_uid].add(name)
    return tuple(
        output if output.voids else replace(output, receivers=tuple(sorted(got[output.sop_instance_uid])))
        for output in outputs
    )


def for_destination(written: Iterable[OutputObject], outputs: Collection[str]) -> list[OutputObject]:
    """Return those outputs of a round that a destination gets; outputs: its setting.

    Texts about no single film, on a study or an answer, are of the kind `sr` for a destination with `sr3d` too. Beside
    `sr` or `sr3d`, `text` gives the words of films whose report has boxes: all other reports are texts already.
    """
    outputs_of_round = list(written)
    kinds = set(outputs)
    has_texts, measuring = COMPREHENSIVE_3D.kind in kinds, kinds & {COMPREHENSIVE.kind, COMPREHENSIVE_3D.kind}
    with_boxes = {output.subject for output in outputs_of_round if output.kind in measuring and output.template != TEXT}

    def is_wanted(output: OutputObject) -> bool:
        if output.kind == BASIC_TEXT.kind and measuring:
            return output.kind in kinds and output.subject in with_boxes
        return output.kind in kinds or (has_texts and _is_text_of_no_film(output))

    return list(filter(is_wanted, outputs_of_round))


def _is_text_of_no_film(output: OutputObject) -> bool:
    is_of_film = output.subject.about in (About.FILM, About.RATIO)
    return output.kind == COMPREHENSIVE.kind and output.template == TEXT and not is_of_film


def output_of(written: Written) -> OutputObject:
    """Return the reference of a written object."""
    dataset = written.dataset
    return OutputObject(
        kind=written.kind,
        study_uid=str(dataset.StudyInstanceUID),
        sop_class_uid=str(dataset.SOPClassUID),
        sop_instance_uid=str(dataset.SOPInstanceUID),
        series_instance_uid=str(dataset.SeriesInstanceUID),
        subject=written.subject,
        template=written.template,
        number=int(dataset.InstanceNumber),
        voids=written.voids,
        receivers=written.receivers,
    )


def numbered(written: Written, known: Collection[OutputObject]) -> OutputObject:
    """Number an object above all others of its series, because OHIF 3.13.2 shows the last; return its reference.

    known: all that was written of the study before; an object that is among them keeps its number
    """
    others = [output.number for output in _in_series(written, known)]
    return _with_number(written, max([int(written.dataset.InstanceNumber), *(1 + number for number in others)]), known)


def first_of_series(written: Written, known: Collection[OutputObject]) -> Written | None:
    """Return a copy of a text that replaces another report, numbered below all others of its series; else None.

    OHIF 3.13.2 takes the last report of a series to decide whether boxes are drawn or a text is shown; but the text it
    then shows is that of the first, such as a finding that a reader has taken back.

    known: as for `numbered`, which the text has been; a copy that is among them keeps its number
    """
    others = [output.number for output in _in_series(written, known)]
    if written.template != TEXT or not others:
        return None
    dataset = copy.deepcopy(written.dataset)
    dataset.SOPInstanceUID = derive_uid("first of its series", str(dataset.SOPInstanceUID))
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    made = replace(written, dataset=dataset)
    _with_number(made, min(others) - 1, known)
    return made


def replace_what_all_have(written: Written, earlier: Iterable[OutputObject], receivers: Collection[str]) -> None:
    """Leave only those predecessors in a report that all its receivers have, or may have.

    earlier: the reports that it may replace, with their receivers
    """
    had = {output.sop_instance_uid for output in earlier if set(receivers) <= set(output.receivers)}
    document.keep_predecessors(written.dataset, had)


def _in_series(written: Written, known: Collection[OutputObject]) -> Iterator[OutputObject]:
    """Yield the other objects of its series."""
    dataset = written.dataset
    for output in known:
        is_other = output.sop_instance_uid != dataset.SOPInstanceUID
        if is_other and output.series_instance_uid == dataset.SeriesInstanceUID:
            yield output


def _with_number(written: Written, number: int, known: Collection[OutputObject]) -> OutputObject:
    """Number an object, unless it has a number already, and return its reference."""
    uid = written.dataset.SOPInstanceUID
    same = next((output.number for output in known if output.sop_instance_uid == uid), None)
    written.dataset.InstanceNumber = number if same is None else same
    return output_of(written)


def written_on(
    rounds: Iterable[RoundMark], *, related: Collection[str], known: Collection[str]
) -> tuple[tuple[OutputObject, ...], ...]:
    """Return the outputs on a part of a study of each round that wrote any on the study, oldest first.

    related: the films of the part, and those that a note rejects but that are of the same patient and accession number
    known: all films of the study that the node has
    """
    strangers = set(known).difference(related)

    def is_own(output: OutputObject, mark: RoundMark) -> bool:
        film = output.subject.film
        about = {film} if film in known else mark.films_beside(output)
        return not about.isdisjoint(related) or about.isdisjoint(strangers)

    return tuple(tuple(output for output in mark.outputs if is_own(output, mark)) for mark in rounds if mark.outputs)
