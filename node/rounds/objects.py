"""The outputs of a round, in the order in which they are written: those on each part of the study, then what they void.

Pure, but for the pictures of films and the content of earlier outputs, which are read if an output needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias
from zoneinfo import ZoneInfo

from node.domain import MESSAGE_KIND, NO_PART, OutputObject
from node.hl7.order import Order
from node.outputs import changed_identity, document, oru, rejection, writers
from node.outputs.batches import Batch, EncodedObject
from node.outputs.kinds import in_order
from node.outputs.rejection import ContentOf
from node.outputs.withdrawal import withdraw
from node.rounds.study_report import AnsweredPart, Answers, priority_of
from node.store.study_facts import StudyFacts

WrittenObject: TypeAlias = tuple[OutputObject, bytes]
Write: TypeAlias = Callable[[Batch], Iterable[EncodedObject]]


def objects_of(
    answers: Answers,
    facts: StudyFacts,
    *,
    kinds: Collection[str],
    instead_of: Collection[OutputObject] | None,
    destinations: Mapping[str, tuple[str, ...]],
    orders: Sequence[Order | None],
    content_of: ContentOf,
    zone: ZoneInfo,
    write: Write,
) -> Iterator[WrittenObject]:
    """Yield every output of a round with its content.

    facts: `known_to` the round
    instead_of: what the round wrote before; no other DICOM object is yielded, or named in its message
    destinations: the outputs that each destination gets, by name
    orders: the order that the message on each part answers
    write: writes a batch, here or in another process
    """
    documents: list[OutputObject] = []
    messages: list[WrittenObject] = []
    known = [*(instead_of or ()), *(output for mark in facts.rounds for output in mark.outputs)]
    for number, (part, order) in enumerate(zip(answers.parts, orders, strict=True)):
        written = _of_part(
            part,
            kinds=kinds,
            instead_of=instead_of,
            destinations=destinations,
            known=known,
            order=order,
            zone=zone,
            write=write,
        )
        for output, content in written:
            about = replace(output, part=number, priority=priority_of(part.report), identity=part.identity)
            documents.append(about)
            if output.kind == MESSAGE_KIND:
                messages.append((about, content))
            else:
                yield about, content
    report, identities = answers.report, answers.identities
    if MESSAGE_KIND in kinds:  # before the new results: a receiver may know both by the same order
        instead = [content for _, content in messages]
        for output, content in withdraw(
            facts, report, identities=identities, instead=instead, content_of=content_of, zone=zone
        ):
            yield replace(output, part=NO_PART, priority=priority_of(report)), content
    yield from messages
    ended = rejection.own_notes(
        facts, report, headers=answers.headers, nobodys=answers.nobodys, content_of=content_of, zone=zone
    )
    changed = changed_identity.notes(
        facts, report, identities=identities, written=documents, content_of=content_of, zone=zone
    )
    for note in chain(ended, changed):  # one after the other: the last looks at what those before it name
        known.append(output := writers.numbered(note, known))
        documents.append(output)
        yield replace(output, part=NO_PART, priority=priority_of(report)), document.save_bytes(note.dataset)


def _of_part(
    part: AnsweredPart,
    *,
    kinds: Collection[str],
    instead_of: Collection[OutputObject] | None,
    destinations: Mapping[str, tuple[str, ...]],
    known: list[OutputObject],
    order: Order | None,
    zone: ZoneInfo,
    write: Write,
) -> Iterator[WrittenObject]:
    """Yield the objects on a part of a study, and its message last; instead_of: as in `objects_of`."""
    documents = []
    own = [film.source for film in part.report.films]
    for report, wanted in writers.divided(part.report, in_order(kinds)):
        drawn = [film.source for film in report.films]
        batch = Batch(
            report=report,
            kinds=wanted,
            headers={uid: part.headers[uid] for uid in own},
            files=part.files,
            thumbnails={uid: part.thumbnails[uid] for uid in drawn if uid in part.thumbnails},
            zone=zone,
            known=tuple(known),
            wanted=None if instead_of is None else frozenset(instead_of),
            destinations=destinations,
        )
        for written in write(batch):
            known.append(written.output)
            if not written.content:
                continue
            if not written.is_copy:
                documents.append(written.output)
            yield written.output, written.content
    if MESSAGE_KIND in kinds:
        given = writers.with_receivers(documents, destinations)
        sent = [document for document in given if document.receivers or not destinations]
        yield oru.write(part.report, part.headers, zone, order=order, documents=sent)
