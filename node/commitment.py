"""Storage commitment (PS3.4 J): what a destination says of the objects it was sent, and what follows from it.

An answer counts only for what its transaction asked, and only from the destination that was asked. It is written to
the ledger, synced, before it is answered with Success: whoever gets anything else may send it again, at any time.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pydicom.dataset import Dataset

from node import access, attributes, log
from node.config import DestinationSettings, DicomDestination
from node.domain import Delivery, DeliveryState, is_uid
from node.errors import where
from node.ledger import Ledger, Standing
from node.metrics import Metrics

MOST_FAILURES: Final = 3
"""How often an object is sent again because its destination cannot keep it."""

# PS3.7 C, as the answer to an N-EVENT-REPORT
SUCCESS: Final = 0x0000
PROCESSING_FAILURE: Final = 0x0110
NO_SUCH_EVENT: Final = 0x0113
INVALID_ARGUMENT: Final = 0x0115

# PS3.4 J.3.3.1.1: all is kept; not all is
_EVENTS: Final = (1, 2)

# PS3.3 C.14.1.1
_FAILURES: Final = {
    0x0110: "processing failure",
    0x0112: "no such object",
    0x0213: "resource limitation",
    0x0122: "SOP class not supported",
    0x0119: "class and instance do not fit",
    0x0131: "duplicate transaction",
}


class Next(Enum):
    """What is to be done for a delivery that is to be committed."""

    NOTHING = auto()
    ASK = auto()
    SEND_AGAIN = auto()
    PARK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a destination keeps of a transaction, and what not: SOP Instance UIDs, those with a failure reason."""

    transaction_uid: str
    kept: frozenset[str]
    failed: Mapping[str, int]


def decide(standing: Standing | None) -> Next:
    """Say what is to be done for a delivery of which the ledger says this; None: it says nothing."""
    if standing is None or not standing.awaits_commitment:
        return Next.NOTHING
    if standing.state is DeliveryState.SENT:
        return Next.ASK
    if standing.state is not DeliveryState.WAITING or not standing.failures:
        return Next.NOTHING  # done, or in the hands of a delivery, which asks when it is through
    return Next.SEND_AGAIN if standing.failures < MOST_FAILURES else Next.PARK


def read_answer(information: Dataset) -> Answer:
    """Read the information of an N-EVENT-REPORT (PS3.4 J.3.3.1.2).

    Raises ValueError, or whatever the parser raises, when it cannot be understood.
    """
    with attributes.quiet():
        transaction_uid = str(information.get("TransactionUID", ""))
        if not is_uid(transaction_uid):
            raise ValueError("an answer needs a valid Transaction UID")
        kept = {str(item.ReferencedSOPInstanceUID) for item in information.get("ReferencedSOPSequence") or ()}
        failed = {
            str(item.ReferencedSOPInstanceUID): int(item.get("FailureReason") or 0x0110)
            for item in information.get("FailedSOPSequence") or ()
        }
    return Answer(transaction_uid=transaction_uid, kept=frozenset(kept - failed.keys()), failed=failed)


def failure(name: str, code: int) -> str:
    """Say why a destination cannot keep an object."""
    return f"{name} cannot commit to it: {_FAILURES.get(code, 'failure')} ({code:04X}); see its log, then retry"


class Commitments:
    """Takes answers, whichever way they come; used by several threads, and by processes that share a ledger.

    What the ledger raises lets the archive send its answer again.
    """

    def __init__(self, ledger: Ledger, destinations: Iterable[DestinationSettings], metrics: Metrics) -> None:
        self._ledger, self._metrics = ledger, metrics
        self._destinations = {one.name: one for one in destinations if isinstance(one, DicomDestination)}

    def may_report(self, *, calling_aet: str, host: str, is_caller: bool) -> bool:
        """Say whether somebody is a destination that may have an answer, by title and host; looks up host names.

        is_caller: that title is let in from that host anyway, as an archive of several machines may be
        """
        return any(
            one.storage_commitment
            and one.ae_title.strip() == calling_aet.strip()
            and (is_caller or access.is_among(host, _addresses(one.host)))
            for one in self._destinations.values()
        )

    def take(self, event_type: int, information: Dataset, *, calling_aet: str) -> int:
        """Take one answer; the status for whoever sent it (PS3.7 10.1.1.1.8)."""
        if event_type not in _EVENTS:
            return self._refused("event", status=NO_SUCH_EVENT)
        try:
            answer = read_answer(information)
        except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
            return self._refused("content", status=INVALID_ARGUMENT)
        try:
            return self._keep(answer, calling_aet=calling_aet)
        except Exception as error:  # the boundary to the ledger: an archive that hears this sends it again
            return self._refused(where(error), status=PROCESSING_FAILURE)

    def _keep(self, answer: Answer, *, calling_aet: str) -> int:
        asked = {one.sop_instance_uid: one for one in self._ledger.transaction(answer.transaction_uid)}
        if not asked:
            return self._refused("transaction", status=INVALID_ARGUMENT)
        name = next(iter(asked.values())).destination
        settings = self._destinations.get(name)
        if settings is None or settings.ae_title.strip() != calling_aet.strip():
            return self._refused("sender", status=INVALID_ARGUMENT)
        committed = self._ledger.set_answered(
            answer.transaction_uid,
            kept=[one for uid, one in asked.items() if uid in answer.kept],
            failed={asked[uid]: failure(name, code) for uid, code in answer.failed.items() if uid in asked},
        )
        for delivery in committed:
            self._committed(delivery)
        return SUCCESS

    def _committed(self, delivery: Delivery) -> None:
        self._metrics.deliveries.labels(delivery.destination, "committed").inc()
        log.get().info(
            "delivery.committed",
            destination=delivery.destination,
            study=delivery.study_uid,
            sop_instance_uid=delivery.sop_instance_uid,
            kind=delivery.kind,
        )

    def _refused(self, reason: str, *, status: int) -> int:
        self._metrics.failures.labels("commit", "refused").inc()
        log.get().warning("commitment.refused", reason=reason)
        return status


def _addresses(host: str) -> set[str]:
    """The IP addresses of a host name; none when it is not known now."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return set()
