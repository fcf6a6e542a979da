"""The steps of a delivery: send one object, wait for a destination that is down, have it commit to what it was sent.

Plain JSON in and out, timed, counted, noted in the ledger. Every step may be repeated: one that was cut short is run
again. What a step raises, a full disk or a lost database, ends the process (`gate`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, TypeGuard

from node import destinations, log
from node.commitment import Commitments, Next, decide
from node.config import DestinationSettings, DicomDestination
from node.destinations import dicom
from node.domain import Delivery, DeliveryState, derive_uid
from node.errors import DestinationDown, GiveUp, RetryLater, where
from node.ledger import Ledger, is_away
from node.metrics import Metrics
from node.pauses import Pauses
from node.spool import Spool

_FIRST_WAIT_SECONDS: Final = 1.0
_FIRST_ASK_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 3600.0
_PROBE_STEP_SECONDS: Final = 60.0
_HOUR_SECONDS: Final = 3600.0
_REMOVED: Final = "the destination is no longer in the settings; name it there again and retry, or abandon it"

DeliveryJson = dict[str, str]
Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What the workflows `deliver` and `commit` do.

    report_seconds: how long an association on which commitment was asked for stays open for the answer
    """

    spool: Spool
    ledger: Ledger
    metrics: Metrics
    destinations: Mapping[str, DestinationSettings]
    commitments: Commitments
    calling_aet: str
    pauses: Pauses = field(default_factory=Pauses)
    report_seconds: float = 2.0

    def send(self, delivered: DeliveryJson, attempt: int, started: float) -> Json:
        """Try to deliver one output once; one that was sent, but not noted by the engine, is not sent again.

        started: when it was written, in seconds since the epoch
        Returns its outcome: sent, delayed, parked, abandoned, or down when it is its destination that takes nothing;
        the seconds to wait; and when it was sent, if its destination is to commit to it.
        """
        delivery = Delivery(**delivered)
        settings = self.destinations.get(delivery.destination)
        standing = self.ledger.standing(delivery)
        if standing is not None and standing.state in (DeliveryState.SENT, DeliveryState.COMMITTED):
            return _sent(is_asked=standing.state is DeliveryState.SENT and standing.awaits_commitment)
        if standing is not None and standing.state is DeliveryState.ABANDONED:
            return {"outcome": "abandoned"}
        if settings is None:
            return self._parked(delivery, attempt, "removed", reason=_REMOVED)
        self.ledger.set_delivery(delivery, DeliveryState.SENDING, attempts=attempt)
        try:
            with self.metrics.timed("deliver"):
                destinations.deliver(self.spool.output_path(delivery), settings, calling_aet=self.calling_aet)
        except RetryLater as error:
            if time.time() > _end(settings, started):
                return self._parked(delivery, attempt, "expired", reason=_gave_up(error, settings))
            return self._delayed(delivery, attempt, error, seconds=_wait(settings, started, attempt=attempt))
        except GiveUp as error:
            return self._parked(delivery, attempt, "rejected", reason=str(error))
        except Exception as error:  # a boundary: park what nobody foresaw, and go on with everything else
            return self._parked(delivery, attempt, "unforeseen", reason=where(error))
        is_asked = _commits(settings)
        if self.ledger.set_sent(delivery, attempts=attempt, awaits_commitment=is_asked):
            self._observe_turnaround(delivery.study_uid, started)
        self._count(delivery, "sent", attempt)
        return _sent(is_asked=is_asked)

    def probe(self, destination: str, started: float) -> bool:
        """Wait a minute at most for a destination that is down; whether sending is to be tried again.

        It is when the destination answers, and when the time to give up has come.
        """
        settings = self.destinations.get(destination)
        if settings is None:
            return True
        end = _end(settings, started)
        limit = min(_PROBE_STEP_SECONDS, end - time.time())
        try:
            is_back = self.pauses.wait(
                destination,
                lambda: destinations.probe(settings, calling_aet=self.calling_aet),
                limit_seconds=limit,
            )
        except Exception:  # a boundary: what nobody foresaw, sending meets again and parks
            return True
        return is_back or time.time() >= end

    def commit(self, delivered: list[DeliveryJson], attempt: int, started: float) -> Json:
        """Ask a destination to commit to what it was sent of a study, as far as it did not.

        One that is not to commit any more, or is gone, is not asked; what it said before that it lost is sent again.
        started: when they were sent, in seconds since the epoch
        Returns those to be sent again, those to be asked for again, whether it is down for these, the seconds to wait
        before, and the time.
        """
        deliveries = [Delivery(**one) for one in delivered]
        settings = self.destinations.get(deliveries[0].destination)
        open_ = [one for one in deliveries if self._next(one) is Next.ASK]
        is_down, seconds = False, 0.0
        if settings is not None and _commits(settings):
            is_down = self._ask(open_, settings, attempt, started)
            seconds = _wait(settings, started, attempt=attempt, first=_FIRST_ASK_SECONDS)
        else:
            for delivery in open_:
                self.ledger.release(delivery)
        found = {delivery: self._next(delivery) for delivery in deliveries}
        for delivery in (one for one, what in found.items() if what is Next.PARK):
            standing = self.ledger.standing(delivery)
            self._parked(delivery, attempt, "failed", reason=(standing and standing.reason) or "", stage="commit")
        return _asked(
            [one for one, what in found.items() if what is Next.SEND_AGAIN],
            [one for one, what in found.items() if what is Next.ASK],
            is_down=is_down,
            seconds=seconds,
        )

    def _next(self, delivery: Delivery) -> Next:
        return decide(self.ledger.standing(delivery))

    def _ask(self, open_: Sequence[Delivery], settings: DicomDestination, attempt: int, started: float) -> bool:
        """Ask for those in one transaction and wait a little for the answer; park what can or need not be asked.

        Returns whether the destination is down.
        """
        if not open_:
            return False
        transaction_uid = derive_uid("transaction", str(uuid.uuid4()))
        self.ledger.add_transaction(transaction_uid, open_)  # before it is asked: the answer may come at once
        error: RetryLater | None = None
        try:
            with self.metrics.timed("commit"):
                dicom.ask_commitment(
                    [self.spool.output_path(one) for one in open_],
                    settings,
                    calling_aet=self.calling_aet,
                    transaction_uid=transaction_uid,
                    report_seconds=self.report_seconds,
                    on_report=lambda event, information: self.commitments.take(
                        event, information, calling_aet=settings.ae_title
                    ),
                    is_over=lambda: all(self._next(one) is not Next.ASK for one in open_),
                )
        except RetryLater as caught:
            error = caught
            self.metrics.failures.labels("commit", "down" if isinstance(error, DestinationDown) else "busy").inc()
            log.get().warning(
                "commitment.delayed", destination=settings.name, study=open_[0].study_uid, attempts=attempt,
                reason=str(error),
            )  # fmt: skip
        except GiveUp as caught:
            self._park_open(open_, attempt, "rejected", reason=str(caught))
        except Exception as caught:  # a boundary: park what nobody foresaw, and go on with everything else
            if is_away(caught):
                raise
            self._park_open(open_, attempt, "unforeseen", reason=where(caught))
        if time.time() > _end(settings, started):
            reason = error or f"{settings.name} never said whether it keeps it; let its answers reach the node's port"
            self._park_open(open_, attempt, "expired", reason=_gave_up(reason, settings))
        return isinstance(error, DestinationDown)

    def _park_open(self, deliveries: Sequence[Delivery], attempt: int, failure: str, *, reason: str) -> None:
        for delivery in deliveries:
            if self._next(delivery) is Next.ASK:
                self._parked(delivery, attempt, failure, reason=reason, stage="commit")

    def _observe_turnaround(self, study_uid: str, started: float) -> None:
        """Note how long ago the last object came that the outputs, written at `started`, can speak of."""
        arrivals = [one.received_at.timestamp() for one in self.spool.study(study_uid).instances]
        last = max((arrival for arrival in arrivals if arrival <= started), default=started)
        self.metrics.turnaround_seconds.observe(time.time() - last)

    def _delayed(self, delivery: Delivery, attempt: int, error: RetryLater, *, seconds: float) -> Json:
        is_down = isinstance(error, DestinationDown)
        self.ledger.set_delivery(delivery, DeliveryState.WAITING, attempts=attempt, reason=str(error), is_down=is_down)
        self.metrics.failures.labels("deliver", "down" if is_down else "busy").inc()
        self._count(delivery, "delayed", attempt, reason=str(error), seconds=seconds)
        return {"outcome": "down" if is_down else "delayed", "wait": seconds}

    def _parked(self, delivery: Delivery, attempt: int, failure: str, *, reason: str, stage: str = "deliver") -> Json:
        self.metrics.failures.labels(stage, failure).inc()
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


def _commits(settings: DestinationSettings) -> TypeGuard[DicomDestination]:
    return isinstance(settings, DicomDestination) and settings.storage_commitment


def _end(settings: DestinationSettings, started: float) -> float:
    """When to give up, in seconds since the epoch."""
    return started + settings.give_up_hours * _HOUR_SECONDS


def _wait(settings: DestinationSettings, started: float, *, attempt: int, first: float = _FIRST_WAIT_SECONDS) -> float:
    """Seconds until the next attempt: twice as long each time, an hour at most, and not long past the end."""
    left = max(_end(settings, started) - time.time(), _FIRST_WAIT_SECONDS)
    return float(min(first * 2 ** min(attempt - 1, 20), _LONGEST_WAIT_SECONDS, left))


def _gave_up(reason: RetryLater | str, settings: DestinationSettings) -> str:
    return f"{reason}; gave up after {settings.give_up_hours:g} hours, retry when this is mended"


def _sent(*, is_asked: bool) -> Json:
    return {"outcome": "sent", "commit": time.time()} if is_asked else {"outcome": "sent"}


def _asked(again: Sequence[Delivery], open_: Sequence[Delivery], *, is_down: bool, seconds: float) -> Json:
    return {
        "again": [asdict(one) for one in again],
        "open": [asdict(one) for one in open_],
        "down": is_down and bool(open_),
        "wait": seconds,
        "now": time.time(),
    }
