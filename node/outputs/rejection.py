"""Writes rejection notes for the node's own objects: Key Object Selection Documents (PS3.3 A.35.4, IHE RAD-66).

The node writes one if an archive rejected the films, or if a film comes again with another Patient ID, issuer or
accession number: its earlier objects are void, and the note has the identity under which the archive has them. Its
title is 113037, Rejected for Patient Safety Reasons: objects that name another patient must not be used (IHE RAD TF-2
4.66, PS3.16 CID 7010). 113001 is about quality and leaves an object usable; 113038 means a wrong modality worklist
entry, which a header does not show; 113039 is about age alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain, groupby
from typing import Final
from zoneinfo import ZoneInfo

from highdicom.ko import KeyObjectSelection, KeyObjectSelectionDocument
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept
from pydicom.uid import UID, KeyObjectSelectionDocumentStorage

from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import Identity, OutputObject, Report, Subject
from node.output_kinds import MESSAGES, Written
from node.outputs import document, highdicom_gaps
from node.outputs.patient import best_described
from node.outputs.study_parts import divide
from node.store.rounds import RoundMark
from node.store.study_facts import StudyFacts

KIND: Final = "rejection"
"""The kind of these outputs; no setting names it: a destination gets the notes about its outputs."""

SOP_CLASS: Final[UID] = KeyObjectSelectionDocumentStorage
_SERIES_NUMBER: Final = 9990

ContentOf = Callable[[OutputObject], bytes | None]
"""Reads an earlier output; None if it is missing or damaged."""
_OTHER_IDENTITY: Final = TITLES["113037"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was written on a study before a round, and whom its films name now.

    facts, report: those of the round
    headers, identities: the header and the identity of each stored film, by SOP Instance UID
    nobodys: see `study_parts.divide`
    zone: the time zone of the site
    """

    facts: StudyFacts
    report: Report
    headers: Mapping[str, Dataset]
    identities: Mapping[str, Identity]
    nobodys: Collection[str]
    content_of: ContentOf
    zone: ZoneInfo


def own_notes(past: Past) -> Iterator[Written]:
    """Write the node's answer to each note that no earlier round has covered, if the node wrote about its films.

    A note about films of several patients or accession numbers gets an answer for each.
    """
    facts = past.facts
    written = [*(mark.outputs for mark in facts.rounds), *(answer.outputs for answer in facts.answers)]
    outputs = list({output.sop_instance_uid: output for output in chain.from_iterable(written)}.values())
    for note, films in facts.new_notes():
        named = set[OutputObject]()
        for alone in _by_part(note, past):
            about = outputs_about(alone.rejected & films, outputs, or_films(facts.rounds, past.content_of))
            if own := [output for output in about if output not in named]:
                named.update(own)
                yield from for_receivers(alone, own, past)


def _by_part(note: RejectionNote, past: Past) -> list[RejectionNote]:
    """Divide a note about films of several patients or accession numbers, with a header for each; others stay whole."""
    here = {uid: past.headers[uid] for uid in sorted(note.rejected) if uid in past.headers}
    parts = divide(past.report.study_uid, here, nobodys=past.nobodys).parts
    if len(parts) < 2:
        return [note]
    rest = note.rejected.difference(*(part.films for part in parts))
    return [
        replace(
            note,
            rejected=rest.union(part.films) if part is parts[0] else frozenset(part.films),
            header=best_described(here[uid] for uid in part.films),
        )
        for part in parts
    ]


def or_films(earlier: Sequence[RoundMark], content_of: ContentOf) -> ContentOf:
    """Return a reader of outputs; for a removed output about no single film, all films that it may be about."""
    of_study = ((mark, output) for mark in earlier for output in mark.outputs if not output.subject.film)
    films_of = {output: mark.films_beside(output) for mark, output in of_study}

    def read(output: OutputObject) -> bytes | None:
        content = content_of(output)
        if content is not None or output not in films_of:
            return content
        return " ".join(films_of[output]).encode()

    return read


def outputs_about(films: Iterable[str], outputs: Iterable[OutputObject], content_of: ContentOf) -> list[OutputObject]:
    """Return the DICOM outputs that refer to any of the films, each once, sorted by series.

    An output whose content was removed counts if it records its film.
    """
    uids = sorted(films)
    if not uids:
        return []
    named = re.compile(rb"(?<![0-9.])(" + b"|".join(re.escape(uid.encode()) for uid in uids) + rb")(?![0-9.])")
    objects = (output for output in outputs if output.kind != KIND and output.kind not in MESSAGES)
    candidates = {output.sop_instance_uid: output for output in objects}.values()
    found = [output for output in candidates if output.subject.film in uids or named.search(content_of(output) or b"")]
    return sorted(found, key=lambda output: (output.series_instance_uid, output.sop_instance_uid))


def for_receivers(note: RejectionNote, own: Iterable[OutputObject], past: Past) -> Iterator[Written]:
    """Write the notes that reject the node's own objects.

    Each names the objects that the same destinations have, or may have, and is sent to these. Unsent objects need none.
    """
    by_receivers: dict[tuple[str, ...], list[OutputObject]] = defaultdict(list)
    for output in own:
        by_receivers[output.receivers].append(output)
    for receivers, given in sorted(by_receivers.items()):
        if receivers:
            yield replace(write(note, given, past.report, zone=past.zone), receivers=receivers)


def write(note: RejectionNote, own: Sequence[OutputObject], report: Report, *, zone: ZoneInfo) -> Written:
    """Write the note that rejects the node's own objects, with title, patient and study of the note received.

    own: the result of `outputs_about`, not empty
    """
    title = Concept(note.title.value, note.title.scheme, note.title.meaning)
    evidence = [_evidence(report, output) for output in own]
    selection = KeyObjectSelection(title, evidence)
    highdicom_gaps.separate(selection[0])
    dataset: Dataset = KeyObjectSelectionDocument(
        evidence=evidence,
        content=selection,
        **document.begin(
            report,
            modality="KO",
            series_number=_SERIES_NUMBER,
            series_description=document.series_description("AI results rejected"),
            instance_number=1,
        ),
    )
    document.complete(dataset, report, note.header)
    dataset.ContentDate, dataset.ContentTime = document.local_time(dataset, report, zone)
    document.seal(dataset, report, sources=sorted(output.sop_instance_uid for output in own), zone=zone)
    voids = tuple(output.sop_instance_uid for output in own)
    return Written(kind=KIND, dataset=dataset, subject=Subject(), voids=voids)


def _evidence(report: Report, output: OutputObject) -> Dataset:
    """Return a reference to an object of the node for highdicom; an object with a size is referenced as an image."""
    evidence = document.evidence_of(report, output)
    if output.kind == "sc":
        evidence.Rows = evidence.Columns = None
    return evidence


def is_ended(output: OutputObject, films: Iterable[str], identities: Mapping[str, Identity]) -> bool:
    """Whether the patient or request of one of these films contradicts those of the output.

    identities: the current identity of each film, by SOP Instance UID
    """
    return any(film in identities and output.identity.contradicts(identities[film]) for film in films)


def identity_notes(past: Past, *, written: Collection[OutputObject]) -> Iterator[Written]:
    """Write a note for each identity with void objects, about these objects.

    written: outputs of this round, notes included: repeated objects are not void, rejected ones have a note already
    """
    open_ = _not_void(past.facts, written)
    read = or_films(past.facts.rounds, past.content_of)
    found: dict[str, OutputObject] = {}
    for film, identity in past.identities.items():
        candidates = [output for output in open_ if output.identity.contradicts(identity)]
        for output in outputs_about([film], candidates, read):
            found[output.sop_instance_uid] = output
    for _, group in groupby(sorted(found.values(), key=_place), key=lambda output: output.identity):
        own = list(group)
        films = frozenset(output.subject.film for output in own)
        note = RejectionNote(title=_OTHER_IDENTITY, rejected=films, header=_header(own, past.content_of))
        yield from for_receivers(note, own, past)


def _not_void(facts: StudyFacts, written: Iterable[OutputObject]) -> list[OutputObject]:
    """Return the outputs of earlier rounds and of answers without a note, each in its last version."""
    now = list(written)
    earlier = [*chain.from_iterable(mark.outputs for mark in facts.rounds)]
    void = {uid for output in (*earlier, *now) for uid in output.voids}
    void.update(output.sop_instance_uid for output in now)
    answers = chain.from_iterable(answer.outputs for answer in facts.answers)
    newest = {output.sop_instance_uid: output for output in (*earlier, *answers)}
    return [output for uid, output in newest.items() if uid not in void]


def _place(output: OutputObject) -> tuple[str, ...]:
    """Return the sort key of outputs: their identity, then the order in a note."""
    who = output.identity
    said = (who.number, who.issuer, *who.names, "", *who.born, "", who.accession)
    return (*said, output.series_instance_uid, output.sop_instance_uid)


def _header(own: Iterable[OutputObject], content_of: ContentOf) -> Dataset:
    """Return the objects' patient and study, as an archive has them; empty if all objects have been removed."""
    contents = filter(None, map(content_of, own))
    headers = [dcmread(BytesIO(content), stop_before_pixels=True) for content in contents]
    return best_described(headers) if headers else Dataset()
