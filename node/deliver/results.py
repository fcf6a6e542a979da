"""Arguments and results of deliveries; the executor stores them as JSON (`models.documents`) for repeated workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from node.domain import Delivery, OutputObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The deliveries that a step has recorded.

    deliveries: by destination; destinations without deliveries are left out
    started: when the outputs were written, in seconds since the epoch
    """

    deliveries: Mapping[str, tuple[Delivery, ...]]
    started: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryBatch:
    """Deliveries of one study to one destination, at least one, which one workflow sends or has confirmed.

    started: when the outputs were written, or for storage commitment sent, in seconds since the epoch
    attempt: the number of this attempt, from 1
    has_given_way: whether they have just given way to a critical output, and do not so again
    """

    deliveries: tuple[Delivery, ...]
    started: float
    attempt: int = 1
    has_given_way: bool = False

    @property
    def destination(self) -> str:
        """The name of their destination."""
        return self.deliveries[0].destination


class Outcome(StrEnum):
    """How an attempt to send one output ended; `down`: the destination accepts nothing."""

    SENT = "sent"
    DELAYED = "delayed"
    DOWN = "down"
    GAVE_WAY = "gave_way"
    PARKED = "parked"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One attempt to send one output.

    wait_seconds: until the next attempt, if it was delayed
    to_confirm_since: when it was sent, in seconds since the epoch, if the destination is to commit to it
    """

    outcome: Outcome
    wait_seconds: float = 0.0
    to_confirm_since: float | None = None

    @property
    def is_down(self) -> bool:
        """Whether the destination accepts nothing."""
        return self.outcome is Outcome.DOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for storage commitment.

    again, open: deliveries to send again, and those to ask for again
    is_down: whether the destination accepts nothing
    wait_seconds: until the next request
    at: when the request ended, in seconds since the epoch
    """

    again: tuple[Delivery, ...]
    open: tuple[Delivery, ...]
    is_down: bool
    wait_seconds: float
    at: float


def delivery_of(destination: str, output: OutputObject) -> Delivery:
    """Return the delivery of one output to one destination."""
    return Delivery(
        destination=destination,
        study_uid=output.study_uid,
        sop_instance_uid=output.sop_instance_uid,
        kind=output.kind,
        priority=output.priority,
    )
