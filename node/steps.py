"""The steps of the durable workflows: plain JSON in and out, timed, counted, noted in the ledger.

A step that fails for good parks its study and says so in its result. What it still raises, a full disk or a lost
database, ends the process (`workflow`). Every step may be repeated: one that was cut short is run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, TypeVar, cast

from node import destinations, log
from node.config import DestinationSettings
from node.domain import Delivery, DeliveryState, OutputObject
from node.errors import DestinationDown, GiveUp, NodeError, RetryLater, is_of_disk, where
from node.ledger import Ledger
from node.metrics import Metrics
from node.pipeline import Pipeline, Round
from node.spool import sop_instance_uid_of

_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0

Json = dict[str, object]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the workflows do, in order: plan, read each file, write, deliver each output, finish."""

    pipeline: Pipeline
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]
    calling_aet: str

    def plan(self, study_uid: str) -> Json | None:
        """Fix what a round covers; None when there is nothing new or the study had to be parked."""

        def work() -> Json | None:
            with self.metrics.timed("plan"):
                planned = self.pipeline.plan(study_uid)
            self.ledger.set_study(study_uid, "reading" if planned else "finished")
            if planned is None:
                return None
            log.get().info("study.ready", study=study_uid, round=planned.number, instances=len(planned.files))
            return {**asdict(planned), "created_at": planned.created_at.isoformat()}

        return self._guarded("plan", study_uid, work, otherwise=None)

    def read(self, study_uid: str, file: str) -> str | None:
        """Answer one file; the outcome, or None when the study had to be parked."""

        def work() -> str:
            outcome = self.pipeline.read(study_uid, file)
            self.metrics.films.labels(outcome).inc()
            log.get().info("film.decided", study=study_uid, sop_instance_uid=sop_instance_uid_of(file), reason=outcome)
            return outcome

        return self._guarded("read", study_uid, work, otherwise=None)

    def write(self, plan: Json) -> Json | None:
        """Write the outputs of a round and note who receives each; None when the study had to be parked."""
        planned = _round(plan)

        def work() -> Json:
            with self.metrics.timed("write"):
                outputs = self.pipeline.write(planned)
            deliveries = {
                name: [
                    delivery
                    for output in outputs
                    if output.kind in settings.outputs and self._is_open(delivery := delivery_of(name, output))
                ]
                for name, settings in self.destinations.items()
            }
            for delivery in (one for several in deliveries.values() for one in several):
                self.ledger.add_delivery(delivery)
            return {
                "outputs": [asdict(output) for output in outputs],
                "deliveries": {
                    name: [asdict(one) for one in several] for name, several in deliveries.items() if several
                },
                "started": time.time(),
            }

        return self._guarded("write", planned.study_uid, work, otherwise=None)

    def _is_open(self, delivery: Delivery) -> bool:
        """Whether an output was not handed to a destination before: what exists is not sent a second time."""
        return self.ledger.delivery_state(delivery) in (None, DeliveryState.WAITING)

    def finish(self, plan: Json, outcomes: list[str], written: Json) -> None:
        """Mark a round as finished; written: what `write` returned."""
        planned = _round(plan)

        def work() -> None:
            outputs = [OutputObject(**output) for output in cast(list[dict[str, str]], written["outputs"])]
            with self.metrics.timed("finish"):
                self.pipeline.finish(planned, outputs)
            is_read = not self.pipeline.spool.has_unread(planned.study_uid)
            self.ledger.set_study(planned.study_uid, "finished" if is_read else "receiving")
            identity = self.pipeline.reader.identity
            log.get().info(
                "study.finished",
                study=planned.study_uid,
                round=planned.number,
                instances=len(planned.files),
                read=outcomes.count("read"),
                not_processed=sum(outcome != "read" and not outcome.startswith("left:") for outcome in outcomes),
                outputs=len(outputs),
                seconds=round(time.time() - planned.created_at.timestamp(), 3),
                model=f"{identity.name} {identity.version}",
                prompts=self.pipeline.prompts.name,
            )

        self._guarded("finish", planned.study_uid, work, otherwise=None)

    def send(self, delivered: dict[str, str], attempt: int, started: float) -> Json:
        """Try to deliver one output once; one that was sent, but not noted by the engine, is not sent again.

        started: when it was written, in seconds since the epoch
        Returns its outcome (sent, delayed, parked); when delayed, the seconds to wait and whether the destination
        itself is down.
        """
        delivery = Delivery(**delivered)
        if self.ledger.delivery_state(delivery) is DeliveryState.SENT:
            return {"outcome": "sent"}
        settings = self.destinations.get(delivery.destination)
        if settings is None:
            return self._parked(delivery, attempt, "removed", reason="the destination is no longer in the settings")
        self.ledger.set_delivery(delivery, DeliveryState.SENDING, attempts=attempt)
        path = self.pipeline.spool.output_path(delivery)
        try:
            with self.metrics.timed("deliver"):
                destinations.deliver(path, settings, calling_aet=self.calling_aet)
        except RetryLater as error:
            if time.time() - started > settings.give_up_hours * 3600:
                reason = f"{error}; gave up after {settings.give_up_hours:g} hours"
                return self._parked(delivery, attempt, "expired", reason=reason)
            return self._delayed(delivery, attempt, error)
        except GiveUp as error:
            return self._parked(delivery, attempt, "rejected", reason=str(error))
        except Exception as error:  # a boundary: park what nobody foresaw, and go on with everything else
            return self._parked(delivery, attempt, "unforeseen", reason=where(error))
        if self.ledger.set_sent(delivery, attempts=attempt):
            self._observe_turnaround(delivery.study_uid, started)
        self._count(delivery, "sent", attempt)
        return {"outcome": "sent"}

    def _observe_turnaround(self, study_uid: str, started: float) -> None:
        """Note how long ago the last object came that the outputs, written at `started`, can speak of."""
        arrivals = [one.received_at.timestamp() for one in self.pipeline.spool.study(study_uid).instances]
        last = max((arrival for arrival in arrivals if arrival <= started), default=started)
        self.metrics.turnaround_seconds.observe(time.time() - last)

    def _delayed(self, delivery: Delivery, attempt: int, error: RetryLater) -> Json:
        is_down = isinstance(error, DestinationDown)
        self.ledger.set_delivery(delivery, DeliveryState.WAITING, attempts=attempt, reason=str(error), is_down=is_down)
        self.metrics.failures.labels("deliver", "down" if is_down else "busy").inc()
        wait = min(_FIRST_WAIT_SECONDS * 2 ** (attempt - 1), _LONGEST_WAIT_SECONDS)
        self._count(delivery, "delayed", attempt, reason=str(error), seconds=wait)
        return {"outcome": "delayed", "wait": wait, "down": is_down}

    def _parked(self, delivery: Delivery, attempt: int, failure: str, *, reason: str) -> Json:
        self.metrics.failures.labels("deliver", failure).inc()
        self.ledger.set_delivery(delivery, DeliveryState.PARKED, attempts=attempt, reason=reason)
        self._count(delivery, "parked", attempt, reason=reason)
        return {"outcome": "parked"}

    def _count(self, delivery: Delivery, outcome: str, attempt: int, **facts: object) -> None:
        self.metrics.deliveries.labels(delivery.destination, outcome).inc()
        severity = {"sent": log.get().info, "delayed": log.get().warning, "parked": log.get().error}[outcome]
        severity(
            f"delivery.{outcome}",
            destination=delivery.destination,
            study=delivery.study_uid,
            sop_instance_uid=delivery.sop_instance_uid,
            kind=delivery.kind,
            attempts=attempt,
            **facts,
        )

    def _guarded(self, stage: str, study_uid: str, work: Callable[[], _T], *, otherwise: _T) -> _T:
        """Run a step's work; whatever it raises parks the study with its class and place, never its text.

        A disk that is full or fails is no matter of one study: that is raised, and ends the process.
        """
        try:
            return work()
        except Exception as error:  # a boundary: one strange study must not stop the others
            if is_of_disk(error):
                raise
            is_foreseen = isinstance(error, NodeError)
            self.metrics.failures.labels(stage, "foreseen" if is_foreseen else "unforeseen").inc()
            reason = str(error) if is_foreseen else where(error)
            log.get().error("study.parked", study=study_uid, stage=stage, reason=reason)
            self.ledger.set_study(study_uid, "parked", stage=stage, reason=reason)
            return otherwise


def _round(plan: Json) -> Round:
    return Round(
        study_uid=str(plan["study_uid"]),
        number=int(str(plan["number"])),
        files=tuple(str(file) for file in cast(list[object], plan["files"])),
        created_at=datetime.fromisoformat(str(plan["created_at"])),
    )


def delivery_of(destination: str, output: OutputObject) -> Delivery:
    """One output on its way to one destination."""
    return Delivery(
        destination=destination,
        study_uid=output.study_uid,
        sop_instance_uid=output.sop_instance_uid,
        kind=output.kind,
    )
