"""The worklist, and the details of one study, from spool and ledger.

Nothing here holds a patient's name or another identity than UIDs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydicom.dataset import Dataset

from node import log
from node.dicom import header_reading
from node.domain import Film, JsonObject, Reason
from node.errors import OtherForm, Undecodable
from node.jobs import gathering
from node.jobs.answered_film import newest_reading
from node.outputs import ratio_text, report_json, vocabulary, wording
from node.outputs.corrected_film import correct, sides_of
from node.outputs.patient import name_different
from node.prompt_set import PromptSet
from node.store import ledger_queries
from node.store.ledger_queries import DeliveryRow, StudyRow
from node.store.questions import objects_of
from node.store.received import Instance, answer_in
from node.store.rounds import coverage
from node.store.spool import Spool
from node.store.study_facts import FilmRejection, elsewhere, rejections_of
from node.store.tables import TAKEN
from node.store.worklist import WorklistFilter
from node.store.worklist import worklist as list_studies
from node.web.dependencies import WebParts
from node.web.study_outputs import StudyOutput, outputs_of

Delivered = Literal["all", "some", "none", "nothing"]
Fault = Literal["", "damaged", "other_version"]
"""Why an answer cannot be read: its reading is damaged, or another program wrote a document that counts for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingMark:
    """A finding of a study in short, such as "Pleural effusion 76 %".

    state: present or possible; is_critical: to be communicated within minutes
    """

    text: str
    state: Literal["present", "possible"]
    is_critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """One line of the worklist.

    state: receiving, reading, parked, finished, or answer_unreadable (finished, but a film's answer cannot be read)
    stage: where it is parked; reason: why it is parked, or the `Fault` of answer_unreadable
    received_at: when its first film came; None if its films are removed
    is_stat: whether a sender made it STAT
    read, not_processed, rejected: how many of its films were read, got another answer, were rejected by the archive
    marks: its findings in short, the most urgent first; cautions: a wide heart, and doubts about a reading
    deliveries: how many by destination and state
    delivered: whether its destinations have taken all deliveries, some or none; nothing: there is none
    waits: by destination, why deliveries that are not sent wait or are parked
    questions: number of questions, without those with words that the model never learned
    """

    uid: str
    state: str
    stage: str | None
    reason: str | None
    changed_at: datetime
    received_at: datetime | None
    is_stat: bool
    read: int
    not_processed: int
    rejected: int
    marks: tuple[FindingMark, ...]
    cautions: tuple[str, ...]
    deliveries: Mapping[str, Mapping[str, int]]
    delivered: Delivered
    waits: Mapping[str, str]
    questions: int

    @property
    def shown_state(self) -> str:
        """The state on pages, a key of `words.STUDY_STATES`: a finished study may not be delivered yet."""
        if self.state in ("finished", "answer_unreadable") and self.delivered in ("none", "some"):
            return ledger_queries.NOT_DELIVERED if self.delivered == "none" else "partly_delivered"
        return self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Worklist:
    """A page of studies, in the requested order; total: number of studies on all pages."""

    studies: tuple[StudyLine, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStudy:
    """Another study with a film of the same SOP Instance UID; differs: whether the two films name another patient."""

    study: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFilm:
    """One received object of a study that is no question of a workstation.

    uid: SOP Instance UID
    status: read, not_processed, left_alone (an object that gets no answer), waiting, rejected or answer_unreadable
    rejected: why and when the archive rejected it; None if it did not
    round: number of the newest round that covers it; None if no round does
    film: an entry of `films` in report.json; None if it has no answer
    model, engine, prompts: those of its reading; blank if it was not read
    also_in: other studies with its UID
    """

    uid: str
    received_at: datetime
    status: str
    rejected: FilmRejection | None
    round: int | None
    film: Mapping[str, object] | None
    model: str
    engine: str
    prompts: str
    also_in: tuple[OtherStudy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCorrections:
    """Corrections of a study that no report follows yet.

    changes: how many of them change the report, 0 if all was taken back
    leave_at: when they leave if nothing more is corrected; None if none waits
    """

    changes: int
    leave_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDetail:
    """The details of one study.

    parts: the UIDs of its films by patient and accession number, if the newest round that wrote something found several
    """

    line: StudyLine
    films: tuple[StudyFilm, ...]
    parts: tuple[tuple[str, ...], ...]
    outputs: tuple[StudyOutput, ...]
    deliveries: tuple[DeliveryRow, ...]
    waiting: WaitingCorrections


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFilm:
    """A received object and its outcome.

    film: its answer with its corrections, None if it has none; reading: as stored, empty if it was not read
    fault: why its answer cannot be read, "" if it has none or can; rejected: see `StudyFilm`
    """

    instance: Instance
    round: int | None
    film: Film | None
    reading: JsonObject
    rejected: FilmRejection | None
    fault: Fault

    @property
    def status(self) -> str:
        """Return the film's progress, see `StudyFilm`."""
        if self.rejected is not None:
            return "rejected"
        if self.film is None:
            if self.fault:
                return "answer_unreadable"
            return "waiting" if self.round is None else "left_alone"
        return "read" if self.film.is_read else "not_processed"

    def described(self, *, also_in: Iterable[OtherStudy]) -> StudyFilm:
        """Return the film as the interface for programs shows it; as `report_json.film_for_programs`."""
        return StudyFilm(
            uid=self.instance.sop_instance_uid,
            received_at=self.instance.received_at,
            status=self.status,
            rejected=self.rejected,
            round=self.round,
            film=None if self.film is None else report_json.film_for_programs(self.film),
            model=str(self.reading.get("model", "")),
            engine=str(self.reading.get("engine", "")),
            prompts=str(self.reading.get("prompts", "")),
            also_in=tuple(also_in),
        )


def worklist(parts: WebParts, wanted: WorklistFilter, *, limit: int, offset: int) -> Worklist:
    """Return a page of the studies that a filter wants. Raises NodeError when the database cannot be read."""
    found = list_studies(parts.settings.storage, wanted, limit=limit, offset=offset)
    return Worklist(
        studies=tuple(
            _line(
                study_uid,
                row,
                received_films(study_uid, parts.spool, parts.prompts()),
                parts.spool,
                deliveries=found.deliveries.get(study_uid, {}),
                waits=found.waits.get(study_uid, {}),
            )
            for study_uid, row in found.studies.items()
        ),
        total=found.total,
    )


def study(parts: WebParts, study_uid: str) -> tuple[StudyDetail, list[ReceivedFilm]] | None:
    """Return one study, and its films in order of arrival; None if this node does not know it.

    Raises NodeError when the database cannot be read.
    """
    settings, spool = parts.settings, parts.spool
    known, seen = ledger_queries.look_up(settings.storage, study_uid), received_films(study_uid, spool, parts.prompts())
    row = known.study
    if row is None:
        if not seen:
            return None
        # The ledger hears of a study a moment after its first film is stored.
        changed_at = max(found.instance.received_at for found in seen)
        row = StudyRow(state="receiving", stage=None, reason=None, changed_at=changed_at)
    waits = {
        each.delivery.destination: each.reason
        for each in sorted(known.deliveries, key=lambda each: each.since)
        if each.state in ledger_queries.UNSENT and each.reason is not None
    }
    waiting = gathering.waiting(spool, study_uid)
    detail = StudyDetail(
        line=_line(study_uid, row, seen, spool, deliveries=count_deliveries(known.deliveries), waits=waits),
        films=tuple(found.described(also_in=_others(spool, found.instance)) for found in seen),
        parts=next((mark.parts for mark in reversed(spool.rounds(study_uid)) if mark.outputs), ()),
        outputs=tuple(outputs_of(study_uid, spool)),
        deliveries=known.deliveries,
        waiting=WaitingCorrections(
            changes=waiting.changes, leave_at=waiting.leave_at(settings.corrections.quiet_seconds)
        ),
    )
    return detail, seen


def count_deliveries(deliveries: Iterable[DeliveryRow]) -> dict[str, Counter[str]]:
    """Count deliveries by destination and state."""
    counts: dict[str, Counter[str]] = {}
    for each in deliveries:
        counts.setdefault(each.delivery.destination, Counter())[each.state] += 1
    return counts


def _others(spool: Spool, film: Instance) -> Iterator[OtherStudy]:
    others = elsewhere(spool, film)
    own = header_of(film.path, character_set=spool.character_set) if others else None
    for other in others:
        header = header_of(other.path, character_set=spool.character_set)
        differs = own is not None and header is not None and name_different(own, header)
        yield OtherStudy(study=other.study_uid, differs=differs)


def _line(
    study_uid: str,
    row: StudyRow,
    seen: Sequence[ReceivedFilm],
    spool: Spool,
    *,
    deliveries: Mapping[str, Mapping[str, int]],
    waits: Mapping[str, str],
) -> StudyLine:
    statuses = [known.status for known in seen]
    films = [known.film for known in seen if known.film is not None and known.rejected is None]
    fault = next((known.fault for known in seen if known.status == "answer_unreadable"), "")
    is_unreadable = bool(fault) and row.state == "finished"
    return StudyLine(
        uid=study_uid,
        state="answer_unreadable" if is_unreadable else row.state,
        stage=row.stage,
        reason=fault if is_unreadable else row.reason,
        changed_at=row.changed_at,
        received_at=min((known.instance.received_at for known in seen), default=None),
        is_stat=spool.is_stat(study_uid),
        read=statuses.count("read"),
        not_processed=statuses.count("not_processed"),
        rejected=statuses.count("rejected"),
        marks=_marks(films),
        cautions=tuple(dict.fromkeys(caution for film in films for caution in _cautions(film))),
        deliveries=deliveries,
        delivered=_delivered(deliveries),
        waits=waits,
        questions=sum(map(_is_answered, spool.documents(study_uid, "questions"))),
    )


def _is_answered(question: JsonObject) -> bool:
    match question:
        case {"answer": {"never_learned": [_, *_]}}:
            return False
    return True


def _delivered(deliveries: Mapping[str, Mapping[str, int]]) -> Delivered:
    """Return in words how much of a study is delivered; deliveries: number by destination and state."""
    counts = [(state in TAKEN, count) for states in deliveries.values() for state, count in states.items()]
    total, taken = sum(count for _, count in counts), sum(count for is_taken, count in counts if is_taken)
    if not total:
        return "nothing"
    return "all" if taken == total else "some" if taken else "none"


def _cautions(film: Film) -> Iterator[str]:
    """Yield a film's cautions from its impression: a wide heart, and doubts about its reading."""
    if (heart := ratio_text.wide_heart(film)) is not None:
        yield heart
    yield from wording.cautions(film) if film.is_read else wording.cautions_of_header(film)


def _marks(films: Iterable[Film]) -> tuple[FindingMark, ...]:
    """Return each finding that is reported on a film of a study once, as the most urgent of its films has it."""
    reported = vocabulary.by_urgency(finding for film in films for finding in wording.reported(film))
    first = {finding.prompt: finding for finding in reversed(reported)}
    return tuple(
        FindingMark(
            text=f"{vocabulary.name_of(finding)} {wording.certainty(finding)}",
            state="possible" if finding.state in vocabulary.MARKS else "present",
            is_critical=vocabulary.is_critical(finding),
        )
        for finding in vocabulary.by_urgency(first.values())
    )


def received_films(study_uid: str, spool: Spool, prompts: PromptSet) -> list[ReceivedFilm]:
    """Return the newest version of each received object but questions, with its outcome, in order of arrival.

    Corrections count from the moment in which they are stored, before a round has written new outputs.
    Why an answer or its corrections cannot be read is logged, and not repeated for the last 1,000 reasons.
    """
    readings, rounds = spool.readings(study_uid), coverage(spool.rounds(study_uid))
    try:
        corrections, asking, is_readable = spool.corrections(study_uid), objects_of(spool, study_uid), True
    except OtherForm as error:
        corrections, asking, is_readable = [], [], False
        _log_once(study_uid, "other_version", str(error))
    questions = {mark.file for mark in asking}
    instances = spool.instances(study_uid)
    rejected = rejections_of(instances)
    seen = []
    for instance in instances:
        if instance.path.name in questions:
            continue
        number, parked = rounds.get(instance.path.name, (None, None))
        reading: JsonObject = {}
        film: Film | None = None
        fault: Fault = ""
        try:
            _, reading = newest_reading(readings, instance) or (None, {})
            film = answer_in(reading, instance) if reading else None
        except OtherForm as error:
            fault = "damaged" if reading or number is not None else ""
            _log_once(study_uid, "damaged", str(error))
        if parked == Reason.PATIENT_UNCLEAR or (parked is not None and not reading):
            film, fault = Film(source=instance.sop_instance_uid, reason=Reason(parked)), ""
        elif film is not None and not is_readable:
            film, fault = None, "other_version"
        elif film is not None and corrections:
            sides = sides_of(film, header_of(instance.path))
            film = correct(film, corrections, prompts=prompts, side_of=sides)
        why = rejected.get(instance.sop_instance_uid)
        seen.append(
            ReceivedFilm(instance=instance, round=number, film=film, reading=reading, rejected=why, fault=fault)
        )
    return seen


@lru_cache(maxsize=1000)
def _log_once(study_uid: str, fault: Fault, reason: str) -> None:
    log.get().error("answer.unreadable", study=study_uid, fault=fault, reason=reason)


def header_of(path: Path, *, character_set: str = "") -> Dataset | None:
    """Return the header of a film; None if it is removed or cannot be read."""
    try:
        return header_reading.read_header(path, character_set=character_set)
    except (Undecodable, OSError):
        return None
