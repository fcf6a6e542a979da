"""The steps of a delivery: send one object, wait for a destination that is down, ask for storage commitment.

Each step is timed and counted, and records its result in the ledger. Every step may run again: a step that was
interrupted is repeated. An error of the disk or the database ends the process (`running_steps`).
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from node import log
from node.deliver.commitment import Commitments, Next, decide
from node.deliver.connections import Associations
from node.deliver.kinds import Asking, Calling, can_confirm, sender_of
from node.deliver.results import Asked, DeliveryBatch, Outcome, Sent
from node.domain import ROUTINE, Delivery, DeliveryState, derive_uid
from node.errors import DestinationDown, GiveUp, OutcomeUnknown, RetryLater, where
from node.metrics import Metrics
from node.settings.destinations import DestinationSettings, DicomDestination
from node.store import questions, received
from node.store.ledger import Ledger, is_away
from node.store.ledger_queries import DeliveryRow
from node.store.spool import Spool

_FIRST_WAIT_SECONDS: Final = 1.0
_FIRST_ASK_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
_PROBE_STEP_SECONDS: Final = 60.0
_HOUR_SECONDS: Final = 3600.0
_MOST_UNKNOWN: Final = 6  # answers, in half a minute: an answer that is garbled for a moment is readable again by then
_FIRST_PROBE_SECONDS: Final = 1.0
_LAST_PROBE_SECONDS: Final = 5.0
_PATIENCE: Final = 4.0  # after a pause of 4 s the next probe comes 1 s later, after 20 s and more 5 s
_REMOVED: Final = "the destination is no longer in the settings; add it again and retry, or abandon it"


class Pauses:
    """Waits for destinations that are down, until closed: one delivery probes each, and its answer is for all."""

    def __init__(self) -> None:
        self._closing = threading.Event()
        self._probing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._down_since: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}

    def close(self) -> None:
        """End every current and future wait at once."""
        self._closing.set()

    def wait(self, destination: str, probe: Callable[[], None], *, limit_seconds: float) -> bool:
        """Wait until a destination answers; false when it does not answer in time, or when the node stops.

        probe: returns when the destination answers, raises RetryLater when not; called at once, then every 1 to 5 s
        """
        began, turn = time.monotonic(), self._probing[destination]
        if not turn.acquire(timeout=max(0.0, limit_seconds)):
            return False
        try:
            if self._answered_at.get(destination, -math.inf) >= began:
                return True
            while not self._closing.is_set():
                seconds_to_next = self._probed(destination, probe)
                left = began + limit_seconds - time.monotonic()
                if seconds_to_next is None or left <= 0:
                    return seconds_to_next is None
                self._closing.wait(min(seconds_to_next, left))
            return False
        finally:
            turn.release()

    def _probed(self, destination: str, probe: Callable[[], None]) -> float | None:
        """Probe a destination; return the seconds until the next probe, None if it answers."""
        try:
            probe()
        except RetryLater as error:
            now = time.monotonic()
            if destination not in self._down_since:
                self._down_since[destination] = now
                log.get().warning("destination.down", destination=destination, reason=str(error))
            down_seconds = now - self._down_since[destination]
            return min(max(down_seconds / _PATIENCE, _FIRST_PROBE_SECONDS), _LAST_PROBE_SECONDS)
        self._answered_at[destination] = now = time.monotonic()
        if (since := self._down_since.pop(destination, None)) is not None:
            log.get().info("destination.back", destination=destination, seconds=round(now - since, 1))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The steps of the workflows `deliver` and `commit`.

    rewrite: asks the process with the model to write the missing or damaged outputs of a study again
    report_seconds: how long an association stays open for the report after commitment was requested on it
    """

    spool: Spool
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]
    commitments: Commitments
    rewrite: Callable[[str], None]
    calling_aet: str
    associations: Associations = field(default_factory=Associations)
    pauses: Pauses = field(default_factory=Pauses)
    report_seconds: float = 2.0

    @property
    def _calling(self) -> Calling:
        return Calling(ae_title=self.calling_aet, associations=self.associations)

    def send(self, delivery: Delivery, attempt: int, started: float, *, may_give_way: bool = False) -> Sent:
        """Try once to deliver one output. An output that the ledger records as sent is not sent again.

        started: when the output was written, in seconds since the epoch
        may_give_way: do not send a routine output while a critical one waits or is sent to the same destination
        """
        settings = self.destinations.get(delivery.destination)
        record = self.ledger.delivery_record(delivery)
        if record is not None and record.state in (DeliveryState.SENT, DeliveryState.COMMITTED):
            return _sent(is_asked=record.state is DeliveryState.SENT and record.awaits_commitment)
        if record is not None and record.state is DeliveryState.ABANDONED:
            return Sent(outcome=Outcome.ABANDONED)
        if settings is None:
            return self._parked(delivery, attempt, "removed", reason=_REMOVED)
        if may_give_way and delivery.priority == ROUTINE and self.ledger.awaits_critical(delivery.destination):
            return Sent(outcome=Outcome.GAVE_WAY)
        content = self.spool.output(delivery)
        if content is None:
            return self._rewritten(delivery, record, attempt, settings=settings, started=started)
        if not self.ledger.set_delivery(delivery, DeliveryState.SENDING, attempts=attempt):
            return Sent(outcome=Outcome.ABANDONED)  # just now
        log.get().debug("delivery.begun", attempts=attempt, **_facts(delivery, settings))
        began = time.monotonic()
        try:
            with self.metrics.timed("deliver"):
                sender_of(settings).send(content, settings, self._calling)
        except RetryLater as error:
            failed = attempt
            if isinstance(error, OutcomeUnknown):
                failed = 1 + (0 if record is None else record.unclear)
                if failed >= _MOST_UNKNOWN:
                    return self._parked(delivery, attempt, "unknown", reason=_open(error, settings))
            if time.time() > _end(settings, started):
                return self._parked(delivery, attempt, "expired", reason=_gave_up(error, settings))
            return self._delayed(delivery, attempt, error, seconds=_wait(settings, started, attempt=failed))
        except GiveUp as error:
            return self._parked(delivery, attempt, "rejected", reason=str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a boundary: park after an unforeseen error, and go on with other work
            return self._parked(delivery, attempt, "unforeseen", reason=where(error))
        is_asked = _commits(settings)
        if self.ledger.set_sent(delivery, attempts=attempt, awaits_commitment=is_asked):
            self._observe_turnaround(delivery, started)
        self._count(delivery, "sent", attempt, seconds=round(time.monotonic() - began, 3))
        return _sent(is_asked=is_asked)

    def _rewritten(
        self,
        delivery: Delivery,
        record: DeliveryRow | None,
        attempt: int,
        *,
        settings: DestinationSettings,
        started: float,
    ) -> Sent:
        """Have a missing or damaged output written again and send it later; if that failed before, it stays parked."""
        if record is not None and record.state is DeliveryState.PARKED:
            return Sent(outcome=Outcome.PARKED)
        self.metrics.damaged.labels("output").inc()
        received.note_damage(self.spool.directory, "output")
        log.get().error(
            "output.damaged", study=delivery.study_uid, sop_instance_uid=delivery.sop_instance_uid, kind=delivery.kind
        )
        error = RetryLater("the stored output is missing or damaged; the node writes it again")
        if time.time() > _end(settings, started):
            return self._parked(delivery, attempt, "expired", reason=_gave_up(error, settings))
        self.rewrite(delivery.study_uid)
        return self._delayed(delivery, attempt, error, seconds=_wait(settings, started, attempt=attempt))

    def probe(self, destination: str, started: float) -> bool:
        """Wait at most a minute for a destination that is down; returns whether to try sending again.

        True when the destination answers, and when the time to give up has come.
        """
        settings = self.destinations.get(destination)
        if settings is None:
            return True
        end = _end(settings, started)
        limit = min(_PROBE_STEP_SECONDS, end - time.time())
        try:
            is_back = self.pauses.wait(
                destination,
                lambda: sender_of(settings).probe(settings, self._calling),
                limit_seconds=limit,
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a boundary: try to send; if the unforeseen error comes again, `send` parks the delivery
            return True
        return is_back or time.time() >= end

    def commit(self, deliveries: Sequence[Delivery], attempt: int, started: float) -> Asked:
        """Ask a destination for storage commitment of the deliveries of a study that still await it.

        Skips destinations that no longer use storage commitment. Re-sends outputs that a destination reported as lost.
        started: when the outputs were sent, in seconds since the epoch
        """
        settings = self.destinations.get(deliveries[0].destination)
        open_ = [delivery for delivery in deliveries if self._next(delivery) is Next.ASK]
        is_down, seconds = False, 0.0
        if settings is not None and _commits(settings):
            is_down = self._ask(open_, settings, attempt, started)
            seconds = _wait(settings, started, attempt=attempt, first=_FIRST_ASK_SECONDS)
        else:
            for delivery in open_:
                self.ledger.release(delivery)
        found = {delivery: self._next(delivery) for delivery in deliveries}
        for delivery in (delivery for delivery, step in found.items() if step is Next.PARK):
            record = self.ledger.delivery_record(delivery)
            self._parked(delivery, attempt, "failed", reason=(record and record.reason) or "", stage="commit")
        open_ = [delivery for delivery, step in found.items() if step is Next.ASK]
        return Asked(
            again=tuple(delivery for delivery, step in found.items() if step is Next.SEND_AGAIN),
            open=tuple(open_),
            is_down=is_down and bool(open_),
            wait_seconds=seconds,
            at=time.time(),
        )

    def park_lost(self, batch: DeliveryBatch, *, reason: str) -> None:
        """Park those deliveries of a workflow that was lost again and again (`lost_workflows`) that are still open."""
        for delivery in batch.deliveries:
            record = self.ledger.delivery_record(delivery)
            if record is None or record.state in (DeliveryState.WAITING, DeliveryState.SENDING):
                self._parked(delivery, batch.attempt, "lost", reason=reason)
            elif decide(record) is Next.ASK:
                self._parked(delivery, batch.attempt, "lost", reason=reason, stage="commit")

    def _next(self, delivery: Delivery) -> Next:
        return decide(self.ledger.delivery_record(delivery))

    def _ask(self, open_: Sequence[Delivery], settings: DestinationSettings, attempt: int, started: float) -> bool:
        """Request commitment in one transaction and wait briefly for the answer; park those never committable.

        Returns whether the destination is down.
        """
        confirm = sender_of(settings).confirm
        if not open_ or confirm is None:
            return False
        asking = Asking(
            calling=self._calling,
            transaction_uid=derive_uid("transaction", str(uuid.uuid4())),
            sent_at=started,
            commitments=self.commitments,
            is_over=lambda: all(self._next(delivery) is not Next.ASK for delivery in open_),
            report_seconds=self.report_seconds,
        )
        self.ledger.add_transaction(asking.transaction_uid, open_)  # before the request: the report may come at once
        error: RetryLater | None = None
        try:
            with self.metrics.timed("commit"):
                confirm(open_, settings, asking)
        except RetryLater as caught:
            error = caught
            self.metrics.failures.labels("commit", "down" if isinstance(error, DestinationDown) else "busy").inc()
            log.get().warning(
                "commitment.delayed", destination=settings.name, study=open_[0].study_uid, attempts=attempt,
                reason=str(error),
            )  # fmt: skip
        except GiveUp as caught:
            self._park_open(open_, attempt, "rejected", reason=str(caught))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:  # a boundary: park after an unforeseen error, and go on with other work
            if is_away(caught):
                raise
            self._park_open(open_, attempt, "unforeseen", reason=where(caught))
        if time.time() > _end(settings, started):
            reason = error or sender_of(settings).silence.format(settings.name)
            self._park_open(open_, attempt, "expired", reason=_gave_up(reason, settings))
        return isinstance(error, DestinationDown)

    def _park_open(self, deliveries: Sequence[Delivery], attempt: int, failure: str, *, reason: str) -> None:
        for delivery in deliveries:
            if self._next(delivery) is Next.ASK:
                self._parked(delivery, attempt, failure, reason=reason, stage="commit")

    def _observe_turnaround(self, delivery: Delivery, started: float) -> None:
        """Record the time since the last thing came that the outputs, written at `started`, can follow.

        That is an object or the release of a reader's corrections: a film that is corrected may have arrived long ago.
        An answer that a person sends counts for nothing.
        """
        study_uid = delivery.study_uid
        answers = questions.answer_outputs(self.spool, study_uid)
        if any(output.sop_instance_uid == delivery.sop_instance_uid for output in answers):
            return
        arrivals = [instance.received_at for instance in self.spool.instances(study_uid)]
        arrivals += [release.at for release in self.spool.releases(study_uid)]
        last = max((at.timestamp() for at in arrivals if at.timestamp() <= started), default=started)
        self.metrics.turnaround_seconds.observe(time.time() - last)

    def _delayed(self, delivery: Delivery, attempt: int, error: RetryLater, *, seconds: float) -> Sent:
        is_down = isinstance(error, DestinationDown)
        self.ledger.set_delivery(
            delivery,
            DeliveryState.WAITING,
            attempts=attempt,
            reason=str(error),
            is_down=is_down,
            is_unclear=isinstance(error, OutcomeUnknown),
        )
        self.metrics.failures.labels("deliver", "down" if is_down else "busy").inc()
        self._count(delivery, "delayed", attempt, reason=str(error), seconds=seconds)
        return Sent(outcome=Outcome.DOWN if is_down else Outcome.DELAYED, wait_seconds=seconds)

    def _parked(self, delivery: Delivery, attempt: int, failure: str, *, reason: str, stage: str = "deliver") -> Sent:
        self.metrics.failures.labels(stage, failure).inc()
        self.ledger.set_delivery(delivery, DeliveryState.PARKED, attempts=attempt, reason=reason)
        self._count(delivery, "parked", attempt, reason=reason)
        return Sent(outcome=Outcome.PARKED)

    def _count(self, delivery: Delivery, outcome: str, attempt: int, **facts: object) -> None:
        self.metrics.deliveries.labels(delivery.destination, outcome).inc()
        severity = {"sent": log.get().info, "delayed": log.get().warning, "parked": log.get().error}[outcome]
        severity(
            f"delivery.{outcome}",
            attempts=attempt,
            **_facts(delivery, self.destinations.get(delivery.destination)),
            **facts,
        )


def _facts(delivery: Delivery, settings: DestinationSettings | None) -> dict[str, str]:
    """Return the log fields that identify a delivery; for an archive also its AE title and address."""
    known = {} if settings is None else {"host": settings.host}
    if isinstance(settings, DicomDestination):
        known["called_aet"] = settings.ae_title
    return {
        "destination": delivery.destination,
        "study": delivery.study_uid,
        "sop_instance_uid": delivery.sop_instance_uid,
        "kind": delivery.kind,
        **known,
    }


def _commits(settings: DestinationSettings) -> bool:
    return settings.storage_commitment and can_confirm(settings)


def _end(settings: DestinationSettings, started: float) -> float:
    """When to give up, in seconds since the epoch."""
    return started + settings.give_up_hours * _HOUR_SECONDS


def _wait(settings: DestinationSettings, started: float, *, attempt: int, first: float = _FIRST_WAIT_SECONDS) -> float:
    """Return the seconds until the next attempt: doubled each time, at most an hour, and not long past the end."""
    left = max(_end(settings, started) - time.time(), _FIRST_WAIT_SECONDS)
    return float(min(first * 2 ** min(attempt - 1, 20), _LONGEST_WAIT_SECONDS, left))


def _gave_up(reason: RetryLater | str, settings: DestinationSettings) -> str:
    return f"{reason}; gave up after {settings.give_up_hours:g} hours, retry when the cause is fixed"


def _open(reason: OutcomeUnknown, settings: DestinationSettings) -> str:
    return (
        f"{reason}, so it may have the result, and each repeat may store it again; have {settings.name} answer as its "
        "standard says, look whether it has the result, then retry or abandon"
    )


def _sent(*, is_asked: bool) -> Sent:
    return Sent(outcome=Outcome.SENT, to_confirm_since=time.time() if is_asked else None)
