"""One executor of the durable engine: its database, its queues, and who hands work to it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer, DebouncerClient

from node import database, log
from node.config import StudySettings
from node.database import Database
from node.domain import Delivery
from node.gate import Gate
from node.roles import Process
from node.sending import Sending
from node.steps import Steps
from node.workflow import OPEN, QUIET, STUDIES, queue_of, queues_of, register

# Old work is picked up after an upgrade only when this stays; a changed order of steps goes through DBOS.patch().
_APPLICATION_VERSION: Final = "1"
_APPLICATION: Final = "chex-node"
_POLLING_SECONDS: Final = 0.2
_STUDIES_AT_ONCE: Final = 2
_SENDS_AT_ONCE: Final = 2
_LAST_STEPS_SECONDS: Final = 20.0
_FORGOTTEN_AT_ONCE: Final = 500
_MARKED_SECONDS: Final = 1.0  # what is queued again is marked as waiting before it can be parked once more
_OVER: Final = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class Engine:
    """Runs the workflows of one process until closed. `on_step` hears the name of every step that was checkpointed.

    sql: the engine's own database, which is not closed here; the process ends next
    steps: of a process that reads
    """

    def __init__(
        self,
        sql: Database,
        sending: Sending,
        steps: Steps | None,
        *,
        process: Process,
        gate: Gate,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._sending, self._gate = sending, gate
        config: DBOSConfig = {
            "name": _APPLICATION,
            "system_database_url": sql.url.render_as_string(hide_password=True),
            "system_database_engine": sql,
            "application_version": _APPLICATION_VERSION,
            "executor_id": process.executor,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "WARNING",
            "use_listen_notify": not database.is_server(sql),  # nothing here waits for a message
            "notification_listener_polling_interval_sec": _POLLING_SECONDS,
        }
        DBOS(config=config)
        log.adopt("dbos")
        self._deliver = register(sending, steps, gate, on_step)
        deliveries = [name for destination in sending.destinations.values() for name in queues_of(destination)]
        if process.only is not None:
            DBOS.listen_queues([QUIET, STUDIES] if process.reads else [*deliveries, *_old_deliveries(sql)])
        DBOS.launch()
        _register_queue(QUIET)
        _register_queue(STUDIES, at_once=_STUDIES_AT_ONCE)
        for name in deliveries:
            _register_queue(name, at_once=_SENDS_AT_ONCE)

    def forgotten(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Those of some open deliveries that no work in hand will make, nor a round of their study yet queue."""
        held: set[str] = set()
        for one in DBOS.list_workflows(status=[*OPEN], name=["deliver", "commit", "study"], load_output=False):
            first = one.input["args"][0] if one.input else ""
            held |= {first} if isinstance(first, str) else {Delivery(**delivery).id for delivery in first}
        return [one for one in deliveries if one.id not in held and one.study_uid not in held]

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Queue deliveries that the engine does not know of."""
        for delivery in deliveries:
            DBOS.enqueue_workflow(queue_of(delivery.destination), self._deliver, [asdict(delivery)], 1, time.time())

    def recover(self, executor: str) -> int:
        """Put what an executor had in hand back into its queues, and count it; only when it is dead.

        What was put back by somebody else meanwhile stays where it is, whoever runs it by then.
        """
        return len(DBOS._recover_pending_workflows([executor]))

    def forget_older(self, limit: datetime) -> int:
        """Remove what the engine keeps of work that was over before a time, in small lots; how many there were.

        Raises SQLAlchemyError without a database.
        """
        count = 0
        while found := DBOS.list_workflows(
            status=_OVER,
            completed_before=limit.isoformat(),
            limit=_FORGOTTEN_AT_ONCE,
            load_input=False,
            load_output=False,
        ):
            DBOS.delete_workflows([one.workflow_id for one in found])
            count += len(found)
        return count

    def close(self) -> None:
        """Finish the steps in hand and let no other begin. The process must end next, as in a power cut.

        An orderly shutdown of the engine would mark what it interrupts as failed; after a cut, it goes on.
        """
        self._sending.pauses.close()
        is_doomed = self._gate.is_broken  # its work may be in other hands already
        self._gate.close(limit_seconds=0.0 if is_doomed else _LAST_STEPS_SECONDS)


class Client:
    """Queues work for a service that runs in another process, or will. Connects when it is first used.

    Every method raises SQLAlchemyError without a database, or before an executor has made its tables.
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
        """Whether an executor has made the tables that work is queued in."""
        return database.has_engine(self._sql)

    def touch_study(self, study_uid: str, settings: StudySettings) -> None:
        """Start or prolong the quiet time of a study."""
        debouncer = DebouncerClient(
            self._client,
            {"workflow_name": "quiet", "queue_name": QUIET, "app_version": _APPLICATION_VERSION},
            debounce_timeout_sec=settings.max_seconds,
        )
        debouncer.debounce(study_uid, settings.quiet_seconds, study_uid)

    def run_study(self, study_uid: str) -> None:
        """Look at a study again."""
        self._client.enqueue(
            {
                "workflow_name": "quiet",
                "queue_name": QUIET,
                "app_version": _APPLICATION_VERSION,
            },
            study_uid,
        )

    def run_delivery(self, delivery: Delivery) -> None:
        """Send an output again."""
        self._client.enqueue(
            {
                "workflow_name": "deliver",
                "queue_name": queue_of(delivery.destination),
                "app_version": _APPLICATION_VERSION,
                "delay_seconds": _MARKED_SECONDS,
            },
            [asdict(delivery)],
            1,
            time.time(),
        )

    def close(self) -> None:
        """Close the database."""
        self._client.destroy()
        self._sql.dispose()


def _old_deliveries(sql: Database) -> list[str]:
    """The queues of destinations that left the settings, too: what waits there is to be parked."""
    return [name for name in database.queues(sql) if name not in (QUIET, STUDIES)]


def _register_queue(name: str, *, at_once: int | None = None) -> None:
    """Tell the engine of a queue, and how many of its workflows one process runs at a time."""
    DBOS.register_queue(
        name, worker_concurrency=at_once, polling_interval_sec=_POLLING_SECONDS, on_conflict="always_update"
    )
