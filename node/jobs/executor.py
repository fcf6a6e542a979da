"""The durable executor (DBOS) of one process: its database, its queues, and the client that queues work for it.

It limits delays when the clock is set back: a delay of 5 s must not become an hour and 5 s. The executor records when
work was queued and until when it waits, as clock times, so that a delay survives a restart. A queue time in the future
means that the clock was set back: the work then waits its whole delay again, from now. So no delay exceeds twice its
length, whenever the clock was set and the process started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer, DebouncerClient, EnqueueOptions

from models.documents import decode, encode
from node import log
from node.config import StudySettings
from node.deliver.delivery import Sending
from node.deliver.results import DeliveryBatch
from node.domain import Delivery
from node.jobs.lost_workflows import Attended, Unattended
from node.jobs.object_questions import ObjectSteps
from node.jobs.processes import Process
from node.jobs.queue_places import delivery_place
from node.jobs.round_steps import Steps
from node.jobs.running_steps import RunningSteps
from node.jobs.workflows import (
    ANSWER,
    COMMIT,
    DELIVER,
    GATHER,
    OPEN,
    QUESTION,
    QUIET,
    STUDIES,
    STUDY,
    Planned,
    answer_workflow,
    deliveries_of,
    enqueue_delivery,
    queue_of,
    queues_of,
    register,
    study_of,
)
from node.settings.destinations import DestinationSettings
from node.store import database
from node.store.database import Database
from node.threads import Periodic

# After an upgrade, stored workflows continue only if this version is unchanged. Use DBOS.patch() to change the steps.
_APPLICATION_VERSION: Final = "1"
_APPLICATION: Final = "chex-node"
_POLLING_SECONDS: Final = 0.25
"""Polling interval of a queue. DBOS moves work whose delay has ended into its queue once a second."""
_STUDIES_POLLING_SECONDS: Final = 0.1
"""The same for studies: a free place stays empty that long, and a node reads few studies at once."""
SENDS_AT_ONCE: Final = 2
_LAST_STEPS_SECONDS: Final = 20.0
_FORGOTTEN_AT_ONCE: Final = 500
_MARKED_SECONDS: Final = 1.0  # lets the ledger record a queued retry as waiting before the retry can be parked again
_OVER: Final = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
LOOK_SECONDS: Final = 2.0
_TOLERATED_SECONDS: Final = 1.0
"""Clocks of several machines differ by less."""
_DELAYED: Final = "DELAYED"


class Executor:
    """Runs the workflows of one process until closed. `on_step` is called with the name of every checkpointed step.

    sql: the executor's own database; not closed here, because the process ends next
    steps, objects: None in a process that does not read
    """

    def __init__(
        self,
        sql: Database,
        sending: Sending,
        steps: Steps | None,
        *,
        objects: ObjectSteps | None = None,
        process: Process,
        running: RunningSteps,
        studies_at_once: int = 2,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._sending, self._running, self._name = sending, running, process.executor
        self._attended = Attended()
        running.attending = self._attending
        config: DBOSConfig = {
            "name": _APPLICATION,
            "system_database_url": sql.url.render_as_string(hide_password=True),
            "system_database_engine": sql,
            "application_version": _APPLICATION_VERSION,
            "executor_id": process.executor,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "WARNING",
            "use_listen_notify": not database.is_server(sql),  # no workflow waits for a message
        }
        DBOS(config=config)
        log.adopt("dbos")
        self._deliver, self.park = register(sending, steps, objects, running=running, on_step=on_step)
        deliveries = [name for destination in sending.destinations.values() for name in queues_of(destination)]
        if process.only is not None:
            # Those of destinations that are no longer in the settings, too: work in such a queue is parked.
            known = [name for name in database.queues(sql) if name not in (QUIET, STUDIES)]
            DBOS.listen_queues([QUIET, STUDIES] if process.reads else [*deliveries, *known])
        DBOS.launch()
        self._register_queue(QUIET)
        self._register_queue(
            STUDIES, at_once=studies_at_once, polling_seconds=_STUDIES_POLLING_SECONDS, is_owned=process.reads
        )
        self._clock = Periodic(shorten_delays, name="clock", pause_seconds=LOOK_SECONDS, at_once=True)
        self.register_destinations(sending.destinations.values())

    def register_destinations(self, destinations: Iterable[DestinationSettings]) -> None:
        """Register the queues of destinations. An existing queue is unchanged."""
        for name in (name for destination in destinations for name in queues_of(destination)):
            self._register_queue(name, at_once=SENDS_AT_ONCE)

    def forgotten(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return the given open deliveries that no unfinished workflow covers.

        A delivery counts as covered while a `deliver` or `commit` workflow holds it, or a round or an answer of its
        study is open.
        """
        held: set[str] = set()
        names = [DELIVER, COMMIT, STUDY, ANSWER]
        for workflow in DBOS.list_workflows(status=[*OPEN], name=names, load_output=False):
            first = workflow.input["args"][0] if workflow.input else ""
            held |= {first} if isinstance(first, str) else {delivery.id for delivery in deliveries_of(first)}
        return [delivery for delivery in deliveries if delivery.id not in held and delivery.study_uid not in held]

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Queue deliveries that no workflow covers."""
        for delivery in deliveries:
            enqueue_delivery(self._deliver, DeliveryBatch(deliveries=(delivery,), started=time.time()))

    def recover(self, executor: str) -> int:
        """Queue the unfinished workflows of a dead executor again, and return their number.

        Only call this when that executor is dead, and while no other process can (`lost_workflows`).
        """
        begun = DBOS.list_workflows(
            status="PENDING",
            executor_id=executor,
            app_version=_APPLICATION_VERSION,
            load_input=False,
            load_output=False,
        )
        for workflow in begun:
            DBOS.resume_workflow(workflow.workflow_id, queue_name=workflow.queue_name)
        return len(begun)

    def unattended(self) -> list[Unattended]:
        """Return this process's open workflows that no thread runs; also one that is beginning or ending now."""
        begun = DBOS.list_workflows(status="PENDING", executor_id=self._name, load_output=False)
        return [
            Unattended(
                id=status.workflow_id,
                name=status.name,
                queue=status.queue_name,
                study=study_of(arguments[0]) if arguments else None,
                arguments=arguments,
                reason=self._attended.reason(status.workflow_id),
            )
            for status in begun
            if not self._attended.holds(status.workflow_id)
            for arguments in [tuple(status.input["args"]) if status.input else ()]
        ]

    def run_again(self, workflow: Unattended) -> None:
        """Queue a workflow again; its finished steps are not repeated."""
        DBOS.resume_workflow(workflow.id, queue_name=workflow.queue)

    def end(self, workflow: Unattended) -> None:
        """Record that a workflow has ended, so that it does not continue."""
        DBOS.cancel_workflow(workflow.id)
        self._attended.forget(workflow.id)

    def _attending(self) -> AbstractContextManager[None]:
        """Record that this thread runs a workflow, and how that ends."""
        return self._attended.run(str(DBOS.workflow_id))

    def forget_older(self, limit: datetime) -> int:
        """Delete the records of workflows that ended before a time, in small batches; returns their number.

        Raises SQLAlchemyError when the database does not answer.
        """
        count = 0
        while found := DBOS.list_workflows(
            status=_OVER,
            completed_before=limit.isoformat(),
            limit=_FORGOTTEN_AT_ONCE,
            load_input=False,
            load_output=False,
        ):
            DBOS.delete_workflows([workflow.workflow_id for workflow in found])
            count += len(found)
        return count

    def _register_queue(
        self, name: str, *, at_once: int | None = None, polling_seconds: float = _POLLING_SECONDS, is_owned: bool = True
    ) -> None:
        """Register a queue, whose row in the database all processes share.

        at_once: how many of its workflows one process runs at a time
        is_owned: whether this process sets the row's values; another process only adds a missing row
        """
        DBOS.register_queue(
            name,
            worker_concurrency=at_once,
            polling_interval_sec=polling_seconds,
            on_conflict="always_update" if is_owned else "never_update",
        )

    def close(self) -> None:
        """Finish the running steps and start no more. The process must end next, as in a power cut.

        DBOS's own shutdown would mark interrupted workflows as failed. After an abrupt end they continue at the next
        start.
        """
        self._clock.close()
        self._sending.pauses.close()
        is_broken = self._running.is_broken  # another process may have taken over its work already
        self._running.close(limit_seconds=0.0 if is_broken else _LAST_STEPS_SECONDS)
        self._sending.associations.close()


class Client:
    """Queues work for the service, which may run in another process or not run yet. Connects on first use.

    Every method raises SQLAlchemyError when the database does not answer, or before an executor has created its tables.
    """

    def __init__(self, sql: Database) -> None:
        self._sql = sql
        self._client = DBOSClient(
            system_database_engine=sql,
            serializer=DBOSPortableJSONSerializer(),
            application_name=_APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    @property
    def is_known(self) -> bool:
        """Whether an executor has created the tables for queued work."""
        return database.has_executor_tables(self._sql)

    def planned_files(self) -> dict[str, frozenset[str] | None]:
        """Return the files of each study that open workflows will read; None means every file of the study.

        A round that has begun continues with the files in its recorded plan, and ignores files that arrived since.
        """
        planned: dict[str, frozenset[str] | None] = {}
        begun = database.begun_workflows(self._sql)
        for status in self._client.list_workflows(status=[*OPEN], name=[QUIET, STUDY], load_output=False):
            study_uid = str(status.input["args"][0]) if status.input else ""
            if status.name == QUIET or status.workflow_id not in begun:  # its round makes a plan later
                planned[study_uid] = None
            elif planned.get(study_uid, frozenset()) is not None:
                planned[study_uid] = (planned.get(study_uid) or frozenset()) | self._files_of(status.workflow_id)
        return planned

    def _files_of(self, workflow: str) -> frozenset[str]:
        """Return the files of an open round; empty when it is finished or its plan is empty."""
        noted = {step["function_name"]: step["output"] for step in self._client.list_workflow_steps(workflow)}
        if "plan" not in noted or "finish" in noted:
            return frozenset()
        plan = decode(Planned, noted["plan"]).round
        return frozenset() if plan is None else frozenset(plan.files)

    def touch_study(self, study_uid: str, settings: StudySettings) -> None:
        """Start or prolong the quiet time of a study."""
        debouncer = DebouncerClient(
            self._client,
            {"workflow_name": "quiet", "queue_name": QUIET, "app_version": _APPLICATION_VERSION},
            debounce_timeout_sec=settings.max_seconds,
        )
        debouncer.debounce(study_uid, settings.quiet_seconds, study_uid)

    def run_study(self, study_uid: str) -> None:
        """Process a study again."""
        self._client.enqueue(_to(QUIET), study_uid)

    def run_gather(self, study_uid: str, correction_id: str, seconds: float) -> None:
        """After some time, release the corrections that wait in a study, unless one was made after this one."""
        self._client.enqueue({**_to(GATHER), "delay_seconds": seconds}, study_uid, correction_id)

    def gathering(self) -> dict[str, str]:
        """Return by correction the study in which an open workflow will release it with others, if it is the last."""
        found = self._client.list_workflows(status=[*OPEN], name=[GATHER], load_output=False)
        queued = (status.input["args"] for status in found if status.input)
        return {str(correction_id): str(study_uid) for study_uid, correction_id in queued}

    def run_answer(self, study_uid: str, question_id: str) -> None:
        """Send an answer whose request is stored; does nothing if that was queued before."""
        workflow = answer_workflow(question_id)
        self._client.enqueue({**_to(ANSWER), "workflow_id": workflow}, study_uid, question_id)

    def run_object(self, study_uid: str, sop_instance_uid: str) -> None:
        """Answer what a marked object of a workstation asks; does nothing if that was queued before."""
        workflow = f"{QUESTION}:{study_uid}:{sop_instance_uid}"
        self._client.enqueue({**_to(QUESTION), "workflow_id": workflow}, study_uid, sop_instance_uid)

    def run_delivery(self, delivery: Delivery) -> None:
        """Send an output again."""
        now = time.time()
        options: EnqueueOptions = {
            **_to(DELIVER, queue_of(delivery.destination)),
            "delay_seconds": _MARKED_SECONDS,
            "priority": delivery_place(now, delivery.priority),
        }
        self._client.enqueue(options, encode(DeliveryBatch(deliveries=(delivery,), started=now)))

    def close(self) -> None:
        """Close the database."""
        self._client.destroy()
        self._sql.dispose()


def _to(workflow: str, queue: str = QUIET) -> EnqueueOptions:
    """Return the options that queue a workflow; `quiet` has no limit, so nothing there waits for a round of films."""
    return {"workflow_name": workflow, "queue_name": queue, "app_version": _APPLICATION_VERSION}


def delay_left(*, queued_at: float, until: float, now: float) -> float | None:
    """Return the remaining delay of work if the clock was set back since; None if it was not.

    queued_at, until: when it was queued, and when its delay ends; all in seconds since the epoch
    Work with a newer delay ends before it was queued, and is left unchanged.
    """
    was_set_back = queued_at > now + _TOLERATED_SECONDS
    return until - queued_at if was_set_back and until > queued_at else None


def shorten_delays() -> None:
    """Shorten the delays in this executor's database that a clock set back has prolonged; never raises."""
    try:
        now = time.time()
        future = datetime.fromtimestamp(now + _TOLERATED_SECONDS, UTC).isoformat()
        for work in DBOS.list_workflows(status=_DELAYED, start_time=future, load_input=False, load_output=False):
            if work.created_at is None or work.delay_until_epoch_ms is None:
                continue
            left = delay_left(queued_at=work.created_at / 1000, until=work.delay_until_epoch_ms / 1000, now=now)
            if left is not None:
                DBOS.set_workflow_delay(work.workflow_id, delay_seconds=left)
    except Exception:  # its steps watch the executor's database; the next look tries again
        return
