"""Takes back the newest messages of a kind: void ones, and the parts that a replacement lacks.

A message is void if an archive has rejected all of its films, or if one of them has another patient or request now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from node.domain import Identity, OutputObject, derive_uid
from node.outputs.messages import Place, SentMessage, writer_of
from node.outputs.rejection import Past, is_ended
from node.store.study_facts import rejected_by


def withdraw(
    kind: str, past: Past, *, new: Iterable[tuple[OutputObject, bytes]]
) -> Iterator[tuple[OutputObject, bytes]]:
    """Yield what takes back the newest messages of a kind: a void one, or the parts that its replacement lacks.

    A message whose content was removed with its study is not withdrawn.
    new: the messages of this round; one replaces an earlier one whose patient and accession number agree, and the
    issuers in the headers of their films; a missing value agrees with any
    """
    facts, report = past.facts, past.report
    writer, rejected = writer_of(kind), rejected_by(facts.notes.values())
    sent = [output for mark in facts.rounds for output in mark.outputs if output.kind == kind]
    places = [(made, message.place, content) for made, content in new if (message := writer.read(content)) is not None]
    seen: set[str] = set()
    for output in reversed(sent):
        content = past.content_of(output)
        message = None if content is None else writer.read(content)
        if content is None or message is None:
            continue
        is_newest = seen.isdisjoint(message.films)
        seen |= message.films
        instead = [
            other
            for made, place, other in places
            if _is_same(message.place, place) and _agree(output.identity.issuer, made.identity.issuer)
        ]
        is_void = _is_void(output, message, rejected, past.identities)
        if not is_newest or message.is_withdrawal or not (is_void or instead):
            continue
        uid = report.object_uid(derive_uid("withdrawal", output.sop_instance_uid))
        if (withdrawal := writer.withdrawn(content, uid, report.created_at.astimezone(past.zone), instead)) is not None:
            voids = () if instead else (output.sop_instance_uid,)
            yield replace(output, sop_instance_uid=uid, voids=voids), withdrawal


def _is_void(
    output: OutputObject, message: SentMessage, rejected: frozenset[str], identities: Mapping[str, Identity]
) -> bool:
    films = message.films
    return bool(films) and (films.issubset(rejected) or is_ended(output, films, identities))


def _is_same(earlier: Place, later: Place) -> bool:
    """Whether a message replaces an earlier one; a film or an order may have added what was missing."""
    return earlier[0] == later[0] and all(map(_agree, earlier[1:], later[1:]))


def _agree(before: str, after: str) -> bool:
    return before == after or "" in (before, after)
