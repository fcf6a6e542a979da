"""Opens the parts that read studies and send results, as far as the process's role needs them.

They are the ledger, the durable executor and the retention. On PostgreSQL a process first waits for the server and
for the lock of its name, and then watches the other processes.

A ledger that was lost and built again does not know of stored studies whom they name, which of their films wait for
review, and what statistics count. A film that comes and a round that ends record their own. So to fill this in is
something to do after a loss only, and then for all studies: some milliseconds each, in a thread of its own, while the
node works. Where the settings let nobody see patients, the ledger's patients are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from node import log
from node.config import Settings
from node.deliver.commitment import Commitments
from node.deliver.delivery import Sending
from node.deliver.results import delivery_of
from node.domain import Delivery
from node.errors import OtherForm
from node.health import notices
from node.jobs.executor import Client, Executor
from node.jobs.lost_workflows import ExecutorLock, LostWorkflows, Takeover
from node.jobs.object_questions import ObjectSteps, take
from node.jobs.patients import note_patients
from node.jobs.processes import Process
from node.jobs.question_answerer import QuestionAnswerer
from node.jobs.round_steps import Steps
from node.jobs.running_steps import RunningSteps
from node.metrics import Metrics
from node.net import tls
from node.output_kinds import in_order, messages_in
from node.outputs import batches, ledger_rows
from node.outputs.batches import WriterProcesses
from node.pipeline import Pipeline
from node.prompt_set import PromptSet
from node.read.model import OpenModel
from node.rounds.films import FilmReader
from node.rounds.objects import Write
from node.service.retention import Retention
from node.service.shared import Shared
from node.settings.destinations import DestinationSettings, kinds_of
from node.store import database, questions
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.store.statistics import Rows, counted_studies, fill_counts
from node.store.study_facts import load
from node.store.worklist import ReviewRow, forget_patients, without_patients
from node.threads import Periodic
from node.web.studies import received_films

_STUDIES_AT_ONCE: Final = 2
"""In this process; each writer has one more."""
_PAUSE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """A running executor and its ledger.

    running: is broken when the process must end; steps: None in a process that does not read
    """

    ledger: Ledger
    executor: Executor
    running: RunningSteps
    threads: tuple[Periodic, ...]
    steps: Steps | None

    @property
    def is_good(self) -> bool:
        """Whether the executor and its threads work."""
        return not self.running.is_broken and all(thread.is_alive for thread in self.threads)

    def use_prompts(self, prompts: PromptSet) -> None:
        """Read with other prompts from the next round on."""
        if self.steps is not None:
            pipeline = self.steps.pipeline
            self.steps.pipeline = replace(pipeline, films=replace(pipeline.films, prompts=prompts))


def open_working(
    shared: Shared,
    *,
    model: OpenModel | None,
    answerer: QuestionAnswerer | None,
    on_step: Callable[[str], None],
    stop: threading.Event,
    parts: ExitStack,
) -> Working:
    """Run an executor until `parts` are closed; the process must end then (`Executor.close`).

    model: the model and its prompts; None in a process that does not read; answerer: as well
    Raises Stopped when `stop` is set while it waits for the database or for its name.
    """
    settings, process, spool, running = shared.settings, shared.process, shared.spool, RunningSteps()
    sql = database.open_ledger(settings.storage)
    parts.callback(sql.dispose)
    if database.is_server(sql):
        database.wait_for(sql, stop=stop)
        executor_lock = ExecutorLock(sql, process.executor, stop=stop)
        parts.callback(executor_lock.close)
        executor_lock.watch(running.fail)
    ledger = Ledger(sql)
    client = Client(database.open_executor_database(settings.storage))
    parts.callback(client.close)
    sending = _sending(shared, ledger, rewrite=client.run_study)
    watch_certificates(settings.destinations, shared.metrics)
    steps = None if model is None else _reading(shared, sending, model, run_object=client.run_object, parts=parts)
    executor = Executor(
        database.open_executor_database(settings.storage),
        sending,
        steps,
        objects=None if answerer is None or model is None else _objects(shared, sending, answerer),
        process=process,
        running=running,
        studies_at_once=_STUDIES_AT_ONCE + writers_of(settings, process),
        on_step=on_step,
    )
    parts.callback(executor.close)
    threads: list[Periodic] = [
        LostWorkflows(executor.unattended, executor.run_again, executor.end, executor.park, shared.metrics)
    ]
    if database.is_server(sql):
        database.create_views(sql)
        threads.append(Takeover(sql, process.executor, executor.recover))
    if process.reads:
        with database.restoring(sql):
            _restore(shared, ledger, executor, client)
        threads.append(
            Retention(spool, ledger, shared.orders, executor.forget_older, keep_days=settings.storage.keep_days)
        )
        threads.append(
            LedgerFiller(
                spool,
                ledger,
                prompts=lambda: shared.prompts.current,
                zone=settings.site.zone,
                with_patients=settings.http.shows_patients,
            )
        )
    for thread in threads:
        parts.callback(thread.close)
    return Working(ledger=ledger, executor=executor, running=running, threads=tuple(threads), steps=steps)


def writers_of(settings: Settings, process: Process) -> int:
    """Return the number of writer processes for this process; 0 if it does not read."""
    return batches.count_of(settings.report.writers) if process.reads else 0


def _write(writers: int, parts: ExitStack) -> Write:
    """Return the writer of objects: writer processes, which end with `parts`, or this process."""
    if not writers:
        return batches.write_batch
    processes = WriterProcesses(writers)
    parts.callback(processes.close)
    return processes.write


def _sending(shared: Shared, ledger: Ledger, *, rewrite: Callable[[str], None]) -> Sending:
    settings, metrics = shared.settings, shared.metrics
    return Sending(
        spool=shared.spool,
        ledger=ledger,
        metrics=metrics,
        destinations=shared.destinations,
        commitments=Commitments(ledger, shared.destinations, metrics),
        rewrite=rewrite,
        calling_aet=settings.listener.ae_title,
    )


def watch_certificates(destinations: Iterable[DestinationSettings], metrics: Metrics) -> None:
    """Publish the remaining days of each client certificate in the metrics; 0 when it cannot be read."""

    def days(certificate: Path) -> float:
        try:
            return tls.days_left(certificate)
        except (OSError, ValueError):
            return 0.0

    for destination in destinations:
        if destination.tls is not None and destination.tls.certificate is not None:
            gauge = metrics.certificate_days.labels(f"destination {destination.name}")
            gauge.set_function(partial(days, destination.tls.certificate))


def _objects(shared: Shared, sending: Sending, answerer: QuestionAnswerer) -> ObjectSteps:
    return ObjectSteps(
        spool=shared.spool,
        answerer=answerer,
        metrics=shared.metrics,
        settings=shared.settings.questions,
        destinations=sending.destinations,
    )


def _reading(
    shared: Shared, sending: Sending, model: OpenModel, *, run_object: Callable[[str, str], None], parts: ExitStack
) -> Steps:
    settings, spool, metrics = shared.settings, shared.spool, shared.metrics
    wanted = kinds_of(settings.destinations)
    films = FilmReader(
        spool=spool, reader=model.reader, prompts=model.prompts, timed=metrics.timed, on_read=metrics.count_film
    )
    pipeline = Pipeline(
        films=films,
        orders=shared.orders,
        zone=settings.site.zone,
        kinds=(*in_order(wanted), *messages_in(wanted)),
        has_ratio=settings.report.cardiothoracic_ratio,
        write_batch=_write(writers_of(settings, shared.process), parts),
    )
    return Steps(
        pipeline=pipeline,
        ledger=sending.ledger,
        metrics=metrics,
        destinations=sending.destinations,
        stat_seconds=settings.study.stat_seconds,
        take_objects=lambda study_uid: take(spool, study_uid, settings=settings.questions, run_object=run_object),
        note_patients=(
            partial(note_patients, spool, sending.ledger) if settings.http.shows_patients else lambda _study: None
        ),
        notify=partial(notices.take, spool.directory, settings.notify),
    )


def _restore(shared: Shared, ledger: Ledger, executor: Executor, client: Client) -> None:
    """Restore the content of a lost database. An output may be sent twice, byte for byte the same, but is never lost.

    Deliveries are queued first and recorded after that, so that the next start completes an interrupted one. The ledger
    is read before the executor: a delivery that ends in between is not sent a second time. An answer that is to be sent
    and has no objects yet is queued again; it is the same workflow if the executor still knows it. So is an object that
    may ask a question and was not looked at.
    """
    executor.deliver(executor.forgotten(ledger.open_deliveries()))
    spool, known, noted = shared.spool, ledger.delivered_studies(), ledger.studies()
    for study_uid in spool.studies():
        receivers = shared.destinations.values()
        deliveries = [] if study_uid in known else deliveries_of_study(spool, receivers, study_uid)
        if deliveries:
            executor.deliver(deliveries)
            for delivery in deliveries:
                ledger.add_delivery(delivery)
            log.get().warning("study.restored", study=study_uid, outputs=len(deliveries))
        for answer in questions.answers_of(spool, study_uid):
            if answer.is_open:
                client.run_answer(study_uid, answer.question)
        for mark in questions.objects_of(spool, study_uid):
            if mark.is_open:
                client.run_object(study_uid, mark.sop_instance_uid)
        if study_uid not in noted and spool.instances(study_uid) and not spool.has_unread(study_uid):
            ledger.add_finished_study(study_uid)


def deliveries_of_study(spool: Spool, destinations: Collection[DestinationSettings], study_uid: str) -> list[Delivery]:
    """Return every delivery of a study's finished rounds and released answers; which of them were sent is unknown.

    Void outputs are left out: if one was sent, its rejection follows it. An unchanged output of several rounds is
    delivered once.
    """
    rounds = [mark.outputs for mark in spool.rounds(study_uid)]
    void = {uid for outputs in rounds for output in outputs for uid in output.voids}
    found = (
        delivery_of(receiver.name, output)
        for outputs in (*rounds, tuple(questions.released_outputs(spool, study_uid)))
        for receiver in destinations
        for output in outputs
        if receiver.name in output.receivers and output.sop_instance_uid not in void and spool.has_output(output)
    )
    return list(dict.fromkeys(found))


class LedgerFiller(Periodic):
    """Looks at once, and then every hour until closed.

    prompts: returns those in use; zone: the site's time zone
    with_patients: whether somebody may see patients (`HttpSettings.shows_patients`)
    """

    def __init__(
        self, spool: Spool, ledger: Ledger, *, prompts: Callable[[], PromptSet], zone: ZoneInfo, with_patients: bool
    ) -> None:
        self._spool, self._ledger, self._prompts = spool, ledger, prompts
        self._zone, self._with_patients = zone, with_patients
        super().__init__(self._fill, name="ledger-filler", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _fill(self) -> None:
        tables, recorded = self._ledger.tables, counted_studies(self._ledger.tables)
        if not self._with_patients and forget_patients(tables):
            self._ledger.wipe()
        unnamed = set(without_patients(tables)) if self._with_patients else set()
        for study_uid in sorted(unnamed.union(self._spool.studies())):
            if self._closing.is_set():
                return
            if study_uid in unnamed:
                with suppress(OtherForm):  # of this study alone: it is named when this can be read
                    note_patients(self._spool, self._ledger, study_uid)
            if study_uid not in recorded and not self._spool.has_unread(study_uid):  # else its round records it
                fill_counts(tables, study_uid, *self._rows(study_uid))

    def _rows(self, study_uid: str) -> tuple[Rows, list[ReviewRow]]:
        """Return the rows of a study; none if an answer has an unknown form, or the study is being removed."""
        try:
            seen, facts = received_films(study_uid, self._spool, self._prompts()), load(self._spool, study_uid)
            films = [item.film for item in seen if item.film is not None and item.rejected is None]
            return ledger_rows.rows_of(facts, films, zone=self._zone), list(ledger_rows.review_rows(facts, films))
        except (FileNotFoundError, OtherForm):
            return Rows(films=(), findings=()), []
