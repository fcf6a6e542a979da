"""The interface of destination types: sending, probing, checks of `doctor`, and optionally commitment.

`settings.destinations.TYPES` lists the types, because the settings name them: an entry says where the
`Sender` stands, and it is imported when it is used first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from node import plugins
from node.check_result import Check
from node.deliver.commitment import Commitments
from node.deliver.connections import Associations
from node.domain import Delivery
from node.settings.destinations import TYPES, DestinationSettings

_D = TypeVar("_D", bound=DestinationSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """The node's side of a delivery: its AE title, and open associations of earlier objects."""

    ae_title: str
    associations: Associations | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One request to confirm outputs that were sent.

    sent_at: when the outputs were sent, in seconds since the epoch
    commitments: gets the destination's commitment reports
    is_over: whether nothing is open any more
    report_seconds: how long to wait for a report that comes by itself
    """

    calling: Calling
    transaction_uid: str
    sent_at: float
    commitments: Commitments
    is_over: Callable[[], bool]
    report_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender(Generic[_D]):
    """The code of a type of destinations. It raises the classes below; any other error parks the delivery.

    send: returns when the destination has accepted the content of an output file. Raises DestinationDown when the
        destination accepts nothing now, RetryLater when this output may be accepted later, and GiveUp when it will fail
        every time
    probe: whether a destination that was down answers again, without sending an output. Raises DestinationDown
    examine: the checks of `doctor`; sends no output
    confirm: asks whether the destination keeps outputs that it was sent, where its `storage_commitment` is set; None if
        none of the type can tell. Raises RetryLater or GiveUp
    silence: message on a destination that never confirmed; {} is its name
    """

    send: Callable[[bytes, _D, Calling], None]
    probe: Callable[[_D, Calling], None]
    examine: Callable[[_D, Calling], Iterable[Check]]
    confirm: Callable[[Sequence[Delivery], _D, Asking], None] | None = None
    silence: str = ""


def sender_of(destination: DestinationSettings) -> Sender[DestinationSettings]:
    """Return the code of a destination's type. Raises InputError if its package is not installed any more."""
    return plugins.load(TYPES.entry(destination.type).sender, Sender)


def can_confirm(destination: DestinationSettings) -> bool:
    """Return whether a destination supports commitment, if its settings ask for it."""
    return sender_of(destination).confirm is not None
