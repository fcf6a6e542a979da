"""The report of a study: a round's answers to its films, divided by patient and accession number. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from node.domain import CRITICAL, ROUTINE, Film, Identity, ModelIdentity, OutputPriority, Reason, Report
from node.hl7.order import Patient
from node.outputs import impression, writers
from node.outputs.corrected_film import correct, sides_of
from node.outputs.patient import best_described, noted, said_of_request
from node.outputs.source import Source, from_files
from node.outputs.study_parts import Division, divide, patients_of, related, without_nobodys
from node.prompt_set import PromptSet
from node.read.decoding import Thumbnail
from node.rounds.films import RoundFilms
from node.rounds.round_plan import Round
from node.store.received import sop_instance_uid_of
from node.store.study_facts import StudyFacts

_PARKED: Final = (Reason.DAMAGED, Reason.INTERRUPTED, Reason.READER_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPart:
    """The answers to the films of one patient and one accession number.

    headers, files, thumbnails: those of every film of the report, by SOP Instance UID; thumbnails: see `RoundFilms`
    identity: whom and which request the films name
    patients: who the patient is, by all numbers that the films name
    is_only_number: whether no other part is of this patient
    """

    report: Report
    headers: Mapping[str, Dataset]
    files: Mapping[str, Path]
    thumbnails: Mapping[str, Thumbnail]
    identity: Identity
    patients: frozenset[Patient]
    is_only_number: bool

    @property
    def sources(self) -> dict[str, Source]:
        """Every film as writers get it."""
        return from_files(self.headers, self.files, self.thumbnails)

    @property
    def accession(self) -> str:
        """The films' accession number; "" if they have none."""
        return said_of_request(best_described(self.headers.values()), "AccessionNumber")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of a round.

    report: the report on all films of the round; outputs are written for each of its parts
    parts: its parts, one or several; none if the report has no film
    headers: those of all films, rejected ones included, by SOP Instance UID
    identities: those of all these films
    parked: file names of the parked films, with the reason
    nobodys: see `study_parts.divide`
    """

    report: Report
    parts: tuple[AnsweredPart, ...]
    headers: Mapping[str, Dataset]
    identities: Mapping[str, Identity]
    parked: Mapping[str, Reason]
    nobodys: Collection[str]


def priority_of(report: Report) -> OutputPriority:
    """Return the priority of the outputs of a report."""
    return CRITICAL if impression.critical_films(report) else ROUTINE


def answers_of(
    plan: Round,
    facts: StudyFacts,
    films: RoundFilms,
    *,
    model: ModelIdentity,
    prompts: PromptSet,
    has_ratio: bool,
    nobodys: Collection[str],
) -> Answers:
    """Make the report of a round, with each film as readers have corrected it.

    A damaged film is in the report if the study has an undamaged film, whose header names the patient.
    facts: `known_to` the round; has_ratio: see `pipeline.Pipeline`; nobodys: see `study_parts.divide`
    """
    received = without_nobodys(films.headers, nobodys)
    headers = {film.source: received[file] for file, film in films.answers.items() if file in received}
    if all(film.reason is Reason.DAMAGED for film in films.answers.values()):
        headers = {}
    division = divide(facts.uid, headers, nobodys=nobodys)
    clear = [
        _corrected(film if has_ratio else replace(film, ratio=None), headers[film.source], facts, prompts)
        for film in films.answers.values()
        if film.source in headers and film.source not in division.unclear
    ]
    report = writers.make_report(
        facts.uid,
        clear,
        model=model,
        prompts=prompts,
        created_at=plan.created_at,
        earlier=tuple(mark.outputs for mark in facts.rounds if mark.outputs),
    )
    headers |= {sop_instance_uid_of(file): header for file, header in received.items() if file not in films.answers}
    unclear = {file: Reason.PATIENT_UNCLEAR for file, film in films.answers.items() if film.source in division.unclear}
    parked = {file: film.reason for file, film in films.answers.items() if film.reason in _PARKED}
    whole = divide(facts.uid, headers, nobodys=nobodys)
    return Answers(
        report=report,
        parts=tuple(_parts(facts, films, report, division, headers, whole)),
        headers=headers,
        identities=whole.identities,
        parked=unclear | parked,
        nobodys=nobodys,
    )


def _corrected(film: Film, header: Dataset, facts: StudyFacts, prompts: PromptSet) -> Film:
    """Return the answer to a film as readers have corrected it."""
    wanted = noted(film, header)
    if not facts.corrections:
        return wanted
    return correct(wanted, facts.corrections, prompts=prompts, side_of=sides_of(film, header))


def _parts(
    facts: StudyFacts,
    films: RoundFilms,
    report: Report,
    division: Division,
    headers: Mapping[str, Dataset],
    whole: Division,
) -> Iterator[AnsweredPart]:
    """Yield the parts of a report; headers, whole: those of all films, rejected ones included."""
    files = {film.source: file for file, film in films.answers.items()}
    paths = {uid: facts.folder / file for uid, file in files.items()}
    numbers = Counter(part.patient for part in division.parts)
    for part in division.parts:
        own = {uid: headers[uid] for uid in part.films}
        earlier = writers.written_on(facts.rounds, related=related(whole, part.films), known=headers)
        yield AnsweredPart(
            report=writers.report_on(part, report, earlier=earlier),
            headers=own,
            files={uid: paths[uid] for uid in own},
            thumbnails={uid: films.thumbnails[files[uid]] for uid in own if files[uid] in films.thumbnails},
            identity=part.identity,
            patients=patients_of(own.values()),
            is_only_number=numbers[part.patient] == 1,
        )
