"""Process one study from received files to stored outputs; every call may be repeated.

`node.read.film` answers one file. `Pipeline` takes the files from the spool and stores the answers there, so that
workflows pass only UIDs, file names and small numbers. A film that has been read is not read again: its reading is
stored under a key that changes with the film's bytes, the model, the prompt set and the program version.

A film is answered with a reason and parked if its stored bytes are damaged, or if the process ended several times while
reading it. No round covers a parked film, so it is read after it was received again or after `retry`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node.dicom import header_reading
from node.dicom.identity import VERSION
from node.dicom.rejection_note import RejectionNote
from node.domain import (
    CRITICAL,
    MESSAGE_KIND,
    NO_PART,
    ROUTINE,
    Film,
    JsonObject,
    OutputObject,
    Reason,
    Report,
    derive_uid,
)
from node.errors import GiveUp, Undecodable, is_of_file
from node.hl7.order import Order, Priority
from node.hl7.patient import Patient
from node.orders.store import OrderStore
from node.outputs import document, impression, oru, patient_update, rejection, report_json, writers
from node.outputs.corrected_film import correct, sides_of
from node.outputs.film_headers import FilmHeaders
from node.outputs.parts import Division, divide, patients_of, related
from node.outputs.patient import best_described, noted, said_of_request
from node.outputs.patient_update import Followed, StoredUpdate
from node.outputs.source import Source, from_files
from node.outputs.withdrawal import withdraw
from node.prompt_set import PromptSet
from node.read.film import Timed, answer_film, untimed
from node.read.model import Reader
from node.store import received, sent_answers
from node.store.correction import from_json
from node.store.received import sop_instance_uid_of
from node.store.rounds import RoundMark
from node.store.spool import Spool

_Written: TypeAlias = tuple[OutputObject, bytes]
_PARKED: Final = (Reason.DAMAGED, Reason.INTERRUPTED)

# Priorities of the executor's queue: 1 to 2^31 - 1, lowest first. Counting seconds from 2025, they last until 2093.
_FIRST, _LAST = 1, 2**31 - 1
_EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC).timestamp()

CRITICAL_SECONDS: Final = 86400.0
"""A critical output goes before all for the same destination that were written up to so many seconds earlier."""

MOST_INTERRUPTIONS: Final = 4
"""How often the process may end while it reads one film, or writes the outputs of one study; then that is parked.

All but the first time the film was read alone: what is in hand beside a film that ends the process is never parked.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A study that waits to be read.

    arrived_at: when its oldest unread film was received
    is_stat: whether a sender, a caller's setting or an order gives it priority
    """

    arrived_at: datetime
    is_stat: bool


def queue_place(study: Waiting, *, stat_seconds: float) -> int:
    """Return a study's place in the queue, 1 to 2^31 - 1; the lowest place is read first.

    The place is the second in which the study's oldest unread film arrived, so it stays the same when more films come.
    A stat study is placed as if it had arrived `stat_seconds` earlier: so no later study overtakes a study that has
    waited that long. Among stat studies, and among the others, the study that arrived first is read first.
    """
    return _place(study.arrived_at.timestamp(), head_start_seconds=stat_seconds if study.is_stat else 0.0)


def delivery_place(written_at: float, priority: str) -> int:
    """Return the place of a delivery in the queue of its destination, 1 to 2^31 - 1; the lowest place is sent first.

    The place is the second in which the output was written, so it stays the same when the delivery is queued again. A
    critical output is placed `CRITICAL_SECONDS` earlier: so no later output overtakes one that has waited that long.
    written_at: seconds since the epoch
    """
    return _place(written_at, head_start_seconds=CRITICAL_SECONDS if priority == CRITICAL else 0.0)


def _place(moment: float, *, head_start_seconds: float) -> int:
    return min(max(math.floor(moment - _EPOCH) - math.floor(head_start_seconds), _FIRST), _LAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round over a study: the files it covers, and when it began. Fixed once, in a checkpointed step.

    corrections: ids of the corrections, and of the updates of patients, that its answers follow
    """

    study_uid: str
    number: int
    files: tuple[str, ...]
    created_at: datetime
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of a round.

    report: on all films of the round; outputs are written for each of its parts
    parts: its parts, one or several; none if the report has no film
    headers: of all films, also of those that a note rejects, by SOP Instance UID
    parked: file names of the parked films, with the reason
    """

    report: Report
    parts: tuple[AnsweredPart, ...]
    headers: Mapping[str, Dataset]
    parked: Mapping[str, Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPart:
    """The answers to the films of one patient and one accession number.

    sources: every film of the report, by SOP Instance UID
    patients: who the patient is, by all numbers that the films and the updates which they follow name
    is_only_number: whether no other part is of this patient
    """

    report: Report
    sources: Mapping[str, Source]
    patients: frozenset[Patient]
    is_only_number: bool

    @property
    def headers(self) -> dict[str, Dataset]:
        """The header of each film."""
        return {uid: source.header for uid, source in self.sources.items()}

    @property
    def accession(self) -> str:
        """What the films say of their accession number, "" if nothing."""
        return said_of_request(best_described(self.headers.values()), "AccessionNumber")

    @property
    def priority(self) -> str:
        """Of its outputs."""
        return CRITICAL if impression.critical_films(self.report) else ROUTINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outputs that a round wrote, and the films that they are about.

    parked: as in `Answers`; parts: as in `RoundMark`
    unmatched: how many messages lack order numbers, because the order is not known to be for their patient
    """

    outputs: tuple[OutputObject, ...]
    films: tuple[Film, ...]
    parked: Mapping[str, Reason]
    parts: tuple[tuple[str, ...], ...] = ()
    unmatched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The steps of a round, on the spool. Each may be repeated after a crash.

    kinds: the kinds of outputs to write
    has_ratio: whether outputs have the cardiothoracic ratio of a film
    on_read: called with every film that the network has read, and its header
    """

    spool: Spool
    orders: OrderStore
    reader: Reader
    prompts: PromptSet
    zone: ZoneInfo
    kinds: tuple[str, ...]
    has_ratio: bool = True
    timed: Timed = untimed
    on_read: Callable[[Film, Dataset], None] = lambda _film, _header: None

    def waiting(self, study_uid: str) -> Waiting:
        """Return since when a study has a film that no finished round covers, and whether the study is stat."""
        unread = self.spool.unread(study_uid)
        return Waiting(
            arrived_at=min((instance.received_at for instance in unread), default=datetime.now(UTC)),
            is_stat=self.spool.is_stat(study_uid)
            or any(self._is_ordered_stat(study_uid, instance.path.name) for instance in unread),
        )

    def plan(self, study_uid: str) -> Round | None:
        """Fix the files of the next round; None when no file is unread."""
        if not self.spool.has_unread(study_uid):
            return None
        instances = self.spool.study(study_uid).instances
        return Round(
            study_uid=study_uid,
            number=max((mark.number for mark in self.spool.rounds(study_uid)), default=0) + 1,
            files=tuple(instance.path.name for instance in instances),
            created_at=datetime.now(UTC).replace(microsecond=0),
            corrections=tuple(
                str(content["id"])
                for kind in ("corrections", "patients")
                for content in self.spool.documents(study_uid, kind)
            ),
        )

    def read(self, study_uid: str, file: str) -> str:
        """Answer one file and store the answer.

        Returns `read`, the reason why the film was not read, or `left:` and the reason for an object without an answer.
        """
        if self.is_rejected(study_uid, sop_instance_uid_of(file)):
            return "left:rejected"
        film, left = self._film(study_uid, file)
        if film is None:
            return f"left:{left}"
        return "read" if film.reason is None else str(film.reason)

    def is_rejected(self, study_uid: str, film: str) -> bool:
        """Say whether a note in the study rejects a film; film: its SOP Instance UID."""
        files = [instance.path.name for instance in self.spool.study(study_uid).instances]
        return film in rejection.rejected_by(self._notes(study_uid, files))

    def answers(self, plan: Round) -> Answers:
        """Collect the answers of a round, and the header of each film; its picture is decoded if a writer asks for it.

        Reads a film again if its answer came from another model or program version, as after an upgrade. A damaged film
        is in the report if the study has an undamaged film, whose header tells the patient. A film that a rejection
        note rejects is not read, and is not in the report.
        """
        rejected = rejection.rejected_by(self._notes(plan.study_uid, plan.files))
        kept = [file for file in plan.files if sop_instance_uid_of(file) not in rejected]
        films = {file: film for file in kept if (film := self._film(plan.study_uid, file)[0]) is not None}
        film_headers = FilmHeaders(spool=self.spool, study_uid=plan.study_uid, updates=self._updates(plan))
        headers = {
            film.source: header
            for file, film in films.items()
            if (header := film_headers.of(file, is_damaged=film.reason is Reason.DAMAGED)) is not None
        }
        if all(film.reason is Reason.DAMAGED for film in films.values()):
            headers = {}
        division = divide(plan.study_uid, headers)
        clear = [film for film in films.values() if film.source in headers and film.source not in division.unclear]
        rounds = self._before(plan)
        report = writers.make_report(
            plan.study_uid,
            [self._corrected(plan, film, headers[film.source]) for film in clear],
            model=self.reader.identity,
            prompts=self.prompts,
            created_at=plan.created_at,
            earlier=tuple(mark.outputs for mark in rounds if mark.outputs),
        )
        headers |= {
            sop_instance_uid_of(file): header
            for file in plan.files
            if file not in kept and (header := film_headers.of_intact(file)) is not None
        }
        unclear = {file: Reason.PATIENT_UNCLEAR for file, film in films.items() if film.source in division.unclear}
        parked = {file: film.reason for file, film in films.items() if film.reason in _PARKED}
        return Answers(
            report=report,
            parts=tuple(self._parts(plan, report, division, headers)),
            headers=headers,
            parked=unclear | parked,
        )

    def _parts(
        self, plan: Round, report: Report, division: Division, headers: Mapping[str, Dataset]
    ) -> Iterator[AnsweredPart]:
        """Yield the parts of a report; headers: of all films, also of those that a note rejects."""
        whole, rounds, updates = divide(plan.study_uid, headers), self._before(plan), self._updates(plan)
        paths = {sop_instance_uid_of(file): self.spool.received_path(plan.study_uid, file) for file in plan.files}
        numbers = Counter(part.patient for part in division.parts)
        for part in division.parts:
            own = {uid: headers[uid] for uid in part.films}
            before = chain.from_iterable(
                patient_update.before(paths[uid], updates, character_set=self.spool.character_set) for uid in own
            )
            earlier = writers.written_on(rounds, related=related(whole, part.films), known=headers)
            yield AnsweredPart(
                report=writers.report_on(part, report, earlier=earlier),
                sources=from_files(own, paths),
                patients=patients_of(chain(own.values(), before)),
                is_only_number=numbers[part.patient] == 1,
            )

    def _before(self, plan: Round) -> list[RoundMark]:
        """Return the marks of the rounds before one."""
        return [mark for mark in self.spool.rounds(plan.study_uid) if mark.number < plan.number]

    def write(self, plan: Round) -> Written:
        """Write and store every output of a round; reports name those that they replace.

        Returns them in the order in which they are to be sent: reports on films with a critical finding first.
        """
        answers = self.answers(plan)
        critical = impression.critical_films(answers.report)
        outputs = []
        for output, content in self._counted(plan.study_uid, self._objects(plan, answers)):
            self._keep(output, content, answers.report)
            outputs.append(output)
        outputs.sort(key=lambda output: output.film not in critical)
        messages = answers.parts if MESSAGE_KIND in self.kinds else ()
        return Written(
            outputs=tuple(outputs),
            films=answers.report.films,
            parked=answers.parked,
            parts=tuple(tuple(part.sources) for part in answers.parts) if len(answers.parts) > 1 else (),
            unmatched=sum(self._is_unmatched(plan, part) for part in messages),
        )

    def rewrite(self, study_uid: str) -> None:
        """Write the missing or damaged outputs of finished rounds again, if the round still yields the same outputs.

        What was written then is written again, whatever destinations ask for by now.
        """
        for mark in self.spool.rounds(study_uid):
            lost = {output for output in mark.outputs if self.spool.output(output) is None}
            if not lost:
                continue
            files = (*mark.files, *mark.parked)
            plan = Round(
                study_uid=study_uid,
                number=mark.number,
                files=files,
                created_at=mark.created_at,
                corrections=mark.corrections,
            )
            made = self._objects(plan, self.answers(plan), instead_of=mark.outputs)
            for output, content in self._counted(study_uid, made):
                if output in lost:
                    self.spool.keep_output(output, content)

    def _counted(self, study_uid: str, objects: Iterator[_Written]) -> Iterator[_Written]:
        """Yield objects, counting that they are made, but not how long a disk or bucket takes to store them.

        Raises GiveUp if the process ended too often while they were made.
        """
        if self.spool.interrupted_writings(study_uid) >= MOST_INTERRUPTIONS:
            raise GiveUp(
                f"interrupted: the process ended {MOST_INTERRUPTIONS} times while the outputs of this study were being "
                "written; find the cause in the service's log, then retry"
            )
        while True:
            with self.spool.writing_outputs(study_uid):
                made = next(objects, None)
            if made is None:
                break
            yield made
        self.spool.end_writing(study_uid)

    def finish(
        self,
        plan: Round,
        outputs: Sequence[OutputObject],
        *,
        parked: Mapping[str, Reason],
        parts: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        """Mark a round as finished; parked, parts: as in `Written`; parked films stay unread."""
        mark = RoundMark(
            number=plan.number,
            created_at=plan.created_at,
            files=tuple(file for file in plan.files if file not in parked),
            outputs=tuple(outputs),
            parked={file: str(reason) for file, reason in parked.items()},
            corrections=plan.corrections,
            parts=parts,
        )
        self.spool.mark_round(plan.study_uid, mark)

    def _objects(
        self, plan: Round, answers: Answers, *, instead_of: Collection[OutputObject] | None = None
    ) -> Iterator[tuple[OutputObject, bytes]]:
        """Yield every output of a round with its content.

        instead_of: what the round wrote before; no other DICOM object is yielded, or named in its message
        """
        documents: list[OutputObject] = []
        messages: list[bytes] = []
        known = [*(instead_of or ()), *chain.from_iterable(mark.outputs for mark in self._before(plan))]
        wanted = self.kinds if instead_of is None else {output.kind for output in instead_of}
        for number, part in enumerate(answers.parts):
            for output, content in self._of_part(plan, part, wanted=wanted, instead_of=instead_of, known=known):
                documents.append(output)
                if output.kind == MESSAGE_KIND:
                    messages.append(content)
                yield replace(output, part=number, priority=part.priority), content
        priority = CRITICAL if impression.critical_films(answers.report) else ROUTINE
        for output, content in self._taken_back(
            plan, answers, documents, messages=messages if MESSAGE_KIND in wanted else None, known=known
        ):
            yield replace(output, part=NO_PART, priority=priority), content

    def _taken_back(
        self,
        plan: Round,
        answers: Answers,
        written: Collection[OutputObject],
        *,
        messages: Collection[bytes] | None,
        known: list[OutputObject],
    ) -> Iterator[tuple[OutputObject, bytes]]:
        """Yield what takes back outputs of earlier rounds: withdrawals of results, and rejection notes.

        written: the other outputs of this round; messages: those among them that are HL7, None if none are wanted
        """
        report, earlier, content_of, zone = answers.report, self._before(plan), self.spool.output, self.zone
        notes = self._notes(plan.study_uid, plan.files)
        if messages is not None:
            rejected = rejection.rejected_by(notes)
            yield from withdraw(earlier, report, rejected=rejected, instead=messages, content_of=content_of, zone=zone)
        sent = sent_answers.all_of(self.spool, plan.study_uid)
        followed = Followed(
            updates=self._updates(plan),
            earlier=earlier,
            answers=sent,
            header_of=self._unrejected(plan, notes),
            parts=[part.sources.keys() for part in answers.parts],
        )
        for dataset in (
            *rejection.own_notes(
                notes, report, earlier=earlier, answers=sent, headers=answers.headers, content_of=content_of, zone=zone
            ),
            *followed.notes(report, written=written, content_of=content_of, zone=zone),
        ):
            known.append(output := writers.numbered(rejection.KIND, dataset, known))
            yield output, document.save_bytes(dataset)

    def _of_part(
        self,
        plan: Round,
        part: AnsweredPart,
        *,
        wanted: Collection[str],
        instead_of: Collection[OutputObject] | None,
        known: list[OutputObject],
    ) -> Iterator[tuple[OutputObject, bytes]]:
        """Yield the objects on a part of a study, and its message last; instead_of: as in `_objects`."""
        documents = []
        kinds = [kind for kind in writers.OUTPUTS if kind in wanted]
        for kind, dataset in writers.write_objects(part.report, part.sources, zone=self.zone, kinds=kinds):
            output = writers.numbered(kind, dataset, known)
            known.append(output)
            if instead_of is None or output in instead_of:
                documents.append(output)
                yield output, document.save_bytes(dataset)
        if MESSAGE_KIND in wanted:
            order = self._order(plan, part)
            yield oru.write(part.report, part.headers, self.zone, order=order, documents=documents)

    def _order(self, plan: Round, part: AnsweredPart) -> Order | None:
        """Return the order that the message on a part answers; the same for each call of a round."""
        return self.orders.fix(
            study_uid=plan.study_uid,
            accession=part.accession,
            patients=part.patients,
            is_only_number=part.is_only_number,
            at=plan.created_at,
            part=part.report.part,
        )

    def _is_unmatched(self, plan: Round, part: AnsweredPart) -> bool:
        """Say whether there is an order that may be for a part of a study, and is not used."""
        is_known = self.orders.is_known(study_uid=plan.study_uid, accession=part.accession)
        return is_known and self._order(plan, part) is None

    def _updates(self, plan: Round) -> list[StoredUpdate]:
        """Return the updates of patients that a round follows."""
        return patient_update.from_json(self.spool.documents(plan.study_uid, "patients"), ids=plan.corrections)

    def _unrejected(self, plan: Round, notes: Mapping[str, RejectionNote]) -> Callable[[str], Dataset | None]:
        """Return what reads the received header of a film; None for one that a note rejects: its objects are noted."""
        rejected = rejection.rejected_by(notes)
        headers = FilmHeaders(spool=self.spool, study_uid=plan.study_uid)

        def header_of(file: str) -> Dataset | None:
            is_here = received.is_intact(self.spool.received_path(plan.study_uid, file))
            return headers.received(file) if is_here and sop_instance_uid_of(file) not in rejected else None

        return header_of

    def _notes(self, study_uid: str, files: Iterable[str]) -> dict[str, RejectionNote]:
        return rejection.notes_among(self.spool.received_path(study_uid, file) for file in files)

    def _is_ordered_stat(self, study_uid: str, file: str) -> bool:
        header = Dataset()
        try:
            path, character_set = self.spool.received_path(study_uid, file), self.spool.character_set
            header = header_reading.read_header(path, character_set=character_set)
        except Undecodable:
            pass
        except OSError as error:
            if not is_of_file(error):
                raise
        accession, patients = said_of_request(header, "AccessionNumber"), patients_of([header])
        order = self.orders.find(study_uid=study_uid, accession=accession, patients=patients)
        return order is not None and order.priority is not Priority.ROUTINE

    def _film(self, study_uid: str, file: str) -> tuple[Film | None, Reason | None]:
        """Return the stored or new answer to a received object, or the reason why it gets no answer."""
        source = sop_instance_uid_of(file)
        if not received.is_intact(self.spool.received_path(study_uid, file)):
            return Film(source=source, reason=Reason.DAMAGED), None
        key = self._key(file)
        kept = self.spool.reading(study_uid, key)
        if kept is not None:
            return report_json.film_from_json(kept), None
        if self.spool.interrupted_readings(study_uid, key) >= MOST_INTERRUPTIONS:
            return Film(source=source, reason=Reason.INTERRUPTED), None
        try:
            with self.spool.reading_film(study_uid, key):
                film, left = self._answer(study_uid, file)
        except OSError as error:
            if is_of_file(error):  # the file was damaged after the check above
                return Film(source=source, reason=Reason.DAMAGED), None
            raise
        if film is not None:
            self.spool.keep_reading(study_uid, key, {**report_json.film_to_json(film), **self._origin(file)})
        return film, left

    def _answer(self, study_uid: str, file: str) -> tuple[Film | None, Reason | None]:
        """Answer a received object, without looking for a stored answer."""
        try:
            path = self.spool.received_path(study_uid, file)
            character_set = self.spool.character_set
            answered = answer_film(path, self.reader, self.prompts, character_set=character_set, timed=self.timed)
        except Undecodable:
            return Film(source=sop_instance_uid_of(file), reason=Reason.UNDECODABLE), None
        if answered.film is None:
            return None, answered.reason
        if answered.film.is_read:
            self.on_read(answered.film, answered.dataset)
        return noted(answered.film, answered.dataset), answered.reason

    def _corrected(self, plan: Round, film: Film, header: Dataset) -> Film:
        """Return the answer to a film with the corrections of a round, and without its ratio if none is wanted."""
        wanted = noted(film if self.has_ratio else replace(film, ratio=None), header)
        if not plan.corrections:
            return wanted
        stored = [
            item for item in self.spool.documents(plan.study_uid, "corrections") if item["id"] in plan.corrections
        ]
        return correct(wanted, map(from_json, stored), prompts=self.prompts, side_of=sides_of(film, header))

    def _key(self, file: str) -> str:
        """Return the key of the reading of a file by this program version, model and prompt set.

        What was noted of its text depends on the character set of the site, too.
        """
        own = filter(None, (self.spool.character_set,))
        return derive_uid("reading", file, VERSION, *self.reader.identity.parts, self.prompts.sha256, *own)

    def _origin(self, file: str) -> JsonObject:
        """Describe a reading: its file, model, runtime, prompt set and program version."""
        model, prompts = self.reader.identity, self.prompts
        return {
            "file": file,
            "model": f"{model.name} {model.version}",
            "engine": model.engine,
            "prompts": prompts.title,
            "program": VERSION,
            "weights_sha256": model.weights_sha256,
            "manifest_sha256": model.manifest_sha256,
            "trusted": model.trusted,
            "prompts_sha256": prompts.sha256,
        }

    def _keep(self, output: OutputObject, content: bytes, report: Report) -> None:
        """Store an output, unless an earlier round wrote it: then it exists, or was removed after its delivery."""
        if not any(output.sop_instance_uid == known.sop_instance_uid for known in chain.from_iterable(report.earlier)):
            self.spool.keep_output(output, content)
