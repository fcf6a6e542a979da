"""What the steps of workflows hand on: the executor records it as JSON, and a repeated workflow reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from node.domain import Delivery

DeliveryJson = dict[str, str]
"""A `Delivery`, field by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What a step leaves to be sent.

    deliveries: by destination, none for those that get nothing
    started: when the outputs were written, in seconds since the epoch
    """

    deliveries: Mapping[str, tuple[Delivery, ...]]
    started: float


class Sent(TypedDict):
    """One attempt to send one output.

    outcome: sent, delayed, parked, abandoned, gave_way, or down when the destination accepts nothing
    wait: the seconds until the next attempt, if there is one
    commit: when it was sent, in seconds since the epoch, if the destination is to commit to it
    """

    outcome: str
    wait: NotRequired[float]
    commit: NotRequired[float]


class Asked(TypedDict):
    """One request for storage commitment.

    again, open: deliveries to send again, and those to ask for again
    down: whether the destination accepts nothing
    wait: the seconds until the next request; now: in seconds since the epoch
    """

    again: list[DeliveryJson]
    open: list[DeliveryJson]
    down: bool
    wait: float
    now: float
