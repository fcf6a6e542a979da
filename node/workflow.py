"""The durable steps, queues and timers; the only file that imports `dbos`.

    quiet    a study's silence, debounced durably; its end queues the study
    study    plan > read each file > write > queue one delivery per destination > finish
    deliver  sends one output after the other until each is sent or parked; waits durably between attempts

Rounds of one study run one after the other (a queue partition per study). A destination that is down holds the slots
of its own queue and nobody else's; an object that a destination does not take now waits outside. Workflow code is
deterministic: clock, disk and network are touched in steps only, and arguments are JSON without patient data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from dbos import (
    DBOS,
    DBOSClient,
    DBOSConfig,
    DBOSPortableJSONSerializer,
    Debouncer,
    SetEnqueueOptions,
    SetWorkflowID,
)

from node import log
from node.config import StudySettings
from node.domain import Delivery
from node.errors import where
from node.ledger import connect
from node.steps import Steps

# Old work is picked up after an upgrade only when this stays; a changed order of steps goes through DBOS.patch().
_APPLICATION_VERSION: Final = "1"
_POLLING_SECONDS: Final = 0.2
_STUDIES_AT_ONCE: Final = 2
_SENDS_AT_ONCE: Final = 2
_LAST_STEPS_SECONDS: Final = 20.0
_RECOVERIES: Final = 1_000_000  # a study is never given up because the machine was switched off often

_Delivery = dict[str, str]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workflows:
    quiet: Callable[[str], None]
    study: Callable[[str], None]
    deliver: Callable[[list[_Delivery], int, float], None]


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
        self._gate = _Gate()
        self._workflows = _register(steps, self._gate, on_step)
        DBOS.launch()
        DBOS.register_queue("quiet", polling_interval_sec=_POLLING_SECONDS, on_conflict="always_update")
        DBOS.register_queue(
            "studies",
            worker_concurrency=_STUDIES_AT_ONCE,
            partition_concurrency=1,
            polling_interval_sec=_POLLING_SECONDS,
            on_conflict="always_update",
        )
        for destination in steps.destinations:
            DBOS.register_queue(
                _queue(destination),
                worker_concurrency=_SENDS_AT_ONCE,
                polling_interval_sec=_POLLING_SECONDS,
                on_conflict="always_update",
            )
        self._debouncer = Debouncer.create(
            self._workflows.quiet, debounce_timeout_sec=settings.max_seconds, queue="quiet"
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
                _queue(delivery.destination), self._workflows.deliver, [asdict(delivery)], 1, time.time()
            )

    def close(self) -> None:
        """Finish the steps in hand and let no other begin. The process must end next, as in a power cut.

        An orderly shutdown of the engine would mark what it interrupts as failed; after a cut, it goes on.
        """
        self._gate.close(limit_seconds=_LAST_STEPS_SECONDS)


class _Gate:
    """Counts the steps in hand. Once closed, whoever comes waits for the end of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_hand = 0
        self._is_closed = False
        self.is_broken = False

    def run(self, work: Callable[[], _T]) -> _T:
        """Be a step in hand.

        Work that raises closes the gate for good and never comes back: nothing may be noted of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._in_hand += 1
        try:
            result = work()
        except Exception as error:  # the boundary to disk and database, without which nothing durable goes on
            log.get().error("engine.broken", reason=where(error))
            self._leave(is_broken=True)
            while True:
                threading.Event().wait()
        self._leave()
        return result

    def close(self, *, limit_seconds: float) -> None:
        """Let nobody in any more, and wait for those inside."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._in_hand == 0, limit_seconds)

    def _leave(self, *, is_broken: bool = False) -> None:
        with self._changed:
            self._in_hand -= 1
            self.is_broken |= is_broken
            self._is_closed |= is_broken
            self._changed.notify_all()


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
                "queue_name": "studies",
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
                "queue_name": _queue(delivery.destination),
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


def _queue(destination: str) -> str:
    return f"deliver {destination}"


def _register(steps: Steps, gate: _Gate, on_step: Callable[[str], None]) -> _Workflows:
    """Register the three workflows with the engine."""

    def step(name: str, work: Callable[..., _T], *arguments: object) -> _T:
        # The gate stands inside the engine's step, so that an error is never noted as its result.
        result = DBOS.run_step({"name": name}, lambda: gate.run(lambda: work(*arguments)))
        on_step(name)
        return result

    @DBOS.workflow(name="deliver", max_recovery_attempts=_RECOVERIES)
    def deliver(deliveries: list[_Delivery], attempt: int, started: float) -> None:
        later, wait = [], 0.0
        for delivery in deliveries:
            tries = attempt
            while (result := step("send", steps.send, delivery, tries, started)).get("down"):
                DBOS.sleep(cast(float, result["wait"]))  # in its slot: a destination that is down is tried by few
                tries += 1
            if result["outcome"] == "delayed":
                later.append(delivery)
                wait = cast(float, result["wait"])
        if later:  # out of its slot: an object that is not taken now stops no other
            with SetEnqueueOptions(delay_seconds=wait):
                DBOS.enqueue_workflow(_queue(later[0]["destination"]), deliver, later, attempt + 1, started)

    @DBOS.workflow(name="study", max_recovery_attempts=_RECOVERIES)
    def study(study_uid: str) -> None:
        plan = step("plan", steps.plan, study_uid)
        if plan is None:
            return
        outcomes = []
        for file in cast(list[str], plan["files"]):
            outcome = step("read", steps.read, study_uid, file)
            if outcome is None:
                return
            outcomes.append(outcome)
        written = step("write", steps.write, plan)
        if written is None:
            return
        for destination, deliveries in cast(dict[str, list[_Delivery]], written["deliveries"]).items():
            with SetWorkflowID(f"deliver:{destination}:{study_uid}:{plan['number']}:{plan['created_at']}"):
                DBOS.enqueue_workflow(_queue(destination), deliver, deliveries, 1, cast(float, written["started"]))
            on_step("queue")
        step("finish", steps.finish, plan, outcomes, written)

    @DBOS.workflow(name="quiet", max_recovery_attempts=_RECOVERIES)
    def quiet(study_uid: str) -> None:
        with SetEnqueueOptions(queue_partition_key=study_uid):
            DBOS.enqueue_workflow("studies", study, study_uid)
        on_step("ready")

    return _Workflows(quiet=quiet, study=study, deliver=deliver)
