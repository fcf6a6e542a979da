"""The table of writers, and the making of the report that they write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.uid import UID

from node.dicom import attributes
from node.domain import Film, ModelIdentity, OutputObject, PromptSet, Report, derive_uid
from node.outputs import document, gsps, secondary_capture
from node.outputs.source import Source
from node.outputs.sr import report as sr

Writer = Callable[[Report, Mapping[str, Source], ZoneInfo], list[Dataset]]
HeaderWriter = Callable[[Report, Mapping[str, Dataset], ZoneInfo], list[Dataset]]


def _of_headers(write: HeaderWriter) -> Writer:
    """Return the writer of a kind that needs no picture."""
    return lambda report, sources, zone: write(report, {uid: source.header for uid, source in sources.items()}, zone)


WRITERS: Final[Mapping[str, Writer]] = {
    "sr": _of_headers(sr.write),
    "gsps": gsps.write,
    "sc": secondary_capture.write,
}

SOP_CLASSES: Final[Mapping[str, UID]] = {
    "sr": sr.SOP_CLASS,
    "gsps": gsps.SOP_CLASS,
    "sc": secondary_capture.SOP_CLASS,
}
"""The SOP class that an archive must accept to receive objects of a kind."""

_DRAWN: Final = frozenset(("gsps", "sc"))
"""The kinds whose objects say something of one film alone, and need its picture."""


def make_report(
    study_uid: str,
    films: Iterable[Film],
    *,
    model: ModelIdentity,
    prompts: PromptSet,
    created_at: datetime,
    predecessors: tuple[OutputObject, ...] = (),
    earlier: tuple[tuple[str, ...], ...] = (),
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
        predecessors=predecessors,
        earlier=earlier,
    )


def write_objects(
    report: Report, sources: Mapping[str, Source], *, zone: ZoneInfo, kinds: Collection[str]
) -> Iterator[tuple[str, Dataset]]:
    """Write every object of the wanted kinds for one report.

    What needs pictures is written last and film by film, so that each film is decoded at most once.
    """
    if not report.films:
        return
    named = {uid: replace(source, header=_with_series(source.header)) for uid, source in sources.items()}
    drawn = [kind for kind in kinds if kind in _DRAWN]
    for kind in kinds:
        if kind not in _DRAWN:
            yield from ((kind, dataset) for dataset in WRITERS[kind](report, named, zone))
    for film in report.films if drawn else ():
        alone = replace(report, films=(film,))
        for kind in drawn:
            yield from ((kind, dataset) for dataset in WRITERS[kind](alone, named, zone))


def _with_series(header: Dataset) -> Dataset:
    """Derive a series UID for a film without it, because a reference to the film needs a series UID (PS3.3 10.8)."""
    if attributes.text(header, "SeriesInstanceUID"):
        return header
    named = copy.copy(header)
    # Added as a new element, because reading the value of the old element may raise an error.
    named.add_new("SeriesInstanceUID", "UI", derive_uid("series of", str(header.SOPInstanceUID)))
    return named


def output_of(kind: str, dataset: Dataset) -> OutputObject:
    """Return the reference of a written object."""
    return OutputObject(
        kind=kind,
        study_uid=str(dataset.StudyInstanceUID),
        sop_class_uid=str(dataset.SOPClassUID),
        sop_instance_uid=str(dataset.SOPInstanceUID),
        series_instance_uid=str(dataset.SeriesInstanceUID),
        film=document.film_of(dataset),
    )
