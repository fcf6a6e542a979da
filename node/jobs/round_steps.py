"""The steps of a round, each timed, counted and recorded in the ledger; `workflows` checkpoints their results.

A step that fails permanently parks its study and returns that. A full disk, a lost database or a lost GPU raises and
ends the process (`running_steps`). Every step is repeatable: an interrupted step runs again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from node import log
from node.deliver.results import Queued, delivery_of
from node.domain import Delivery, DeliveryState, OutputObject, Reason
from node.errors import ModelLost, is_of_disk, reason_of
from node.jobs import answer_steps, gathering
from node.jobs.lost_workflows import LOST_STAGE
from node.jobs.queue_places import study_place
from node.metrics import Guarded, Metrics
from node.outputs import ledger_rows, vocabulary
from node.outputs.sr.items import FORMS
from node.pipeline import Pipeline, RoundOutputs
from node.rounds.round_plan import Round, known_to
from node.settings.destinations import DestinationSettings
from node.store import questions, received
from node.store.interrupted_work import MOST_INTERRUPTIONS
from node.store.ledger import Ledger, is_away
from node.store.received import Instance, sop_instance_uid_of
from node.store.rounds import RoundMark
from node.store.statistics import write_counts
from node.store.study_facts import REASONS, StudyFacts, load
from node.store.worklist import ReviewRow

_CANNOT_BE_REWRITTEN: Final = (
    "the stored output is missing or damaged and cannot be written again with the same content: model, program or "
    "prompts have changed since, or its film is damaged too; retry reads the films again and sends a new report"
)
_ANSWER_IS_LOST: Final = (
    "the stored answer is missing or damaged and cannot be written again with the same content: model, program or "
    "film have changed since; ask the question again and send that answer"
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRound:
    """A round whose outputs are written; mark: see `pipeline.RoundOutputs`.

    reviews: rows of the list of films to review
    """

    mark: RoundMark
    reviews: tuple[ReviewRow, ...]
    queued: Queued


@dataclass(slots=True, kw_only=True)
class Steps:
    """The steps of the reading workflows, in order: gather, place, claim, plan, read each file, write, finish.

    pipeline: returns the one in use; a round finishes with the one it began with, in this process
    take_objects: takes a study's objects that may be questions, before a round covers them
    note_patients: records a study's patients, as known to a round
    notify: has the critical findings of a study told; each name by the key of its prompt
    """

    pipeline: Pipeline
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]
    stat_seconds: float
    take_objects: Callable[[str], object] = lambda _study: None
    note_patients: Callable[[str], None] = lambda _study: None
    notify: Callable[[str, Mapping[str, str]], None] = lambda _study, _findings: None
    _begun: dict[str, Pipeline] = field(default_factory=dict)

    def gather(self, study_uid: str, correction_id: str) -> bool:
        """Release a study's waiting corrections, if none was made after this one; return whether a round follows."""

        def work() -> bool:
            spool = self.pipeline.spool
            found = gathering.waiting(spool, study_uid)
            if found.corrections and found.corrections[-1].id == correction_id:
                gathering.release(spool, study_uid, found)
            return gathering.are_released(spool, study_uid)  # perhaps released before a crash interrupted this step

        return self._guarded("gather", study_uid, work, otherwise=False)

    def place(self, study_uid: str) -> int | None:
        """Return the study's place in the queue; lower places are read first. None if the study was parked."""

        def work() -> int:
            return study_place(self.pipeline.spool, self.pipeline.orders, study_uid, stat_seconds=self.stat_seconds)

        return self._guarded("place", study_uid, work, otherwise=None)

    def claim(self, study_uid: str, workflow: str, *, is_over: Callable[[str], bool]) -> bool:
        """Give a workflow exclusive use of a study; false while another workflow has it.

        Idempotent.
        is_over: whether a workflow has ended or is unknown
        """
        holder = self.ledger.claim(study_uid, holder=workflow)
        if holder != workflow and is_over(holder):
            holder = self.ledger.claim(study_uid, holder=workflow, instead_of=holder)
        return holder == workflow

    def plan(self, study_uid: str) -> Round | None:
        """Choose the files of a round; None if there is nothing new or the study was parked."""

        def work() -> Round | None:
            pipeline = self._begun[study_uid] = self.pipeline
            self._rewrite(study_uid)
            with self.metrics.timed("plan"):
                destinations = {name: settings.outputs for name, settings in self.destinations.items()}
                planned = pipeline.plan(study_uid, destinations=destinations)
            self.take_objects(study_uid)  # after the facts: an object in between would be covered and never taken
            if planned is None:
                self.ledger.set_study(study_uid, "finished")
                self._begun.pop(study_uid, None)
                return None
            self.ledger.set_study(study_uid, "reading")
            log.get().info("study.ready", study=study_uid, round=planned.number, instances=len(planned.files))
            return planned

        return self._guarded("plan", study_uid, work, otherwise=None)

    def read(self, study_uid: str, file: str) -> str | None:
        """Read one file; return the outcome, or None if the study was parked."""

        def work() -> str:
            began = time.monotonic()
            outcome = self._pipeline(study_uid).read(study_uid, file)
            self.metrics.films.labels(outcome).inc()
            log.get().info(
                "film.decided",
                study=study_uid,
                sop_instance_uid=sop_instance_uid_of(file),
                reason=outcome,
                seconds=round(time.monotonic() - began, 3),
            )
            if outcome == Reason.DAMAGED:
                self._log_damaged(study_uid, file)
            return outcome

        return self._guarded("read", study_uid, work, otherwise=None)

    def write(self, planned: Round) -> WrittenRound | None:
        """Write the outputs of a round and record a delivery per destination; None if the study was parked."""

        def work() -> WrittenRound:
            with self.metrics.timed("write"):
                written = self._pipeline(planned.study_uid).write(planned)
            critical = filter(vocabulary.is_critical, (each for film in written.films for each in film.findings))
            self.notify(planned.study_uid, {finding.prompt: vocabulary.name_of(finding) for finding in critical})
            facts = load(self.pipeline.spool, planned.study_uid)
            self._log_rejected(facts, planned)
            self._log_identity(planned.study_uid, written)
            outputs = written.mark.outputs
            earlier = {output.sop_instance_uid for mark in facts.rounds for output in mark.outputs}
            if void := {uid for output in outputs for uid in output.voids}:  # rejected or withdrawn
                log.get().warning("outputs.voided", study=planned.study_uid, outputs=len(void))
            deliveries = {
                name: tuple(
                    delivery
                    for output in outputs
                    if name in output.receivers
                    and not self._withholds(name, output)
                    and self._is_open(delivery := delivery_of(name, output), earlier)
                )
                for name in planned.destinations
            }
            for delivery in itertools.chain.from_iterable(deliveries.values()):
                self.ledger.add_delivery(delivery)
            self._replace_lost(planned.study_uid, outputs)
            rows = ledger_rows.rows_of(facts, written.films, zone=self.pipeline.zone)
            write_counts(self.ledger.tables, planned.study_uid, rows)
            return WrittenRound(
                mark=written.mark,
                reviews=tuple(ledger_rows.review_rows(facts, written.films)),
                queued=Queued(
                    deliveries={name: queued for name, queued in deliveries.items() if queued}, started=time.time()
                ),
            )

        return self._guarded("write", planned.study_uid, work, otherwise=None)

    def _log_rejected(self, facts: StudyFacts, planned: Round) -> None:
        """Count and log the films that an archive's notes have rejected since the last round; unknown films count."""
        for note, films in known_to(planned, facts).new_notes():
            if films:  # else all are rejected already
                reason = REASONS[note.title.value]
                self.metrics.rejected.labels(reason).inc(len(films))
                log.get().info("film.rejected", study=planned.study_uid, reason=reason, films=len(films))

    def _log_identity(self, study_uid: str, written: RoundOutputs) -> None:
        """Count and log a study with films of several patients or requests, and orders for other patients."""
        if parts := written.mark.parts:
            self.metrics.studies_divided.inc()
            log.get().warning("study.divided", study=study_uid, parts=len(parts))
        if written.unmatched:
            self.metrics.orders_unmatched.inc(written.unmatched)
            log.get().warning("order.unmatched", study=study_uid, outputs=written.unmatched)

    def _withholds(self, destination: str, output: OutputObject) -> bool:
        """End the waiting deliveries that an output makes void; return whether the destination got none of these.

        Then it does not get this output either. No void output is sent after the message that voids it.
        """
        return bool(output.voids) and self.ledger.withhold(destination, output.voids).issuperset(output.voids)

    def _is_open(self, delivery: Delivery, earlier: Collection[str]) -> bool:
        """Whether this round must send an output; an output that was sent before is not sent again.

        earlier: UIDs of outputs of earlier rounds; those rounds send them, or sent them before retention removed them
        """
        state = self.ledger.delivery_state(delivery)
        if state is None:
            return self.pipeline.spool.has_output(delivery)
        return state is DeliveryState.WAITING and delivery.sop_instance_uid not in earlier

    def finish(
        self,
        planned: Round,
        outcomes: list[str],
        written: WrittenRound,
        *,
        is_awaited: Callable[[str], bool] = lambda _study: False,
    ) -> bool:
        """Mark a round as finished, and return whether the study must be processed again.

        written: the result of `write`
        is_awaited: whether another workflow will process the study anyway
        """

        def work() -> bool:
            parked = written.mark.parked
            for file, outcome in zip(planned.files, outcomes, strict=True):
                if parked.get(file) == Reason.DAMAGED and outcome != Reason.DAMAGED:  # damage found by `write`
                    self._log_damaged(planned.study_uid, file)
            with self.metrics.timed("finish"):
                pipeline = self._pipeline(planned.study_uid)
                pipeline.spool.mark_round(planned.study_uid, written.mark)
            self.ledger.set_reviews(planned.study_uid, written.reviews)
            self.note_patients(planned.study_uid)
            identity = pipeline.films.reader.identity
            log.get().info(
                "study.finished",
                study=planned.study_uid,
                round=planned.number,
                instances=len(planned.files),
                read=outcomes.count("read"),
                not_processed=sum(outcome != "read" and not outcome.startswith("left:") for outcome in outcomes),
                outputs=len(written.mark.outputs),
                seconds=round(time.time() - planned.created_at.timestamp(), 3),
                model=f"{identity.name} {identity.version}",
                prompts=pipeline.films.prompts.name,
            )
            self._begun.pop(planned.study_uid, None)
            return self._is_unread(planned, parked) and not is_awaited(planned.study_uid)

        return self._guarded("finish", planned.study_uid, work, otherwise=False)

    def _pipeline(self, study_uid: str) -> Pipeline:
        """Return the pipeline that a study's round began with; the current one if it began in another process."""
        return self._begun.get(study_uid, self.pipeline)

    def _is_unread(self, planned: Round, parked: Mapping[str, str]) -> bool:
        """Record the study as finished, parked or receiving; receiving means that files arrived during the round."""
        facts = load(self.pipeline.spool, planned.study_uid)
        is_new = any(
            parked.get(instance.path.name) is None or _came_again(instance, planned, parked)
            for instance in facts.unread
        )
        if is_new:
            self.ledger.set_study(planned.study_uid, "receiving")
        elif parked:
            reason = "; ".join(_why_parked(sop_instance_uid_of(file), reason) for file, reason in parked.items())
            self._park("read", planned.study_uid, reason=reason, failure="foreseen")
        else:
            self.ledger.set_study(planned.study_uid, "finished")
        return is_new

    def _log_damaged(self, study_uid: str, file: str) -> None:
        self.metrics.damaged.labels("film").inc()
        received.note_damage(self.pipeline.spool.directory, "film")
        log.get().error("film.damaged", study=study_uid, sop_instance_uid=sop_instance_uid_of(file))

    def _rewrite(self, study_uid: str) -> None:
        """Rewrite unsent outputs that were damaged on disk; park those that cannot be written identically."""
        lost = [
            delivery
            for delivery in self._lost(study_uid)
            if self.ledger.delivery_state(delivery) is not DeliveryState.PARKED
        ]
        if not lost:
            return
        self.pipeline.rewrite(study_uid)
        answer_steps.rewrite(self.pipeline, study_uid)
        of_answers = self._answers(study_uid)
        for delivery in lost:
            facts = {"study": study_uid, "sop_instance_uid": delivery.sop_instance_uid, "kind": delivery.kind}
            if self.pipeline.spool.output(delivery) is not None:
                log.get().info("output.rewritten", **facts)
                continue
            self.metrics.failures.labels("deliver", "damaged").inc()
            self.metrics.deliveries.labels(delivery.destination, "parked").inc()
            reason = _ANSWER_IS_LOST if delivery.sop_instance_uid in of_answers else _CANNOT_BE_REWRITTEN
            log.get().error("delivery.parked", destination=delivery.destination, reason=reason, **facts)
            self.ledger.set_delivery(delivery, DeliveryState.PARKED, attempts=1, reason=reason)

    def _replace_lost(self, study_uid: str, written: Collection[OutputObject]) -> None:
        """End the deliveries of lost outputs, if this round wrote new outputs of the same kind in their place.

        A report may replace one of another kind of report.
        """
        kinds, uids = ({output.kind for output in written}, {output.sop_instance_uid for output in written})
        uids |= self._answers(study_uid)
        if not kinds.isdisjoint(FORMS):
            kinds |= FORMS.keys()
        for delivery in self._lost(study_uid):
            # An output of this round from an earlier round was not rewritten: the sender requests that.
            if delivery.kind in kinds and delivery.sop_instance_uid not in uids:
                self.ledger.end_delivery(delivery)

    def _answers(self, study_uid: str) -> set[str]:
        """Return the UIDs of the objects of sent answers, which no round writes or replaces."""
        return {output.sop_instance_uid for output in questions.answer_outputs(self.pipeline.spool, study_uid)}

    def _lost(self, study_uid: str) -> list[Delivery]:
        """Return the unsent deliveries of a study whose output is lost, parked deliveries included."""
        return [
            delivery
            for delivery in self.ledger.unsent_deliveries(study_uid)
            if self.pipeline.spool.output(delivery) is None
        ]

    def _guarded(self, stage: Guarded, study_uid: str, work: Callable[[], _T], *, otherwise: _T) -> _T:
        """Run the work of a step; an exception parks the study with its class and place, never its text.

        Errors of disk, database or GPU concern every study: they are raised, and end the process.
        """
        try:
            return work()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a boundary: an unforeseen error in one study must not stop the others
            if is_of_disk(error) or is_away(error) or isinstance(error, ModelLost):
                raise
            reason, failure = reason_of(error)
            self._park(stage, study_uid, reason=reason, failure=failure)
            return otherwise

    def park_lost(self, study_uid: str, *, reason: str) -> None:
        """Park a study whose workflow was lost repeatedly (`lost_workflows`), unless all of it is done."""
        self._begun.pop(study_uid, None)
        if not self.pipeline.spool.has_unread(study_uid):
            self.ledger.set_study(study_uid, "finished")
            return
        self.ledger.set_study(study_uid, "parked", stage=LOST_STAGE, reason=reason)
        log.get().error("study.parked", study=study_uid, stage=LOST_STAGE, reason=reason)

    def _park(self, stage: Guarded, study_uid: str, *, reason: str, failure: str) -> None:
        self._begun.pop(study_uid, None)
        self.ledger.set_study(study_uid, "parked", stage=stage, reason=reason)
        self.metrics.failures.labels(stage, failure).inc()
        log.get().error("study.parked", study=study_uid, stage=stage, reason=reason)


def _came_again(instance: Instance, planned: Round, parked: Mapping[str, str]) -> bool:
    """Whether a film that was damaged in a round was received again since the round began."""
    is_damaged = parked.get(instance.path.name) == Reason.DAMAGED
    return is_damaged and instance.received_at > planned.created_at and received.is_intact(instance.path)


def _why_parked(film: str, reason: str) -> str:
    """Return why a film is parked, and what to do."""
    if reason == Reason.DAMAGED:
        return f"damaged: film {film} has changed on disk since it was received; send it again from its source"
    if reason == Reason.PATIENT_UNCLEAR:
        return (
            f"patient_unclear: the study has films of several patients or accession numbers, and film {film} does not "
            "name its own; correct it at its sender, and send it again"
        )
    if reason == Reason.READER_FAILED:
        return (
            f"reader_failed: the network that model.reader names failed on film {film}; the log event "
            "reader.failed says where; correct the reader, then retry"
        )
    return (
        f"interrupted: the process ended {MOST_INTERRUPTIONS} times while film {film} was being read; "
        "find the cause in the service's log, then retry"
    )
