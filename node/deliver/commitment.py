"""Storage commitment (PS3.4 J): a destination's report on the objects it was sent, and its effects.

A report counts only for the objects of its transaction, and only from the destination that was asked. It is written to
the ledger and synced before the node answers Success. After any other answer the destination may repeat the report.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pydicom.dataset import Dataset

from node import log
from node.dicom import attributes
from node.domain import Delivery, DeliveryState, is_uid
from node.errors import where
from node.metrics import Metrics
from node.net import callers
from node.settings.destinations import DestinationTable, DicomDestination
from node.store.ledger import Ledger
from node.store.ledger_queries import DeliveryRow

MOST_FAILURES: Final = 3
"""After this many reports that a destination cannot keep an object, its delivery is parked; after fewer, sent again."""

# PS3.7 C, as the answer to an N-EVENT-REPORT
SUCCESS: Final = 0x0000
PROCESSING_FAILURE: Final = 0x0110
NO_SUCH_EVENT: Final = 0x0113
INVALID_ARGUMENT: Final = 0x0115

# PS3.4 J.3.3.1.1: the destination keeps every object; it does not keep every object
_EVENTS: Final = (1, 2)

# PS3.3 C.14.1.1
FAILURE_REASONS: Final = {
    0x0110: "processing failure",
    0x0112: "no such object",
    0x0213: "resource limitation",
    0x0122: "SOP class not supported",
    0x0119: "SOP class and instance do not match",
    0x0131: "duplicate transaction",
}


class Next(Enum):
    """The next step for a delivery that awaits storage commitment."""

    NOTHING = auto()
    ASK = auto()
    SEND_AGAIN = auto()
    PARK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentReport:
    """A destination's report on a transaction: the SOP Instance UIDs it keeps, and those it failed to keep.

    failed: the failure reason by SOP Instance UID
    """

    transaction_uid: str
    kept: frozenset[str]
    failed: Mapping[str, int]


def decide(record: DeliveryRow | None) -> Next:
    """Return the next step for a delivery, from its record in the ledger; None: the ledger has no record."""
    if record is None or not record.awaits_commitment:
        return Next.NOTHING
    if record.state is DeliveryState.SENT:
        return Next.ASK
    if record.state is not DeliveryState.WAITING or not record.failures:
        return Next.NOTHING  # ended, or a delivery workflow is sending it and will ask when it is done
    return Next.SEND_AGAIN if record.failures < MOST_FAILURES else Next.PARK


def read_report(information: Dataset) -> CommitmentReport:
    """Read the information of an N-EVENT-REPORT (PS3.4 J.3.3.1.2).

    Raises ValueError, or any error of the parser, for an unreadable report.
    """
    with attributes.quiet():
        transaction_uid = str(information.get("TransactionUID", ""))
        if not is_uid(transaction_uid):
            raise ValueError("a report needs a valid Transaction UID")
        kept = {str(item.ReferencedSOPInstanceUID) for item in information.get("ReferencedSOPSequence") or ()}
        failed = {
            str(item.ReferencedSOPInstanceUID): int(item.get("FailureReason") or 0x0110)
            for item in information.get("FailedSOPSequence") or ()
        }
    return CommitmentReport(transaction_uid=transaction_uid, kept=frozenset(kept - failed.keys()), failed=failed)


def failure(name: str, code: int) -> str:
    """Return why a destination cannot keep an object."""
    reason = FAILURE_REASONS.get(code, "failure")
    return f"{name} cannot commit to the object: {reason} ({code:04X}); see its log, then retry"


class Commitments:
    """Accepts reports on any association; used by several threads, and by processes that share a ledger.

    If the ledger raises, the archive gets a failure status and may send its report again.
    """

    def __init__(self, ledger: Ledger, destinations: DestinationTable, metrics: Metrics) -> None:
        self._ledger, self._metrics = ledger, metrics
        self._destinations = destinations

    def may_report(self, *, calling_aet: str, host: str, is_caller: bool) -> bool:
        """Return whether a caller is a destination that may report, by AE title and host; looks up host names.

        is_caller: the title may associate from that host anyway, for example an archive with several machines
        """
        return any(
            isinstance(destination, DicomDestination)
            and destination.storage_commitment
            and destination.ae_title.strip() == calling_aet.strip()
            and (is_caller or callers.is_among(host, _addresses(destination.host)))
            for _, destination in self._destinations.items()
        )

    def take(self, event_type: int, information: Dataset, *, calling_aet: str) -> int:
        """Accept one report; returns the status for its sender (PS3.7 10.1.1.1.8)."""
        if event_type not in _EVENTS:
            return self._refused("event", status=NO_SUCH_EVENT)
        try:
            report = read_report(information)
        except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
            return self._refused("content", status=INVALID_ARGUMENT)
        try:
            return self._keep(report, calling_aet=calling_aet)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the boundary to the ledger: after this an archive sends its report again
            return self._refused(where(error), status=PROCESSING_FAILURE)

    def _keep(self, report: CommitmentReport, *, calling_aet: str) -> int:
        asked = {delivery.sop_instance_uid: delivery for delivery in self._ledger.transaction(report.transaction_uid)}
        if not asked:
            return self._refused("transaction", status=INVALID_ARGUMENT)
        name = next(iter(asked.values())).destination
        settings = self._destinations.get(name)
        if not isinstance(settings, DicomDestination) or settings.ae_title.strip() != calling_aet.strip():
            return self._refused("sender", status=INVALID_ARGUMENT)
        self.note(
            report.transaction_uid,
            kept=[delivery for uid, delivery in asked.items() if uid in report.kept],
            failed={asked[uid]: failure(name, code) for uid, code in report.failed.items() if uid in asked},
        )
        return SUCCESS

    def note(self, transaction_uid: str, *, kept: Sequence[Delivery], failed: Mapping[Delivery, str]) -> None:
        """Record which objects a destination keeps, and why it does not keep the others."""
        for delivery in self._ledger.set_answered(transaction_uid, kept=kept, failed=failed):
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
    """Return the IP addresses of a host name; empty when it cannot be resolved now."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return set()
