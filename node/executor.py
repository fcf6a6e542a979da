"""One executor of the durable engine: its database, its queues, and who hands work to it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer, Debouncer

from node import log
from node.config import StudySettings
from node.domain import Delivery
from node.gate import Gate
from node.ledger import connect
from node.steps import Steps
from node.workflow import QUIET, STUDIES, queue_of, register

# Old work is picked up after an upgrade only when this stays; a changed order of steps goes through DBOS.patch().
_APPLICATION_VERSION: Final = "1"
_POLLING_SECONDS: Final = 0.2
_STUDIES_AT_ONCE: Final = 2
_SENDS_AT_ONCE: Final = 2
_LAST_STEPS_SECONDS: Final = 20.0


class Engine:
    """Runs the workflows of one process until closed. `on_step` hears the name of every step that was checkpointed."""

    def __init__(
        self, database: Path, steps: Steps, settings: StudySettings, *, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._sql = connect(database)
        config: DBOSConfig = {
            "name": "chex-node",
            "system_database_url": f"sqlite:///{database}",
            "system_database_engine": self._sql,
            "application_version": _APPLICATION_VERSION,
            "executor_id": "node",
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "WARNING",
            "notification_listener_polling_interval_sec": _POLLING_SECONDS,
        }
        DBOS(config=config)
        log.adopt("dbos")
        self._gate = Gate()
        self._workflows = register(steps, self._gate, on_step)
        DBOS.launch()
        DBOS.register_queue(QUIET, polling_interval_sec=_POLLING_SECONDS, on_conflict="always_update")
        DBOS.register_queue(
            STUDIES,
            worker_concurrency=_STUDIES_AT_ONCE,
            partition_concurrency=1,
            polling_interval_sec=_POLLING_SECONDS,
            on_conflict="always_update",
        )
        for destination in steps.destinations:
            DBOS.register_queue(
                queue_of(destination),
                worker_concurrency=_SENDS_AT_ONCE,
                polling_interval_sec=_POLLING_SECONDS,
                on_conflict="always_update",
            )
        self._debouncer = Debouncer.create(
            self._workflows.quiet, debounce_timeout_sec=settings.max_seconds, queue=QUIET
        )

    def touch_study(self, study_uid: str) -> None:
        """Start or prolong the quiet time of a study. May block while the database is busy."""
        self._debouncer.debounce(study_uid, self._settings.quiet_seconds, study_uid)

    @property
    def is_broken(self) -> bool:
        """Whether a step met a full disk or a lost database: the process must end, and go on where it was."""
        return self._gate.is_broken

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Queue deliveries that the engine does not know of."""
        for delivery in deliveries:
            DBOS.enqueue_workflow(
                queue_of(delivery.destination), self._workflows.deliver, [asdict(delivery)], 1, time.time()
            )

    def close(self) -> None:
        """Finish the steps in hand and let no other begin. The process must end next, as in a power cut.

        An orderly shutdown of the engine would mark what it interrupts as failed; after a cut, it goes on.
        """
        self._gate.close(limit_seconds=_LAST_STEPS_SECONDS)


class Client:
    """Queues work for a service that runs in another process, or will."""

    def __init__(self, database: Path) -> None:
        self._sql = connect(database)
        self._client = DBOSClient(system_database_engine=self._sql, serializer=DBOSPortableJSONSerializer())

    def run_study(self, study_uid: str) -> None:
        """Look at a study again."""
        self._client.enqueue(
            {
                "workflow_name": "study",
                "queue_name": STUDIES,
                "queue_partition_key": study_uid,
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
            },
            [asdict(delivery)],
            1,
            time.time(),
        )

    def close(self) -> None:
        """Close the database."""
        self._client.destroy()
        self._sql.dispose()
