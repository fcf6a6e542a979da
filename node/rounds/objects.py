"""The outputs of a round, in the order in which they are written: those on each part of the study, then what they void.

Pure, but for the pictures of films and the content of earlier outputs, which are read if an output needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from zoneinfo import ZoneInfo

from node.domain import NO_PART, OutputObject
from node.hl7.order import Order
from node.output_kinds import in_order, messages_in
from node.outputs import document, messages, rejection, writers
from node.outputs.batches import Batch, EncodedObject
from node.outputs.rejection import ContentOf, Past
from node.rounds.study_report import AnsweredPart, Answers, priority_of
from node.store.study_facts import StudyFacts

WrittenObject: TypeAlias = tuple[OutputObject, bytes]
Write: TypeAlias = Callable[[Batch], Iterable[EncodedObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which outputs of a round are to be made.

    orders: the order that the message on each part answers
    destinations: the outputs that each destination gets, by name
    instead_of: outputs of an earlier run of the round: no other DICOM object is made or named; None: all are made
    """

    kinds: Collection[str]
    orders: Sequence[Order | None]
    destinations: Mapping[str, tuple[str, ...]]
    zone: ZoneInfo
    instead_of: Collection[OutputObject] | None = None


def objects_of(
    answers: Answers, facts: StudyFacts, wanted: Wanted, *, content_of: ContentOf, write: Write
) -> Iterator[WrittenObject]:
    """Yield every output of a round with its content: only one of them, or those of a film, are in memory at a time.

    facts: `known_to` the round
    write: writes a batch, here or in another process
    """
    known = [*(wanted.instead_of or ()), *(output for mark in facts.rounds for output in mark.outputs)]
    written: list[OutputObject] = []
    new: list[WrittenObject] = []
    for number, part in enumerate(answers.parts):
        named: list[OutputObject] = []
        for batch in _batches(part, wanted):
            for made in write(replace(batch, known=tuple(known))):
                known.append(made.output)
                if made.content:
                    output = _on_part(made.output, part, number)
                    written.append(output)
                    named += () if made.is_copy else (output,)
                    yield output, made.content
        for output, content in _messages_on(part, wanted, order=wanted.orders[number], documents=named):
            new.append((_on_part(output, part, number), content))
    written += [output for output, _ in new]
    past = Past(
        facts=facts,
        report=answers.report,
        headers=answers.headers,
        identities=answers.identities,
        nobodys=answers.nobodys,
        content_of=content_of,
        zone=wanted.zone,
    )
    for kind in messages_in(wanted.kinds):  # before the new results: a receiver may know both by the same order
        of_kind = [(output, content) for output, content in new if output.kind == kind]
        for output, content in messages.withdraw(kind, past, new=of_kind):
            yield _on_study(output, answers), content
    yield from new
    for note in rejection.own_notes(past):
        known.append(output := writers.numbered(note, known))
        written.append(output)
        yield _on_study(output, answers), document.save_bytes(note.dataset)
    for note in rejection.identity_notes(past, written=tuple(written)):
        known.append(output := writers.numbered(note, known))
        yield _on_study(output, answers), document.save_bytes(note.dataset)


def _batches(part: AnsweredPart, wanted: Wanted) -> Iterator[Batch]:
    """Yield what is to be written of the DICOM objects on a part of a study, without what is known by then."""
    own = [film.source for film in part.report.films]
    for report, kinds in writers.divided(part.report, in_order(wanted.kinds)):
        drawn = [film.source for film in report.films]
        yield Batch(
            report=report,
            kinds=kinds,
            headers={uid: part.headers[uid] for uid in own},
            files=part.files,
            thumbnails={uid: part.thumbnails[uid] for uid in drawn if uid in part.thumbnails},
            zone=wanted.zone,
            known=(),
            wanted=None if wanted.instead_of is None else frozenset(wanted.instead_of),
            destinations=wanted.destinations,
        )


def _messages_on(
    part: AnsweredPart, wanted: Wanted, *, order: Order | None, documents: Iterable[OutputObject]
) -> Iterator[WrittenObject]:
    """Yield the messages on a part, which name those of its documents that a destination gets."""
    given = writers.with_receivers(documents, wanted.destinations)
    sent = [output for output in given if output.receivers or not wanted.destinations]
    for kind in messages_in(wanted.kinds):
        write = messages.writer_of(kind).write
        yield write(part.report, part.headers, wanted.zone, order, sent)


def _on_part(output: OutputObject, part: AnsweredPart, number: int) -> OutputObject:
    return replace(output, part=number, priority=priority_of(part.report), identity=part.identity)


def _on_study(output: OutputObject, answers: Answers) -> OutputObject:
    return replace(output, part=NO_PART, priority=priority_of(answers.report))
