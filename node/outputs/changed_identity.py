"""Find and reject what was written for another patient or request than its films name by now. Pure.

A film comes again with its header corrected: another Patient ID, another issuer, another accession number. What the
node wrote about it before is void: a rejection note says so under the identity under which the archive has it. Its
title is 113037, Rejected for Patient Safety Reasons: nobody may use objects that name another patient (IHE RAD TF-2
4.66, PS3.16 CID 7010). 113001 is about quality and leaves an object usable; 113038 says that a modality's worklist
entry was wrong, which a header does not tell; 113039 is about age alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BytesIO
from itertools import chain, groupby
from typing import Final
from zoneinfo import ZoneInfo

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import Identity, OutputObject, Report
from node.outputs import rejection
from node.outputs.kinds import Written
from node.outputs.patient import best_described
from node.outputs.rejection import ContentOf
from node.store.study_facts import StudyFacts

TITLE: Final = TITLES["113037"]


def is_ended(output: OutputObject, films: Iterable[str], identities: Mapping[str, Identity]) -> bool:
    """Say whether an output was written for another patient or request than one of its films names by now.

    identities: of films, by SOP Instance UID
    """
    return any(film in identities and output.identity.contradicts(identities[film]) for film in films)


def notes(
    facts: StudyFacts,
    report: Report,
    *,
    identities: Mapping[str, Identity],
    written: Collection[OutputObject],
    content_of: ContentOf,
    zone: ZoneInfo,
) -> Iterator[Written]:
    """Write a note for each identity whose objects are void by now, about these objects.

    facts: those that the round knows
    identities: of all films, by SOP Instance UID
    written: the outputs of this round, notes included: what they repeat is not void, what they void is noted already
    """
    open_ = _not_void(facts, written)
    read = rejection.or_films(facts.rounds, content_of)
    found: dict[str, OutputObject] = {}
    for film, identity in identities.items():
        candidates = [output for output in open_ if output.identity.contradicts(identity)]
        for output in rejection.outputs_about([film], candidates, read):
            found[output.sop_instance_uid] = output
    for _, group in groupby(sorted(found.values(), key=_place), key=lambda output: output.identity):
        own = list(group)
        films = frozenset(output.subject.film for output in own)
        note = RejectionNote(title=TITLE, rejected=films, header=_header(own, content_of))
        yield from rejection.for_receivers(note, own, report, zone=zone)


def _not_void(facts: StudyFacts, written: Iterable[OutputObject]) -> list[OutputObject]:
    """Return the outputs of earlier rounds and of answers that no note has named, each as it was written last."""
    now = list(written)
    earlier = [*chain.from_iterable(mark.outputs for mark in facts.rounds)]
    void = {uid for output in (*earlier, *now) for uid in output.voids}
    void.update(output.sop_instance_uid for output in now)
    answers = chain.from_iterable(answer.outputs for answer in facts.answers)
    newest = {output.sop_instance_uid: output for output in (*earlier, *answers)}
    return [output for uid, output in newest.items() if uid not in void]


def _place(output: OutputObject) -> tuple[str, ...]:
    """Sort outputs by identity, then as a note names them."""
    who = output.identity
    said = (who.number, who.issuer, *who.names, "", *who.born, "", who.accession)
    return (*said, output.series_instance_uid, output.sop_instance_uid)


def _header(own: Iterable[OutputObject], content_of: ContentOf) -> Dataset:
    """Return whom and which study the objects name, as an archive has them; nobody if all have left the disk."""
    contents = filter(None, map(content_of, own))
    headers = [dcmread(BytesIO(content), stop_before_pixels=True) for content in contents]
    return best_described(headers) if headers else Dataset()
